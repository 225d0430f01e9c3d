"""The processes below this worker: its zygotes, and what comes to it when one of them dies.

A worker is a subreaper, so whatever a zygote leaves is the worker's child from then on: its trial, its spare, and every
descendant of its trials, also those in sessions of their own. Nobody else waits for these, and nobody else can end them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mqtune.trainable.process.descendants import become_subreaper, own_children
from mqtune.worker.leftovers import MARK, mark_of, own_mark

__all__ = ["Family", "family"]

logger = logging.getLogger(__name__)

#: How often killed processes that are not gone yet are looked at; most are gone at the first look.
_LOOK_S: Final = 0.001
#: How long a killed zygote may take to die: one with gigabytes in memory takes a second.
_DIE_S: Final = 5.0


class Family:
    """This process's children; any thread may call it.

    What a zygote starts is never in the worker's session, and whatever else the worker starts is. So a child in another
    session that is no zygote has been left by one that died.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._zygotes: set[int] = set()
        #: Trials of zygotes that are being killed, and how those had ended that were dead before.
        self._awaited: set[int] = set()
        self._statuses: dict[int, int] = {}
        #: Orphans that were killed and did not go.
        self._held: set[int] = set()
        #: Children of another session that were there before the first zygote; None while no orphans come here.
        self._before: frozenset[int] | None = None

    @property
    def adopts(self) -> bool:
        """Whether orphans come to this process."""
        return self._before is not None and sys.platform == "linux"

    def adopt(self) -> None:
        """Have orphans come to this process; from now on it kills and reaps them."""
        # Where this is ignored, which is inherited, the kernel reaps in our place and tells nobody how children ended.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # A worker that has started anew in the same process finds its old zygotes here.
        before, mine = set(), own_mark()
        for child in own_children():
            if os.waitpid(child, os.WNOHANG) == (0, 0) and mark_of(child) != mine:
                before.add(child)
        self._before = frozenset(before)
        become_subreaper()

    def start(self, command: Sequence[str], environment: Mapping[str, str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a zygote, in a session of its own, with this worker's mark in its environment."""
        # Nobody may see it, and take it for an orphan, before its number is known.
        with self._lock:
            process = subprocess.Popen(
                command, env={**environment, MARK: own_mark()}, start_new_session=True, **options
            )
            self._zygotes.add(process.pid)
        return process

    def kill(self, zygote: subprocess.Popen[bytes], trial: int) -> int | None:
        """Kill a zygote, if it lives, and reap it; return the wait status of its trial, if that had ended before.

        What it has left, and itself if it can't be killed, is for ``clear``.
        """
        with self._lock:
            self._awaited.add(trial)
        zygote.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            zygote.wait(_DIE_S)
        with self._lock:
            self._zygotes.discard(zygote.pid)
            self._pass()
            self._awaited.discard(trial)
            return self._statuses.pop(trial, None)

    def clear(self, timeout_s: float) -> list[int]:
        """Kill and reap all orphans; return those that are not gone after *timeout_s* seconds.

        Those the kernel holds will never run user code again, so nobody waits for them twice.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                self._pass()
                left = {child for child in self._orphans() if self._may_kill(child)}
                self._held &= left
                new = left - self._held
                if not new:
                    return []
                if time.monotonic() >= deadline:
                    self._held |= new
                    return sorted(new)
            select.select([], [], [], _LOOK_S)

    def _pass(self) -> None:
        """Kill all orphans, and reap those that are dead."""
        for child in self._orphans():
            if self._may_kill(child):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(child, os.WNOHANG)
                if pid in self._awaited:
                    self._statuses[pid] = status

    def _orphans(self) -> list[int]:
        if self._before is None:
            return []
        mine, found = os.getsid(0), []
        for child in own_children():
            if child not in self._zygotes and child not in self._before:
                with contextlib.suppress(ProcessLookupError):
                    if os.getsid(child) != mine:
                        found.append(child)
        return found

    def _may_kill(self, orphan: int) -> bool:
        # To the first process of a container come all orphans, also those of whoever has entered it.
        return os.getpid() != 1 or mark_of(orphan) == own_mark()


#: A process has one family.
family: Final = Family()
