"""What processes there are below a trial's, and below its zygote, to which orphans come."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Collection
from typing import Final

from mqtune.core.machine import process_stat

__all__ = [
    "LIBC",
    "become_subreaper",
    "children_of",
    "die_with_parent",
    "group_exists",
    "has_descendants",
    "own_children",
    "parent_of",
]

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
#: Opened once, and not in each trial.
LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None


def own_children() -> list[int]:
    """Return this process's children, adopted ones too, where the kernel tells (Linux)."""
    me = os.getpid()
    try:
        return _children(me, me)
    except FileNotFoundError:
        return []


def children_of(pid: int) -> list[int]:
    """Return the children of a process, where the kernel tells (Linux)."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            found += _children(pid, int(task))
    return found


def has_descendants(pid: int, others: Collection[int]) -> bool:
    """Whether a child of this process has descendants; True where the kernel doesn't tell.

    Args:
        pid: the child.
        others: further children of this process that are not descended from it.
    """
    # Its own children first: theirs come to this process when the one between ends.
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


def group_exists(group: int) -> bool:
    """Whether there is a process, be it a dead one, in this process group."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def parent_of(pid: int) -> int:
    """Return the process id of a process's parent; 0 when there is none to be seen."""
    return process_stat(pid)[1]


def _children(pid: int, task: int) -> list[int]:
    with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
        return [int(child) for child in file.read().split()]


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent dies (Linux only; 0: no longer).

    The signal comes when the *thread* that created this process ends, so that thread must be one that stays.
    """
    if LIBC is not None:
        LIBC.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(0)


def become_subreaper() -> None:
    """Have orphaned descendants come to this process, where the kernel can (Linux), so that it can bury them."""
    if LIBC is not None:
        LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
