"""Temporary folders of attempts.

They are deleted when their attempt or their worker has ended.
"""

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
from mqtune.journal.base import Claim

#: Below the log folder, which several workers, also of several machines, may share.
_FOLDER: Final = ".scratch"
#: How many parts follow the host in the name of a worker's folder: its process id, boot and container, and start time.
_PARTS: Final = 3
#: Suffix of a worker's lock file.
_LOCK: Final = ".lock"
#: The interval in which a worker touches its lock file. A worker of another machine counts as gone if its file was not
#: touched for ``_LEFT_S``: clocks may differ by minutes, and a machine that slept for longer has lost its attempts.
_KEEP_S: Final = 60.0
_LEFT_S: Final = 3600.0


class Scratch:
    """The temporary folders of a worker's attempts. A process creates one when it needs it.

    Several machines, even of the same name, may share the log folder. So each worker locks a file of its own there, and
    touches it from time to time. Another worker deletes its folders only when it is certainly gone.

    Args:
        log_root: the worker's log folder.
        clock: the time in seconds since the epoch.
    """

    def __init__(self, log_root: Path, clock: Callable[[], float] = time.time) -> None:
        self._all = log_root.absolute() / _FOLDER
        self._clock = clock
        #: No other process of any machine has this name. It has no spaces: scripts get the path.
        self._mine = self._all / f"{socket.gethostname()}.{os.getpid()}.{process_mark()}"
        self._lock: int | None = None
        self._kept_at = -math.inf
        #: Called with the name of a worker that is gone, before its folder is deleted.
        self.on_discard: list[Callable[[str], None]] = []

    @property
    def name(self) -> str:
        """A name that no other worker with this log folder has."""
        return self._mine.name

    def sweep(self) -> None:
        """Delete the folders of killed workers, and lock this worker's own folder."""
        with contextlib.suppress(OSError):
            # This process may have left the folder before it restarted in place.
            shutil.rmtree(self._mine, ignore_errors=True)
            self._all.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self._lock_of(self._mine), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for worker in self.left():
            self.discard(worker)

    def left(self) -> list[Path]:
        """Return the folders of workers that are certainly gone."""
        with contextlib.suppress(OSError):
            workers = {path.with_name(path.name.removesuffix(_LOCK)) for path in self._all.iterdir()}
            return sorted(worker for worker in workers - {self._mine} if self._is_left(worker))
        return []

    def discard(self, worker: Path) -> bool:
        """Delete the folder of a worker that is gone, and return whether all of it is deleted."""
        for notify in self.on_discard:
            notify(worker.name)
        shutil.rmtree(worker, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._lock_of(worker).unlink(missing_ok=True)
        return not (os.path.lexists(worker) or os.path.lexists(self._lock_of(worker)))

    def keep(self) -> None:
        """Touch the lock file from time to time, so that other workers see that this one lives.

        It is called with each heartbeat.
        """
        now = time.monotonic()
        if self._lock is not None and now - self._kept_at > _KEEP_S:
            self._kept_at = now
            with contextlib.suppress(OSError):
                os.utime(self._lock)

    def _lock_of(self, worker: Path) -> Path:
        return worker.with_name(worker.name + _LOCK)

    def _is_left(self, worker: Path) -> bool:
        """Whether the worker that owns this folder is certainly gone."""
        host, *parts = worker.name.rsplit(".", 3)
        process = "process {} on {} ({}.{})".format(parts[0], host, *parts[1:]) if len(parts) == _PARTS else ""
        if is_here(process):
            return is_gone(process)
        # It belongs to another machine, container or boot. A network file system may not share locks between machines,
        # so the lock file must also be old.
        try:
            with self._lock_of(worker).open("rb") as lock:
                if self._clock() - os.fstat(lock.fileno()).st_mtime < _LEFT_S:
                    return False
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def hidden(self, name: str) -> Path:
        """Return the path of this worker's folder *name*, for files that belong to no attempt."""
        # No experiment's name begins with a dot.
        return self._mine / f".{name}"

    def folder(self, experiment: str, claim: Claim) -> Path:
        """Return the path of an attempt's folder."""
        return self._mine / f"{experiment}.{claim.trial}.{claim.attempt}.{claim.mark}"

    def remove(self, folder: Path) -> None:
        """Delete an attempt's folder; a no-op if it does not exist."""
        if os.path.lexists(folder):
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Release the lock, and delete this worker's folder if it is empty."""
        with contextlib.suppress(OSError):
            self._mine.rmdir()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            with contextlib.suppress(OSError):
                self._lock_of(self._mine).unlink()
        with contextlib.suppress(OSError):
            self._all.rmdir()
