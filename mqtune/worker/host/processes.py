"""Ends processes that trials and killed workers leave, and detects kills for lack of memory.

Each zygote has its worker's mark in an environment variable, which all processes of its trials inherit. On Linux, other
processes can read it in /proc. The mark is the worker's ``describe_process()``, which is unique across boots and
containers.

A worker is a subreaper: when a zygote dies, its orphans become the worker's children, also those in other sessions.
Nobody else waits for these processes or can end them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from mqtune.core.machine import describe_process, is_gone, process_stat
from mqtune.trainable.process.descendants import become_subreaper, own_children

logger = logging.getLogger(__name__)

#: The name of the mark's environment variable.
MARK: Final = "MQTUNE_WORKER"
#: How often killed processes are checked.
_SWEEP_LOOK_S: Final = 0.01
_PREFIX: Final = f"{MARK}=".encode()


def end_leftovers(timeout_s: float) -> list[int]:
    """Kill all processes whose worker is dead, within *timeout_s* seconds. Return their ids.

    A worker calls it before it starts anything. If this process was a worker before (it restarts in place), the
    processes that it left then are killed too.

    Only processes of this user are killed (of any user if this is root), and only those of the same process namespace,
    because this process can't see whether a worker of another namespace lives. Its own ancestors are never killed.
    """
    ancestors, ended = _ancestors(), set[int]()
    deadline = time.monotonic() + timeout_s
    # Repeated until none is found: a process that is just being started has no mark yet.
    while orphans := [pid for pid in _find_leftovers() if pid not in ancestors]:
        for pid in orphans:
            _kill(pid)
        ended.update(orphans)
        if time.monotonic() >= deadline:
            break
        time.sleep(_SWEEP_LOOK_S)
    return sorted(ended)


def _ancestors() -> set[int]:
    ancestors, pid = set[int](), os.getpid()
    while pid and pid not in ancestors:
        ancestors.add(pid)
        pid = process_stat(pid)[1]
    return ancestors


def _find_leftovers() -> list[int]:
    """Return the processes that carry this process's mark, or the mark of a dead worker."""
    try:
        pids = [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]
    except OSError:
        return []
    marks = {pid: mark for pid in pids if (mark := mark_of(pid))}
    over = {mark for mark in set(marks.values()) if _is_dead_workers(mark)}
    return [pid for pid, mark in marks.items() if mark in over]


def mark_of(pid: int) -> str:
    """Return a process's mark; empty without one, or for an exited or another user's process."""
    try:
        if os.geteuid() not in (0, os.stat(f"/proc/{pid}").st_uid):
            return ""
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return ""
    return next(
        (variable[len(_PREFIX) :].decode(errors="replace") for variable in variables if variable.startswith(_PREFIX)),
        "",
    )


def _is_dead_workers(mark: str) -> bool:
    """Whether the worker with this mark is dead (in this process namespace), or is this process."""
    return mark == describe_process() or is_gone(mark)


def _kill(pid: int) -> None:
    """Kill a leftover process. Do nothing if another process has its id by now."""
    with contextlib.suppress(OSError):
        pidfd = os.pidfd_open(pid)
        try:
            if _is_dead_workers(mark_of(pid)):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)


#: How often killed processes that are not gone yet are checked; most are gone at the first check.
_LOOK_S: Final = 0.001
#: How long a killed zygote may take to die: one with gigabytes in memory takes a second.
_DIE_S: Final = 5.0


class _Zygote(Protocol):
    """A zygote's process, or an importer's."""

    pid: int

    def kill(self) -> None: ...

    def wait(self, timeout: float) -> object: ...


class Reaper:
    """Starts importers, and kills and reaps the orphans of dead zygotes. Thread-safe.

    Importers, zygotes and everything they start are in other sessions than the worker. All other children of the worker
    are in its own session. So a child in another session that is neither an importer nor a zygote is an orphan.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Importers and zygotes.
        self._zygotes: set[int] = set()
        #: The ids of trials whose zygotes are being killed, and the wait statuses of the reaped ones.
        self._awaited: set[int] = set()
        self._statuses: dict[int, int] = {}
        #: Orphans that were killed and are still there: the kernel holds them.
        self._held: set[int] = set()
        #: Children in other sessions from before the first zygote; None until this process adopts orphans.
        self._before: frozenset[int] | None = None

    @property
    def adopts(self) -> bool:
        """Whether orphans become children of this process."""
        return self._before is not None and sys.platform == "linux"

    def adopt(self) -> None:
        """Make this process a subreaper; from now on it kills and reaps orphans."""
        # If SIGCHLD is ignored, which is inherited, the kernel reaps children itself and nobody gets their statuses.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # A worker that has restarted in the same process finds its old zygotes here.
        before, mine = set(), describe_process()
        for child in own_children():
            if os.waitpid(child, os.WNOHANG) == (0, 0) and mark_of(child) != mine:
                before.add(child)
        self._before = frozenset(before)
        become_subreaper()

    def start(self, command: Sequence[str], environment: Mapping[str, str], **options: Any) -> subprocess.Popen[bytes]:
        """Start an importer in a session of its own, with this worker's mark in its environment."""
        # Under the lock: until its pid is known, another thread would take it for an orphan.
        with self._lock:
            process = subprocess.Popen(
                command, env={**environment, MARK: describe_process()}, start_new_session=True, **options
            )
            self._zygotes.add(process.pid)
        return process

    def add(self, zygote: int) -> None:
        """Register a zygote, which is no orphan when its importer dies and it becomes a child here."""
        with self._lock:
            self._zygotes.add(zygote)

    def kill(self, zygote: _Zygote, trial: int) -> int | None:
        """Kill and reap a zygote or an importer.

        *trial* is the id of its trial's process, or 0. Return the wait status of that process if it was reaped here,
        else None. The caller must call ``clear`` to kill the orphans, and the zygote itself if it still exists.
        """
        with self._lock:
            self._awaited.add(trial)
        zygote.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            zygote.wait(_DIE_S)
        with self._lock:
            self._zygotes.discard(zygote.pid)
            self._kill_and_reap()
            self._awaited.discard(trial)
            return self._statuses.pop(trial, None)

    def clear(self, timeout_s: float, whose: str = "") -> list[int]:
        """Kill and reap all orphans. Return the ids of the remaining ones after *timeout_s*.

        Killed processes that the kernel holds never run user code again, so later calls do not wait for them. If
        *whose* names their program, they are logged.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                self._kill_and_reap()
                left = {child for child in self._orphans() if self._may_kill(child)}
                self._held &= left
                new = left - self._held
                if not new:
                    return []
                if time.monotonic() >= deadline:
                    self._held |= new
                    if whose:
                        logger.error("processes %s of %s can't be killed", sorted(new), whose)
                    return sorted(new)
            time.sleep(_LOOK_S)

    def _kill_and_reap(self) -> None:
        """Kill all orphans, and reap the dead ones."""
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
        mine, orphans = os.getsid(0), []
        for child in own_children():
            if child not in self._zygotes and child not in self._before:
                with contextlib.suppress(ProcessLookupError):
                    if os.getsid(child) != mine:
                        orphans.append(child)
        return orphans

    def _may_kill(self, orphan: int) -> bool:
        # The first process of a container gets all orphans, also those of processes that others have started in it.
        return os.getpid() != 1 or mark_of(orphan) == describe_process()


#: The only reaper of this process.
reaper: Final = Reaper()


CGROUPS: Final = Path("/sys/fs/cgroup")
#: Counts for the whole machine; used where this process's cgroup has no counter.
OF_THE_MACHINE: Final = Path("/proc/vmstat")
_COUNTER: Final = "oom_kill"


def find_counter(cgroups: Path = CGROUPS, machine: Path = OF_THE_MACHINE) -> Path | None:
    """Return the file that counts kills for lack of memory in this cgroup, or on the machine.

    Return None without one.
    """
    candidates = [folder / "memory.events" for folder in _groups(cgroups)]
    return next((path for path in [*candidates, machine] if _count(path) is not None), None)


def memory_limit() -> float:
    """Return the worker's memory limit in bytes: the smaller of the machine's and the cgroup's."""
    limits = [float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))]
    for folder in _groups(CGROUPS):
        with contextlib.suppress(OSError, ValueError):
            limits.append(float((folder / "memory.max").read_text(encoding="ascii").replace("max", "inf")))
    return min(limits)


def _groups(cgroups: Path) -> list[Path]:
    """Return the folders that may be those of this process's cgroup."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    groups = [line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
    # In a container the cgroup is mounted at the root, although its path outside is another one.
    return [cgroups / group for group in [*groups, ""]]


class MemoryKills:
    """Detects whether the kernel has just killed a process for lack of memory.

    It compares the kernel's counter with its value some seconds ago. The counter does not name the process, so every
    death by SIGKILL within these seconds counts as such a kill.

    Args:
        counter: a file with a line ``oom_kill N``; None without one.
    """

    def __init__(self, counter: Path | None) -> None:
        self._counter = counter
        self._before = self._last = _count(counter)

    def read_counter(self) -> None:
        """Remember the counter; called with each heartbeat."""
        self._before, self._last = self._last, _count(self._counter)

    def happened(self) -> bool:
        """Whether the counter has gone up since the second last heartbeat."""
        now = _count(self._counter)
        return now is not None and self._before is not None and now > self._before


def _count(counter: Path | None) -> int | None:
    try:
        lines = [] if counter is None else counter.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    pairs = [line.partition(" ") for line in lines]
    return next((int(number) for name, _, number in pairs if name == _COUNTER and number.isdecimal()), None)
