"""Output of a trial's process: line-buffered, and in the trial's own files."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TextIO, cast

from mqtune.trainable.process.descendants import LIBC

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

#: Original standard output and error of this process. Empty before ``shape_output``.
_begun: list[TextIO] = []
#: Standard output and error.
_DESCRIPTORS: Final = (1, 2)
#: Maximum output of a program's import that each trial repeats.
_MAX_CAPTURED_BYTES: Final = 1 << 20
#: Temporary write errors of a file system that is full or can't be reached.
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE})


def flush() -> None:
    """Flush standard output and error."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def flush_native() -> None:
    """Flush output of C code, which would otherwise appear in the next trial's files (Linux only)."""
    if LIBC is not None:
        LIBC.fflush(None)


class _Output(io.FileIO):
    """An output file that drops unwritable data. A later line reports the loss."""

    def __init__(self, fd: int, name: str) -> None:
        super().__init__(fd, "w", closefd=False)
        self.name = name
        self._dropped = 0

    def write(self, data: Buffer, /) -> int:
        """Write *data* or a part of it, and return how many bytes. A full disk raises no error."""
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
    """Make standard output and error line-buffered, also in forks. They accept any text."""
    _begun.extend((sys.stdout, sys.stderr))
    sys.stdout, sys.stderr = (_shaped(fd, before) for fd, before in ((1, sys.stdout), (2, sys.stderr)))
    # If a program wraps sys.stdout.buffer again, these references keep the previous wrapper from closing it.
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]


def _shaped(fd: int, before: TextIO) -> io.TextIOWrapper:
    """Return the line-buffered stream of a descriptor. It is unbuffered if Python was started so."""
    file, is_unbuffered = _Output(fd, before.name), getattr(before, "write_through", False)
    shaped = io.TextIOWrapper(
        cast("io.BufferedWriter", file) if is_unbuffered else io.BufferedWriter(file),
        encoding=before.encoding,
        errors="backslashreplace",
        line_buffering=True,
        write_through=is_unbuffered,
    )
    # As Python itself sets it.
    shaped.mode = "w"  # type: ignore[misc]
    return shaped


def restore_output() -> None:
    """Undo ``shape_output``, for a program that expects Python's original output."""
    if _begun:
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__ = _begun  # type: ignore[misc,assignment]


def take_over_output(stdout: str, stderr: str) -> None:
    """Send this process's output to these files, or to /dev/null if a file can't be opened."""
    for path, fd in ((stdout, 1), (stderr, 2)):
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError:
            file = os.open(os.devnull, os.O_WRONLY)
        os.dup2(file, fd)
        os.close(file)


class CapturedOutput:
    """Captures this process's output, including that of C code."""

    def __init__(self) -> None:
        self._before = [os.dup(fd) for fd in _DESCRIPTORS]
        self._files = [_temporary_file() for _ in _DESCRIPTORS]
        for fd, file in zip(_DESCRIPTORS, self._files, strict=True):
            os.dup2(file, fd)

    def end(self) -> list[bytes]:
        """Restore the output. Return the captured bytes of standard output and of standard error.

        Of each, only the first megabyte is returned.
        """
        flush()
        flush_native()
        captured = [os.pread(file, _MAX_CAPTURED_BYTES, 0) for file in self._files]
        for fd, before, file in zip(_DESCRIPTORS, self._before, self._files, strict=True):
            os.dup2(before, fd)
            os.close(before)
            os.close(file)
        return captured


def _temporary_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("output")
    # Only macOS needs the import.
    import tempfile  # noqa: PLC0415

    file, path = tempfile.mkstemp()
    os.unlink(path)
    return file


def write_output(printed: Sequence[bytes]) -> None:
    """Write captured bytes to standard output and to standard error."""
    for fd, data in zip(_DESCRIPTORS, printed, strict=True):
        write_all(fd, data)


def write_all(fd: int, data: bytes) -> None:
    """Write all of *data* to a descriptor, or drop the rest if the disk is full."""
    # A full disk should not end the trial.
    with contextlib.suppress(OSError):
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
