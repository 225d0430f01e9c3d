"""Runs one attempt in its own process, from the loaded trainable to the exit code, with its output in its own files."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mqtune.core.codec import encode_value
from mqtune.core.errors import ReportingClosed
from mqtune.core.trial import AttemptEnd
from mqtune.trainable.function import run_function
from mqtune.trainable.process.descendants import LIBC
from mqtune.trainable.process.protocol import PIPE_CLOSED_CODE, STOP_SIGNAL, Ending, describe_error
from mqtune.trainable.process.session import Session, StopTrial
from mqtune.trainable.spec import Loaded

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

#: Runs a loaded trainable, and returns how it ended.
Run = Callable[[Loaded, Session], Ending]
#: Errors of a file system that can't be written now: it is full, or a network's that can't be reached.
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE})


def run_attempt(load: Callable[[], Loaded], current: Session, run: Run | None = None) -> int:
    """Run the trainable, tell the worker how it ended, and return the code to exit with."""
    ending = _call(load, current, run)
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


def _call(load: Callable[[], Loaded], current: Session, run: Run | None = None) -> Ending:
    error_text = ""
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {STOP_SIGNAL})
        loaded = load()
        current.enter()
        ending = (run or _run)(loaded, current)
    except StopTrial as stop:
        ending = Ending(AttemptEnd.PAUSED if stop.action == "pause" else AttemptEnd.STOPPED)
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


def _run(loaded: Loaded, current: Session) -> Ending:
    # Only the trials that need these import them: a class imports its base class, and a zygote has imported it for a script.
    if isinstance(loaded, Path):
        from mqtune.trainable.script import ScriptRun  # noqa: PLC0415

        return ScriptRun(loaded, current).run()
    if isinstance(loaded, type):
        from mqtune.trainable.class_ import run_class  # noqa: PLC0415

        run_class(loaded, current)
    else:
        run_function(loaded, current)
    return Ending(AttemptEnd.COMPLETED)


def flush() -> None:
    """Flush what was printed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def flush_native() -> None:
    """Flush what code in C has printed, which would otherwise appear in the next trial's files (Linux only)."""
    if LIBC is not None:
        LIBC.fflush(None)


class _Output(io.FileIO):
    """A file of output that drops what can't be written; a line says how much was lost once writing works again."""

    def __init__(self, fd: int, name: str) -> None:
        super().__init__(fd, "w", closefd=False)
        self.name = name
        self._dropped = 0

    def write(self, data: Buffer, /) -> int:
        """Write *data*, or a part of it; a full disk raises nothing."""
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
    """Make standard output and error line-buffered, for any text and file; forked trials inherit them."""
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
    """Send this process's output to its own files, or to /dev/null if they can't be opened."""
    for path, fd in ((stdout, 1), (stderr, 2)):
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError:
            file = os.open(os.devnull, os.O_WRONLY)
        os.dup2(file, fd)
        os.close(file)
