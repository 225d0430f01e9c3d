"""What a trial prints: a line at a time, and never a reason for it to end."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any, Final

__all__ = ["shape_output", "take_over_output"]

#: What file systems say when they can take nothing now: full, or a network's that is away.
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE})


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
