"""What workers of this machine left that were killed together with their zygotes: processes that nobody ends any more.

Each zygote has a mark of its worker in its environment, which all that trials start inherit, and which the process table
shows (Linux). It names the worker's process so that no other one, of another boot or container, can be taken for it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import Final

from mqtune.core.machine import started_at
from mqtune.trainable.process.descendants import parent_of

__all__ = ["MARK", "end_leftovers", "mark_of", "own_mark"]

#: The name of the mark's environment variable.
MARK: Final = "MQTUNE_WORKER"
#: How often processes that were killed are looked at.
_LOOK_S: Final = 0.01
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
        select.select([], [], [], _LOOK_S)
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
