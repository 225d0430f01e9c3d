"""What processes there are below a trial's, and below its zygote, to which orphans come."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

from mqtune.core.machine import process_stat

__all__ = ["children_of", "group_exists", "has_descendants", "own_children", "parent_of"]


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
