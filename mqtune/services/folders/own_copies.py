"""Copies linked files that an attempt writes to, so that the program's files stay unchanged.

Python opens a file for writing after an audit event, in which the link is replaced by a copy. Files that libraries in C
or other programs open are not noticed. If such a library has changed a file, a line of the attempt's stderr says so at
its end.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import stat
import sys
import threading
from pathlib import Path
from typing import Final

from mqtune.services.folders.working_folder import RECORD

#: The largest file that is copied when it is opened to be changed in part, which takes some 50 ms. A larger file is
#: often a data set that is only read, as a memory map.
_MOST_BYTES: Final = 32_000_000
_WRITES: Final = os.O_WRONLY | os.O_RDWR
#: File names that libraries write in C: PyTorch, HDF5, SQLite, Arrow, Polars and others.
_OF_LIBRARIES: Final = (
    *(".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".onnx", ".h5", ".hdf5", ".keras", ".nc"),
    *(".db", ".sqlite", ".sqlite3", ".parquet", ".feather", ".arrow", ".ipc"),
)


#: Locked by the thread that makes a copy, because it opens files itself.
_detaching: Final = threading.RLock()


class _MirroredAttempt:
    """The attempt of this process, if there is one: its place, and the program folder's parent."""

    place = mirrored = ""
    is_watched = False


def protect_originals(place: Path, home: Path) -> None:
    """Protect the program's files from the attempt of this process and its forks.

    Args:
        place: the attempt's place; see ``working_folder.make``.
        home: the program's folder.
    """
    _MirroredAttempt.place = os.path.realpath(place)
    _MirroredAttempt.mirrored = os.path.dirname(os.path.realpath(home))
    if not _MirroredAttempt.is_watched:
        _MirroredAttempt.is_watched = True
        # Python removes no hook.
        sys.addaudithook(_on_event)
    atexit.unregister(_print_changes)
    atexit.register(_print_changes)


def _on_event(event: str, arguments: tuple[object, ...]) -> None:
    if event != "open":
        return
    path, _, flags = arguments
    if isinstance(flags, int) and flags & _WRITES and isinstance(path, str | bytes | os.PathLike):
        with _detaching:
            _detach(os.path.abspath(os.fsdecode(path)), flags)


def _detach(path: str, flags: int) -> None:
    """Replace a link to a program's file by the attempt's own copy, before the file is opened."""
    path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    original = _original_of(path)
    # With O_EXCL the file must not exist.
    if original is None or flags & os.O_EXCL:
        return
    draft = f"{path}.{os.getpid()}"
    try:
        status = os.stat(original)
        if not stat.S_ISREG(status.st_mode):
            return
        if flags & os.O_TRUNC:
            os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IMODE(status.st_mode)))
        elif status.st_size > _MOST_BYTES:
            _print_line(
                f"{original} is opened for writing, and is too large for a copy of this trial's own: "
                "this trial changes it for all trials"
            )
            return
        else:
            shutil.copy2(original, draft)
        os.replace(draft, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        _print_line(f"{original} is opened for writing, and this trial can't have a copy of its own: {error}")
        return
    _print_line(f"this trial writes to its own copy of {original}, which stays as it is")


def _original_of(path: str) -> str | None:
    """Return the program's file if *path*, in the attempt's folder, is a link to it; else None."""
    inside = path.removeprefix(_MirroredAttempt.place + os.sep)
    if inside == path:
        return None
    original = os.path.join(_MirroredAttempt.mirrored, inside)
    try:
        return original if os.readlink(path) == original else None
    except OSError:
        return None


def _print_changes() -> None:
    """Print the linked library files that have changed since the attempt's place was made."""
    place = _MirroredAttempt.place
    with contextlib.suppress(OSError):
        began_ns = os.stat(os.path.join(place, RECORD)).st_mtime_ns
        for folder, _, names in os.walk(place):
            for name in names:
                original = _original_of(os.path.join(folder, name)) if name.endswith(_OF_LIBRARIES) else None
                with contextlib.suppress(OSError):
                    if original is not None and os.stat(original).st_mtime_ns > began_ns:
                        _print_line(
                            f"{original} has changed while this trial ran, by it or by another one: write to a new name"
                        )


def _print_line(text: str) -> None:
    # Not through the program's streams, which may be anything.
    with contextlib.suppress(OSError):
        os.write(2, f"mqtune: {text}\n".encode(errors="backslashreplace"))
