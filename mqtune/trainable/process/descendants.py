"""Functions that list, signal, reap and adopt child processes."""

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
    """Return the process ids of this process's children, adopted ones too.

    The list is empty where the kernel does not list children (Linux does).
    """
    me = os.getpid()
    try:
        return _children(me, me)
    except FileNotFoundError:
        return []


def end_children(but: Collection[int] = ()) -> None:
    """Kill this process's children, except for those with the process ids *but*."""
    for child in own_children():
        if child not in but:
            signal_process(child, signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    """Return the process ids of a process's children.

    The list is empty where the kernel does not list children (Linux does).
    """
    children: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            children += _children(pid, int(task))
    return children


def has_descendants(pid: int, others: Collection[int]) -> bool:
    """Whether a child of this process has descendants, including orphans.

    It is True where the kernel does not list children.

    Args:
        pid: the child.
        others: this process's other children by now. Any further child of this process counts as an orphan of *pid*'s.
    """
    # Its own children come first: if one of them ends meanwhile, its children become this process's and are seen below.
    try:
        if any(_children(pid, int(task)) for task in os.listdir(f"/proc/{pid}/task")):
            return True
    except OSError:
        return True
    return any(child != pid and child not in others and not reap(child) for child in own_children())


def pidfd_of(child: int) -> int | None:
    """Return a pidfd of a child, or None without pidfds.

    The child must not have been reaped. Otherwise its process id may be another process's by now.
    """
    with contextlib.suppress(ProcessLookupError, AttributeError):
        return os.pidfd_open(child)
    return None


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group. Return whether the group has a process.

    The number 0 sends nothing. A dead process counts until it is reaped.
    """
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def signal_process(pid: int, number: int, *, pidfd: int | None = None, group: bool = False) -> bool:
    """Send a signal to a process or, if *group*, to its group. Return whether that exists.

    The number 0 sends nothing. A process that has just started may have no group yet. Then the process alone gets the
    signal, by its *pidfd* if given.
    """
    if group and signal_group(pid, number):
        return True
    with contextlib.suppress(ProcessLookupError):
        if pidfd is None:
            os.kill(pid, number)
        else:
            signal.pidfd_send_signal(pidfd, number)
        return True
    return False


def reap(child: int) -> bool:
    """Reap a child if it has ended, and return whether it has.

    It is True, too, if another thread has reaped the child.
    """
    try:
        return os.waitpid(child, os.WNOHANG) != (0, 0)
    except ChildProcessError:
        return True


def _children(pid: int, task: int) -> list[int]:
    with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
        return [int(child) for child in file.read().split()]


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent dies (Linux only).

    The number 0 cancels this. If *parent* is dead already, this process exits.

    The kernel sends the signal when the *thread* that created this process ends, so that thread must live on.
    """
    if LIBC is not None:
        LIBC.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(0)


def become_subreaper(*, on: bool = True) -> None:
    """Adopt orphaned descendants as children, or stop that if not *on* (Linux only)."""
    if LIBC is not None:
        LIBC.prctl(_PR_SET_CHILD_SUBREAPER, int(on))
