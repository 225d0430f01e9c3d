"""One trial, in the process it has to itself, from its start message to its exit."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

from mqtune.core.codec import encode_value
from mqtune.core.errors import ReportingClosed
from mqtune.core.trial import AttemptEnd
from mqtune.trainable import session
from mqtune.trainable.channel import Channel
from mqtune.trainable.ending import PIPE_CLOSED_CODE, Ending, describe_error
from mqtune.trainable.function import run_function
from mqtune.trainable.output import take_over_output
from mqtune.trainable.session import STOP_SIGNAL, Session, StopTrial
from mqtune.trainable.spec import Loaded

__all__ = [
    "become_subreaper",
    "die_with_parent",
    "flush",
    "flush_native",
    "run_attempt",
    "run_spare",
]

#: Runs what was loaded, as the start message says, and returns how it ended.
Run = Callable[[Loaded, dict[str, Any], Session], Ending]

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
#: Opened once, and not in each trial.
_LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent dies (Linux only; 0: no longer).

    The signal comes when the *thread* that created this process ends, so that thread must be one that stays.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(0)


def become_subreaper() -> None:
    """Have orphaned descendants come to this process, where the kernel can (Linux), so that it can bury them."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def run_spare(channel: Channel, load: Callable[[], Loaded], code_root: Path) -> NoReturn:
    """Wait for a start message, run that trial, and exit; exit at once when the zygote closes the channel.

    One that may be reused is then kept for further attempts.

    All that can be done before the message comes is done before, since a slot waits for what is done after. The stop
    signal must be blocked until here, so that one that comes early waits until the trainable is called.
    """
    os.setsid()
    current = session.current = Session()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(STOP_SIGNAL, current.tell)
    # Python's own generators are reseeded by fork; NumPy's global one is not, and would give all trials the same numbers.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    received = channel.receive()
    if received is None:
        os._exit(0)
    message, fds = received
    if message.get("reuse"):
        from mqtune.trainable.reuse import run_attempts  # noqa: PLC0415

        run_attempts(channel, load, code_root, message, fds)
    channel.close()
    take_over_output(message["stdout"], message["stderr"])
    current.open(message, fds)
    code = 1
    try:
        code = run_attempt(load, message, current)
    finally:
        os._exit(code)


def run_attempt(load: Callable[[], Loaded], message: dict[str, Any], current: Session, run: Run | None = None) -> int:
    """Run the trainable, tell the worker how it ended, and return the code to exit with."""
    ending = _call(load, message, current, run)
    flush()
    said = {"end": ending.end.value, "error_type": ending.error_type, "error": ending.error}
    try:
        current.end(encode_value({**said, "heard": current.heard}))
    except StopTrial:
        # The worker is gone.
        pass
    except ReportingClosed as error:
        with contextlib.suppress(Exception):
            sys.stderr.write(f"{error}\n")
            sys.stderr.flush()
        return PIPE_CLOSED_CODE
    return ending.code


def _call(load: Callable[[], Loaded], message: dict[str, Any], current: Session, run: Run | None = None) -> Ending:
    """Run the trainable and say how it ended."""
    error_text = ""
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {STOP_SIGNAL})
        loaded = load()
        current.enter()
        ending = (run or _run)(loaded, message, current)
    except StopTrial as stop:
        ending = Ending(AttemptEnd.PAUSED if stop.action == "pause" else AttemptEnd.STOPPED)
    except SystemExit as error:
        if error.code in (None, 0):
            ending = Ending(AttemptEnd.COMPLETED)
        else:
            ending = Ending(AttemptEnd.FAILED, "SystemExit", describe_error(error), code=1)
            error_text = ending.error
    except BaseException as error:  # noqa: BLE001 - whatever user code raises is the trial's end
        ending = Ending(AttemptEnd.FAILED, type(error).__name__, describe_error(error), code=1)
        error_text = ending.error
    # From here on a late stop changes nothing.
    signal.signal(STOP_SIGNAL, signal.SIG_IGN)
    if error_text:
        # User code may have closed it; what it failed with is told all the same.
        with contextlib.suppress(Exception):
            sys.stderr.write(f"{error_text}\n")
    return ending


def _run(loaded: Loaded, message: dict[str, Any], current: Session) -> Ending:
    config = message["config"]
    # What most trials don't need is imported with what does: a class imports its base, a zygote prepares for a script.
    if isinstance(loaded, Path):
        from mqtune.trainable.script import run_script  # noqa: PLC0415

        return run_script(loaded, config, current, Path(message["stderr"]))
    if isinstance(loaded, type):
        from mqtune.trainable.stepping import run_class  # noqa: PLC0415

        run_class(loaded, config, current)
    else:
        run_function(loaded, config, current)
    return Ending(AttemptEnd.COMPLETED)


def flush() -> None:
    """Have what was printed go out."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def flush_native() -> None:
    """Have what code in C has printed go out, so that it doesn't come up later, in another trial's files (Linux only)."""
    if _LIBC is not None:
        _LIBC.fflush(None)
