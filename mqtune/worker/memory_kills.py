"""How much memory there is, and whether the system has just killed a process because it ran out: what tells that death from others."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

__all__ = ["MemoryKills", "find_counter", "memory_limit"]

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
