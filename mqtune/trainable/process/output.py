"""The output of a trial's process: line-buffered, in the trial's own files, and flushed when it should be seen."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import TYPE_CHECKING, Final

from mqtune.trainable.process.descendants import LIBC

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

#: Errors of a file system that can't be written now: it is full, or a network's that can't be reached.
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE})


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
