"""Folders for what attempts need while they run; they are gone when their attempt, or their worker, is."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final

from mqtune.journal.base import Claim
from mqtune.trial import AttemptEnd

__all__ = ["Scratch"]

#: Below the log folder, which several workers of one or of many machines may share.
_FOLDER: Final = ".scratch"
#: Below an attempt's folder: its working directory, if that is not kept.
_WORK: Final = "work"


class Scratch:
    """The folders of one worker's attempts; they are made by who first needs them.

    Args:
        log_root: the worker's log folder.
        host: this machine's name.
    """

    def __init__(self, log_root: Path, host: str) -> None:
        self._log_root = log_root.absolute()
        self._all = self._log_root / _FOLDER
        self._host = host
        self._mine = self._all / f"{host}.{os.getpid()}"

    def sweep(self) -> None:
        """Delete what workers of this machine left that were killed."""
        with contextlib.suppress(OSError):
            for folder in list(self._all.iterdir()):
                host, _, pid = folder.name.rpartition(".")
                if host == self._host and pid.isdigit() and (folder == self._mine or not _lives(int(pid))):
                    shutil.rmtree(folder, ignore_errors=True)

    def folder(self, experiment: str, claim: Claim) -> Path:
        """Return where an attempt's folder is to be."""
        return self._mine / f"{experiment}.{claim.trial}.{claim.attempt}.{claim.token[:8]}"

    def working_dir(self, experiment: str, claim: Claim, keep: str) -> Path:
        """Return where an attempt's working directory is to be, if it has one of its own; it is a new one for each claim.

        Args:
            experiment: the experiment's name.
            claim: the attempt.
            keep: "never", "failed" or "always": one that may be kept lies beside the attempt's output.
        """
        if keep == "never":
            return self.folder(experiment, claim) / _WORK
        # An earlier experiment of the same name, on another broker, may have left folders of the same attempts.
        return self._log_root / experiment / claim.trial / f"{claim.attempt}-{claim.token[:8]}"

    def leave(self, working_dir: Path, keep: str, end: AttemptEnd) -> None:
        """Delete the working directory of an attempt that ended so, unless it is to be kept and there is something in it."""
        if keep == "always" or (keep == "failed" and end in (AttemptEnd.FAILED, AttemptEnd.LOST)):
            with contextlib.suppress(OSError):
                working_dir.rmdir()
        else:
            self.remove(working_dir)

    def remove(self, folder: Path) -> None:
        """Delete an attempt's folder, if it was ever made."""
        if os.path.lexists(folder):
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Delete this worker's folder, unless something is still in it."""
        with contextlib.suppress(OSError):
            self._mine.rmdir()
        with contextlib.suppress(OSError):
            self._all.rmdir()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
