"""Files and folders: made new, written to the end, on disk, and gone."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Final

__all__ = [
    "DISK_FULL",
    "create_file",
    "newest_change",
    "remove_tree",
    "sync",
    "sync_all",
    "token",
    "write_all",
    "write_file",
]

#: The numbers of the errors that say that a disk is full, or this user's share of it.
DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_TOKEN_BYTES: Final = 8
#: How many files are flushed at once: a file system writes them out together, and so in a third of the time.
_AT_ONCE: Final = 8
#: What file systems say that can't flush a folder, and need not.
_NOTHING_TO_SYNC: Final = frozenset({errno.EINVAL, errno.ENOTSUP})


def token() -> str:
    """Return a name that nothing else has."""
    return os.urandom(_TOKEN_BYTES).hex()


def create_file(path: str, *, executable: bool = False) -> int:
    """Make a file that was not there, and return its descriptor, to write to."""
    mode = 0o777 if executable else 0o666
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)


def write_all(descriptor: int, data: memoryview) -> None:
    """Write all of *data*."""
    while data:
        data = data[os.write(descriptor, data) :]


def write_file(path: str, data: bytes) -> None:
    """Make a file that was not there, with *data* in it."""
    descriptor = create_file(path)
    try:
        write_all(descriptor, memoryview(data))
    finally:
        os.close(descriptor)


def sync(path: str) -> None:
    """Have a file, or the names in a folder, on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NOTHING_TO_SYNC or not os.path.isdir(path):
            raise
    finally:
        os.close(descriptor)


def sync_all(paths: Sequence[str]) -> None:
    """Have files and folders on disk."""
    if len(paths) <= _AT_ONCE:
        for path in paths:
            sync(path)
        return
    # Few trials save so many files, and none should wait for the import.
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    with ThreadPoolExecutor(_AT_ONCE, "mqtune-sync") as pool:
        for _ in pool.map(sync, paths):
            pass


def newest_change(path: str) -> float:
    """Return when something at or below *path* changed last, by the clock of its file system; 0 when it is gone."""
    try:
        newest = os.stat(path, follow_symlinks=False).st_ctime
        with os.scandir(path) as entries:
            for entry in entries:
                newest = max(newest, newest_change(entry.path))
    except NotADirectoryError:
        return newest
    except FileNotFoundError:
        return 0.0
    return newest


def remove_tree(folder: str | os.PathLike[str]) -> None:
    """Remove a folder and all that it holds, as far as that is possible; what is left is swept another time."""
    # It takes as long to import as all else here, and a trial that saves nothing has no use for it.
    import shutil  # noqa: PLC0415

    shutil.rmtree(folder, ignore_errors=True)
