"""Parents and descendants of processes: who they are, who dies with whom, and to whom orphans come."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Collection
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
#: The C library, opened once and not in each trial; None where prctl is not available.
LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None


def own_children() -> list[int]:
    """Return this process's children, adopted ones too; none where the kernel does not list them (Linux does)."""
    me = os.getpid()
    try:
        return _children(me, me)
    except FileNotFoundError:
        return []


def end_children(but: Collection[int] = ()) -> None:
    """Kill this process's children, except for some."""
    for child in own_children():
        if child not in but:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    """Return the children of a process; none where the kernel does not list them (Linux does)."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            found += _children(pid, int(task))
    return found


def has_descendants(pid: int, others: Collection[int]) -> bool:
    """Whether a child of this process has descendants; True where the kernel does not list children.

    Args:
        pid: the child.
        others: further children of this process that are not descended from it.
    """
    # Its own children first: when one of them ends, its children come to this process.
    try:
        if any(_children(pid, int(task)) for task in os.listdir(f"/proc/{pid}/task")):
            return True
    except OSError:
        return True
    for child in own_children():
        if child != pid and child not in others:
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(child, os.WNOHANG) == (0, 0):
                    return True
    return False


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group, 0 for none; return whether the group has a process, a dead one that is not reaped included."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _children(pid: int, task: int) -> list[int]:
    with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
        return [int(child) for child in file.read().split()]


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent dies (Linux only); 0 takes that back.

    The signal comes when the *thread* that created this process ends, so that must be a thread that stays.
    """
    if LIBC is not None:
        LIBC.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(0)


def become_subreaper(*, on: bool = True) -> None:
    """Have orphaned descendants become children of this process, which can reap them then (Linux only); no further ones unless *on*."""
    if LIBC is not None:
        LIBC.prctl(_PR_SET_CHILD_SUBREAPER, int(on))
