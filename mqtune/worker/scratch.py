"""Folders for what attempts need while they run; they are gone when their attempt, or their worker, is."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from mqtune.core.machine import is_gone, is_here, process_mark
from mqtune.core.trial import AttemptEnd
from mqtune.journal.base import Claim

__all__ = ["Scratch"]

#: Below the log folder, which several workers of one or of many machines may share.
_FOLDER: Final = ".scratch"
#: How many words follow the host in the name of a worker's folder: process, place and start.
_PARTS: Final = 3
#: What the name of a worker's lock ends with.
_LOCK: Final = ".lock"
#: How often a worker sets its lock's time, and after how long without that one of another machine has gone: clocks may differ
#: by minutes, and a machine that slept for so long has lost its attempts.
_KEEP_S: Final = 60.0
_LEFT_S: Final = 3600.0
#: Below an attempt's folder: its working directory, if that is not kept.
_WORK: Final = "work"


class Scratch:
    """The folders of one worker's attempts; they are made by who first needs them.

    Several machines may share the log folder, and have the same name. So a worker holds a lock on a file of its own there, whose
    time it sets now and then; what is beside it is another's to delete only when that has gone.

    Args:
        log_root: the worker's log folder.
        clock: the time in seconds since the epoch.
    """

    def __init__(self, log_root: Path, clock: Callable[[], float] = time.time) -> None:
        self._log_root = log_root.absolute()
        self._all = self._log_root / _FOLDER
        self._clock = clock
        # Without spaces: scripts get this path.
        self._mine = self._all / f"{socket.gethostname()}.{os.getpid()}.{process_mark()}"
        self._lock: int | None = None
        self._kept_at = -math.inf

    def sweep(self) -> None:
        """Delete what workers left that were killed, and lock this one's own."""
        with contextlib.suppress(OSError):
            # An earlier worker of this process, which has begun anew, has left it.
            shutil.rmtree(self._mine, ignore_errors=True)
            self._all.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self._lock_of(self._mine), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(OSError):
            for path in list(self._all.iterdir()):
                worker = path.with_name(path.name.removesuffix(_LOCK))
                if worker != self._mine and self._is_left(worker):
                    shutil.rmtree(worker, ignore_errors=True)
                    self._lock_of(worker).unlink(missing_ok=True)

    def keep(self) -> None:
        """Say that this worker lives; to be called every few seconds."""
        now = time.monotonic()
        if self._lock is not None and now - self._kept_at > _KEEP_S:
            self._kept_at = now
            with contextlib.suppress(OSError):
                os.utime(self._lock)

    def _lock_of(self, worker: Path) -> Path:
        return worker.with_name(worker.name + _LOCK)

    def _is_left(self, worker: Path) -> bool:
        """Whether the worker whose folder this is has gone; not when there can be doubt."""
        host, *parts = worker.name.rsplit(".", 3)
        process = "process {} on {} ({}.{})".format(parts[0], host, *parts[1:]) if len(parts) == _PARTS else ""
        if is_here(process):
            return is_gone(process)
        # It is of another machine, container or boot. A network's file system may keep locks to one machine, so its lock must
        # have been left alone for long, too.
        try:
            with self._lock_of(worker).open("rb") as lock:
                if self._clock() - os.fstat(lock.fileno()).st_mtime < _LEFT_S:
                    return False
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

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
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            with contextlib.suppress(OSError):
                self._lock_of(self._mine).unlink()
        with contextlib.suppress(OSError):
            self._all.rmdir()
