"""Runs one attempt in its own process."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable

from mqtune.core.codec import encode_value
from mqtune.core.errors import ReportingClosed
from mqtune.core.trial import AttemptEnd
from mqtune.trainable.process.exits import exit_code
from mqtune.trainable.process.late_imports import ImportWatch
from mqtune.trainable.process.output import flush
from mqtune.trainable.process.protocol import PIPE_CLOSED_CODE, STOP_SIGNAL, TrainableEnd, describe_error, user_trace
from mqtune.trainable.process.session import Session, StopTrial


def run_attempt(current: Session, watch: ImportWatch, run: Callable[[], TrainableEnd]) -> int:
    """Run an attempt, report its end to the worker, and return the exit code.

    A child that user code has forked, and that comes back here, ends without a message.
    """
    ending = call(run)
    flush()
    if current.is_inherited:
        return ending.code
    said = {
        "end": ending.end.value,
        "error_type": ending.error_type,
        "error": ending.error,
        "heard": current.known_order,
    }
    try:
        current.end(encode_value({**said, "imported": [*watch.end(), *current.imported]}))
    except StopTrial:
        # The worker is gone.
        pass
    except ReportingClosed as error:
        with contextlib.suppress(Exception):
            sys.stderr.write(f"{error}\n")
            sys.stderr.flush()
        return PIPE_CLOSED_CODE
    return ending.code


def call(run: Callable[[], TrainableEnd]) -> TrainableEnd:
    """Call a trainable, and return how it ended. An error is an end, too."""
    failure: BaseException | None = None
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {STOP_SIGNAL})
        ending = run()
    except StopTrial as stop:
        ending = TrainableEnd(AttemptEnd.PAUSED if stop.action == "pause" else AttemptEnd.STOPPED)
    except BaseException as error:  # noqa: BLE001 - whatever user code raises is the trial's end
        if isinstance(error, SystemExit) and error.code in (None, 0):
            ending = TrainableEnd(AttemptEnd.COMPLETED)
        else:
            failure, code = error, exit_code(error) if isinstance(error, SystemExit) else 1
            ending = TrainableEnd(AttemptEnd.FAILED, type(error).__name__, describe_error(error), code)
    # A stop signal that comes too late changes nothing.
    signal.signal(STOP_SIGNAL, signal.SIG_IGN)
    if failure is not None:
        _print_error(failure, ending.error)
    return ending


def _print_error(error: BaseException, text: str) -> None:
    """Print an error as the program does: by its ``sys.excepthook``, if it has set one."""
    # User code may have closed the stream. The worker gets the error in any case.
    with contextlib.suppress(Exception):
        if sys.excepthook is not sys.__excepthook__ and not isinstance(error, SystemExit):
            with contextlib.suppress(Exception):
                sys.excepthook(type(error), error, user_trace(error))
                return
        sys.stderr.write(f"{text}\n")
