"""A folder that another program writes its checkpoints into, without saying when it does."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["WatchedFolder"]


class WatchedFolder:
    """Notices what was written, and copies it only when nothing is written meanwhile.

    Args:
        path: the folder, which need not be there yet; what it holds now is not new.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._taken = self._look()

    def take(self, draft: Callable[[], Path], before: float = math.inf) -> Path | None:
        """Return a copy of the folder, or None: nothing is new since the last copy, or it may be half written.

        Args:
            draft: gives a new empty folder for the copy.
            before: a file that was written after this is too new, in seconds since the epoch.
        """
        seen = self._look()
        if not seen or seen == self._taken:
            return None
        # From after the present is what was written before the clock was set back, or by another machine's clock.
        if before * 1e9 < max(changed_ns for _, changed_ns in seen.values()) <= time.time_ns():
            return None
        copy = draft()
        try:
            shutil.copytree(self.path, copy, dirs_exist_ok=True)
            complete = self._look() == seen
        except (FileNotFoundError, shutil.Error):
            complete = False
        if not complete:
            shutil.rmtree(copy, ignore_errors=True)
            return None
        self._taken = seen
        return copy

    def _look(self) -> dict[str, tuple[int, int]]:
        """Return the size and the time of the last change, in nanoseconds, of each file."""
        found = {}
        for folder, _, names in os.walk(self.path):
            for name in names:
                file = os.path.join(folder, name)
                try:
                    state = os.stat(file)
                except FileNotFoundError:
                    continue
                found[file] = (state.st_size, state.st_mtime_ns)
        return found
