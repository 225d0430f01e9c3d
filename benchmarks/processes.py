"""Process trees through /proc: their processes, their memory, and an end for orphans."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Final

__all__ = ["await_descendants", "become_subreaper", "descendants", "end_descendants", "pss_mb"]

PR_SET_CHILD_SUBREAPER: Final = 36
POLL_S: Final = 0.02


def become_subreaper() -> None:
    """Become the parent of all orphaned descendants, so that daemons are found too."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def descendants(pid: int) -> list[int]:
    """Return the ids of all processes below *pid*, without zombies."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            # The command name may hold spaces and brackets: the fields start after its last bracket.
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(entry.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def pss_mb(pids: list[int]) -> float:
    """Return the processes' memory in MB (10^6 bytes), with each shared page counted once."""
    kib = 0
    for pid in pids:
        # A process may end meanwhile.
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            kib += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kib * 1024 / 1e6


def await_descendants(patience_s: float) -> None:
    """Wait until all descendants of this process have ended. Give up after *patience_s*."""
    deadline = time.monotonic() + patience_s
    while descendants(os.getpid()) and time.monotonic() < deadline:
        _reap()
        time.sleep(POLL_S)
    _reap()


def end_descendants() -> list[str]:
    """Kill and reap all descendants, and return their command lines."""
    ended = []
    while left := descendants(os.getpid()):
        for pid in left:
            with contextlib.suppress(OSError):
                ended.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
                os.kill(pid, signal.SIGKILL)
        _reap()
    _reap()
    return ended


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
