"""Runs one attempt in its own process, from the loaded trainable to the exit code, with its output in its own files."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from mqtune.core.codec import encode_value
from mqtune.core.errors import ReportingClosed
from mqtune.core.trial import AttemptEnd
from mqtune.trainable.process.late_imports import ImportWatch
from mqtune.trainable.process.output import flush
from mqtune.trainable.process.protocol import (
    PIPE_CLOSED_CODE,
    STOP_SIGNAL,
    BecomeScript,
    Ending,
    describe_error,
)
from mqtune.trainable.process.session import Session, StopTrial
from mqtune.trainable.spec import Loaded

#: Runs a loaded trainable, and returns how it ended.
Run = Callable[[Loaded, Session], Ending]


def seed_generators() -> None:
    """Seed the global generators of Python and of NumPy anew, as far as they were imported, so that no trial has another's numbers."""
    for name in ("random", "numpy.random"):
        if name in sys.modules:
            sys.modules[name].seed()


def run_attempt(load: Callable[[], Loaded], current: Session, run: Run) -> int:
    """Run the trainable, tell the worker how it ended, and return the code to exit with."""
    watch = ImportWatch()

    def load_and_watch() -> Loaded:
        loaded = load()
        if not isinstance(loaded, Path):
            watch.begin()
        return loaded

    ending = _call(load_and_watch, current, run)
    flush()
    said = {"end": ending.end.value, "error_type": ending.error_type, "error": ending.error, "heard": current.heard}
    try:
        current.end(encode_value({**said, "imported": watch.end()}))
    except StopTrial:
        # The worker is gone.
        pass
    except ReportingClosed as error:
        with contextlib.suppress(Exception):
            sys.stderr.write(f"{error}\n")
            sys.stderr.flush()
        return PIPE_CLOSED_CODE
    return ending.code


def _call(load: Callable[[], Loaded], current: Session, run: Run) -> Ending:
    error_text = ""
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {STOP_SIGNAL})
        loaded = load()
        ending = run(loaded, current)
    except StopTrial as stop:
        ending = Ending(AttemptEnd.PAUSED if stop.action == "pause" else AttemptEnd.STOPPED)
    except BecomeScript:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever user code raises is the trial's end
        if isinstance(error, SystemExit) and error.code in (None, 0):
            ending = Ending(AttemptEnd.COMPLETED)
        else:
            error_text = describe_error(error)
            ending = Ending(AttemptEnd.FAILED, type(error).__name__, error_text, code=1)
    # A stop that comes now changes nothing.
    signal.signal(STOP_SIGNAL, signal.SIG_IGN)
    if error_text:
        # User code may have closed it; the error is reported all the same.
        with contextlib.suppress(Exception):
            sys.stderr.write(f"{error_text}\n")
    return ending
