"""What processes there are below a trial's, and below its zygote, to which orphans come."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

__all__ = ["children_of", "group_exists", "has_descendants", "own_children", "parent_of", "started_at"]


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
    return _stat(pid)[1]


def started_at(pid: int) -> int:
    """Return when a process was started, in the kernel's ticks since the boot; 0 when there is none, or it is dead."""
    state, _, began = _stat(pid)
    return 0 if state in ("Z", "X") else began


def _stat(pid: int) -> tuple[str, int, int]:
    """Return a process's state, its parent and its start; the same numbers mean the same process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # Behind the name, in which there may be anything.
            fields = file.read().rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[1]), int(fields[19])
    except (OSError, IndexError, ValueError):
        return "", 0, 0


def _children(pid: int, task: int) -> list[int]:
    with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
        return [int(child) for child in file.read().split()]
