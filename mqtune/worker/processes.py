"""What workers of this machine left that were killed together with their zygotes: processes that nobody ends any more.

Each zygote has a mark of its worker in its environment, which all that trials start inherit, and which the process table
shows (Linux). It names the worker's process so that no other one, of another boot or container, can be taken for it.
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
from typing import Any, Final

from mqtune.core.machine import started_at
from mqtune.trainable.process.descendants import become_subreaper, own_children, parent_of

__all__ = [
    "MARK",
    "MemoryKills",
    "Reaper",
    "end_leftovers",
    "find_counter",
    "mark_of",
    "memory_limit",
    "own_mark",
    "reaper",
]

logger = logging.getLogger(__name__)

#: The name of the mark's environment variable.
MARK: Final = "MQTUNE_WORKER"
#: How often processes that were killed are looked at.
_SWEEP_LOOK_S: Final = 0.01
_PREFIX: Final = f"{MARK}=".encode()


def own_mark() -> str:
    """Return this worker's mark."""
    me = os.getpid()
    return f"{me}.{started_at(me)}.{_namespace()}"


def end_leftovers(timeout_s: float) -> list[int]:
    """Kill all processes whose worker is dead, and return them; it takes *timeout_s* seconds at the longest.

    A worker calls it before it starts anything. If this process was a worker before, what that one left is killed too.

    Only processes of this user are touched, or of any user where this is root's, and only those of the same process
    namespace: whether the worker of any other one lives can't be seen from here. What this process itself is descended from stays.
    """
    spared, ended = _own_line(), set[int]()
    deadline = time.monotonic() + timeout_s
    # Again, until none is found: one that is just being started has no mark yet.
    while found := [pid for pid in _left() if pid not in spared]:
        for pid in found:
            _kill(pid)
        ended.update(found)
        if time.monotonic() >= deadline:
            break
        time.sleep(_SWEEP_LOOK_S)
    return sorted(ended)


def _own_line() -> set[int]:
    line, pid = set[int](), os.getpid()
    while pid and pid not in line:
        line.add(pid)
        pid = parent_of(pid)
    return line


def _left() -> list[int]:
    """Return the processes that carry this process's mark, or that of a dead worker."""
    try:
        pids = [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]
    except OSError:
        return []
    marks = {pid: mark for pid in pids if (mark := mark_of(pid))}
    over = {mark for mark in set(marks.values()) if _is_over(mark)}
    return [pid for pid, mark in marks.items() if mark in over]


def mark_of(pid: int) -> str:
    """Return a process's mark, if it has one, runs, and may be ended by this user; else nothing."""
    try:
        if os.geteuid() not in (0, os.stat(f"/proc/{pid}").st_uid):
            return ""
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return ""
    return next((each[len(_PREFIX) :].decode(errors="replace") for each in variables if each.startswith(_PREFIX)), "")


def _is_over(mark: str) -> bool:
    """Whether the worker with this mark was of this process namespace, and is no more, or is this one."""
    if mark == own_mark():
        return True
    pid, _, rest = mark.partition(".")
    begun, _, namespace = rest.partition(".")
    if not (pid.isdecimal() and begun.isdecimal() and namespace == _namespace()):
        return False
    return started_at(int(pid)) != int(begun)


def _namespace() -> str:
    """Return what tells the numbers of processes that are seen here from those of other containers."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _kill(pid: int) -> None:
    """Kill a process, unless its number has become another's since it was found."""
    with contextlib.suppress(OSError):
        pidfd = os.pidfd_open(pid)
        try:
            if _is_over(mark_of(pid)):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)


#: How often killed processes that are not gone yet are looked at; most are gone at the first look.
_LOOK_S: Final = 0.001
#: How long a killed zygote may take to die: one with gigabytes in memory takes a second.
_DIE_S: Final = 5.0


class Reaper:
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
            time.sleep(_LOOK_S)

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


#: A process has one reaper.
reaper: Final = Reaper()


_CGROUPS: Final = Path("/sys/fs/cgroup")
#: It counts for the whole machine, and is there where this process's group has no counter of its own.
_OF_THE_MACHINE: Final = Path("/proc/vmstat")
_COUNTER: Final = "oom_kill"


def find_counter() -> Path | None:
    """Return the file that counts such kills among this worker's processes, or on the machine; None where there is none."""
    candidates = [folder / "memory.events" for folder in _groups()]
    return next((path for path in [*candidates, _OF_THE_MACHINE] if _count(path) is not None), None)


def memory_limit() -> float:
    """Return how many bytes this worker's processes may have: the machine's memory, or less in a group with a limit."""
    limits = [float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))]
    for folder in _groups():
        with contextlib.suppress(OSError, ValueError):
            limits.append(float((folder / "memory.max").read_text(encoding="ascii").replace("max", "inf")))
    return min(limits)


def _groups() -> list[Path]:
    """Return the folders that may be those of this process's group."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    groups = [line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
    # In a container its group is where the tree begins, whatever its path is outside.
    return [_CGROUPS / group for group in [*groups, ""]]


class MemoryKills:
    """Compares the counter with what it was some seconds ago, so that a death costs a look and a trial nothing.

    A death by SIGKILL in those seconds is taken for such a kill, also where the machine kills two at once.

    Args:
        counter: a file with a line ``oom_kill N``; None where there is none.
    """

    def __init__(self, counter: Path | None) -> None:
        self._counter = counter
        self._before = self._last = _count(counter)

    def look(self) -> None:
        """Note the counter; to be called now and then."""
        self._before, self._last = self._last, _count(self._counter)

    def happened(self) -> bool:
        """Whether it has gone up since the look before the last one."""
        now = _count(self._counter)
        return now is not None and self._before is not None and now > self._before


def _count(counter: Path | None) -> int | None:
    try:
        lines = [] if counter is None else counter.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    pairs = [line.partition(" ") for line in lines]
    return next((int(number) for name, _, number in pairs if name == _COUNTER and number.isdecimal()), None)
