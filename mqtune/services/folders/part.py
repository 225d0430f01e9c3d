"""The trial process's part of folders: it makes its working folder, and changes to it."""

from __future__ import annotations

import atexit
import os
from pathlib import Path
from typing import Final

from mqtune.services.folders.own_copies import protect_originals
from mqtune.services.folders.working_folder import discard, make
from mqtune.trainable import Program, StartMessage

#: The length of a random name: several machines may share the folder.
_NAME_BYTES: Final = 6


class Part:
    """The working folder of a process.

    Args:
        program: the program.
        text: the folder for places; three levels above it is the worker's log folder.
    """

    _place = _working = Path()
    _is_used = False

    def __init__(self, program: Program, text: str) -> None:
        self._home, self._places = program.home, Path(text)

    def enter(self) -> None:
        """Make a new working folder, and change to it."""
        self._place = place = self._places / os.urandom(_NAME_BYTES).hex()
        place.parent.mkdir(parents=True, exist_ok=True)
        # Before the program's own handlers, so that this one runs behind them.
        atexit.register(self._discard_unused, os.getpid())
        self._working = make(self._home, place, skip=[self._places.parents[2]])
        os.chdir(self._working)
        os.environ["PWD"] = os.getcwd()
        protect_originals(place, self._home)

    def begin(self, message: StartMessage) -> None:
        """Make the attempt's working directory a link to the working folder.

        Its worker replaces the link at the end.
        """
        if message["working_dir"]:
            path = Path(message["working_dir"])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.symlink_to(self._working)
            self._is_used = True

    def _discard_unused(self, process: int) -> None:
        # A fork by user code has this handler, too.
        if not self._is_used and os.getpid() == process:
            discard(self._place)
