"""One trial, in the process it has to itself, from its start message to its exit."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from mqtune.core.codec import encode_value
from mqtune.core.errors import ReportingClosed
from mqtune.core.trial import AttemptEnd
from mqtune.trainable.function import run_function
from mqtune.trainable.process.descendants import LIBC
from mqtune.trainable.process.protocol import PIPE_CLOSED_CODE, STOP_SIGNAL, Ending, describe_error
from mqtune.trainable.process.session import Session, StopTrial
from mqtune.trainable.spec import Loaded

__all__ = ["flush", "flush_native", "run_attempt", "shape_output", "take_over_output"]

#: Runs what was loaded, as the start message says, and returns how it ended.
Run = Callable[[Loaded, dict[str, Any], Session], Ending]
#: What file systems say when they can take nothing now: full, or a network's that is away.
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE})


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
        from mqtune.trainable.class_ import run_class  # noqa: PLC0415

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
    if LIBC is not None:
        LIBC.fflush(None)


class _Output(io.FileIO):
    """A file of output that drops what there is no room for; a line says so once there is room again."""

    def __init__(self, fd: int, name: str) -> None:
        super().__init__(fd, "w", closefd=False)
        self.name = name
        self._dropped = 0

    def write(self, data: Any, /) -> int:
        """Write *data*, or a part of it; nothing is raised where there is no room."""
        try:
            if self._dropped:
                super().write(
                    f"\n… mqtune: {self._dropped:,} bytes of output were lost: the disk was full …\n".encode()
                )
                self._dropped = 0
            return super().write(data)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            size = memoryview(data).nbytes
            self._dropped += size
            return size


def shape_output() -> None:
    """Have what is printed go out a line at a time, whatever it is and wherever it goes; inherited by forked trials."""
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            io.BufferedWriter(_Output(fd, before.name)),
            encoding=before.encoding,
            errors="backslashreplace",
            line_buffering=True,
        )
        for fd, before in ((1, sys.stdout), (2, sys.stderr))
    )


def take_over_output(stdout: str, stderr: str) -> None:
    """Send this process's output to its own files; it goes nowhere where there can be none."""
    for path, fd in ((stdout, 1), (stderr, 2)):
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError:
            file = os.open(os.devnull, os.O_WRONLY)
        os.dup2(file, fd)
        os.close(file)
