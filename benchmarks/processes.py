"""Process trees through /proc: who is up, what they hold in memory, and an end for those left over."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["Memory", "await_descendants", "become_subreaper", "descendants", "end_descendants", "memory_of"]

PR_SET_CHILD_SUBREAPER: Final = 36
LOOK_S: Final = 0.02


class Memory(NamedTuple):
    """What processes hold, in MB (10^6 bytes): RSS counts shared pages once a process, PSS shares them out."""

    rss_mb: float
    pss_mb: float
    processes: int


def become_subreaper() -> None:
    """Become the parent of every orphan among our descendants, so that no daemon gets out of sight."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def descendants(pid: int) -> list[int]:
    """Return the ids of all processes below *pid*, zombies left out."""
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


def memory_of(pids: list[int]) -> Memory:
    """Add up what the processes hold; one that ends meanwhile counts nothing."""
    rss = pss = count = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
            fields = {name: value for name, _, value in (line.partition(":") for line in lines)}
            rss += int(fields["Rss"].split()[0])
            pss += int(fields["Pss"].split()[0])
            count += 1
    return Memory(rss * 1024 / 1e6, pss * 1024 / 1e6, count)


def await_descendants(patience_s: float) -> None:
    """Wait until nothing is left below this process, which must be a subreaper, for so long at most; reap what has ended."""
    deadline = time.monotonic() + patience_s
    while descendants(os.getpid()) and time.monotonic() < deadline:
        _reap()
        time.sleep(LOOK_S)
    _reap()


def end_descendants() -> list[str]:
    """Kill whatever is left below this process, reap it, and return the command lines."""
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
