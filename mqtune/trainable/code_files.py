"""Which files of a user's code a process has imported, so that a change on the disk can be noticed."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from mqtune.trainable.frozen import frozen

__all__ = ["are_current", "loaded_files", "unfrozen"]


def loaded_files(code_root: Path, script: Path | None = None) -> list[tuple[str, int]]:
    """Return the files below the code root that were imported, and the script, with their times in nanoseconds."""
    root = str(code_root) + os.sep
    paths = {str(getattr(module, "__file__", None)) for module in list(sys.modules.values())}
    if script is not None:
        paths.add(str(script))
    found = []
    for path in paths:
        if path.startswith(root) and "site-packages" not in path:
            with contextlib.suppress(OSError):
                found.append((path, os.stat(path).st_mtime_ns))
    return found


def unfrozen(files: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return those files that count as they lie on the disk."""
    return [(path, mtime) for path, mtime in files if frozen().source(path) is None]


def are_current(files: Iterable[tuple[str, int]]) -> bool:
    """Whether these files are there and have these times."""
    try:
        return all(os.stat(path).st_mtime_ns == mtime for path, mtime in files)
    except OSError:
        return False
