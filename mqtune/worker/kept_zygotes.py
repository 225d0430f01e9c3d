"""The zygotes that a slot keeps: those of the last few trainables that it ran, so that experiments can take turns without importing again."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mqtune.trainable.process.descendants import children_of
from mqtune.worker.zygotes import ZygoteHandle, ZygoteKey

__all__ = ["KEPT", "KeptZygotes"]

#: How many a slot keeps at most: more experiments than that rarely share a worker at once.
KEPT: Final = 4
#: What a process has open that uses a GPU: NVIDIA's devices, AMD's compute interface, and render nodes.
DEVICE_FILES: Final = ("/dev/nvidia", "/dev/kfd", "/dev/dri/render")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class _Kept:
    """A zygote, how many turns use it, and when the last of them began or ended."""

    zygote: ZygoteHandle
    used_at: float
    users: int = 1


class KeptZygotes:
    """One slot's zygotes. Any thread may call it; one that is in use is never closed.

    Args:
        environment: what they have in their environment beside the worker's.
        log: where their output goes.
        most_bytes: how much memory of their own those that are not in use may have together; one may always stay.
        on_close: called when one was closed.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        log: Path,
        *,
        most_bytes: float,
        on_close: Callable[[ZygoteHandle], None] = lambda _: None,
    ) -> None:
        self._environment = environment
        self._log = log
        self._most_bytes = most_bytes
        self._on_close = on_close
        self._lock = threading.Lock()
        #: By key, the one that was used last at the end.
        self._kept: dict[ZygoteKey, _Kept] = {}

    @property
    def all(self) -> list[ZygoteHandle]:
        """Those that there are, the one that was used last at the end."""
        with self._lock:
            return [kept.zygote for kept in self._kept.values()]

    def use(self, key: ZygoteKey, wait: Callable[[], None]) -> ZygoteHandle:
        """Return a zygote for this trainable and the code as it is now: a kept one, or a new one.

        Args:
            key: what it serves.
            wait: returns when the turn before is over; called before one that it may use is replaced.
        """
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and kept.zygote.is_current():
                kept.users += 1
                kept.used_at = time.monotonic()
                self._kept[key] = self._kept.pop(key)
                return kept.zygote
        if kept is not None:
            wait()
            self.drop(kept.zygote)
        zygote = ZygoteHandle(key, self._environment, self._log)
        with self._lock:
            self._kept[key] = _Kept(zygote, time.monotonic())
        self.trim()
        return zygote

    def leave(self, zygote: ZygoteHandle) -> None:
        """Say that a turn has ended that used it."""
        with self._lock:
            kept = self._kept.get(zygote.key)
            if kept is not None and kept.zygote is zygote:
                kept.users -= 1
                kept.used_at = time.monotonic()

    def drop(self, zygote: ZygoteHandle) -> None:
        """Close one, unless that was done before."""
        with self._lock:
            kept = self._kept.get(zygote.key)
            if kept is None or kept.zygote is not zygote:
                return
            del self._kept[zygote.key]
        zygote.close()
        self._on_close(zygote)

    def trim(self, idle_s: float | None = None) -> None:
        """Close those that are too many, have too much memory, or were not used for *idle_s* seconds; those used last stay."""
        now = time.monotonic()
        with self._lock:
            count = len(self._kept)
            idle = [kept for kept in self._kept.values() if not kept.users]
        sizes = [_own_bytes(kept.zygote) for kept in idle]
        total = sum(sizes)
        for kept, size in zip(idle, sizes, strict=True):
            is_too_much = count > 1 and (count > KEPT or total > self._most_bytes)
            if is_too_much or (idle_s is not None and now - kept.used_at > idle_s):
                self._drop_unused(kept)
                count, total = count - 1, total - size

    def may_have_stayed(self, but: ZygoteHandle | None) -> bool:
        """Whether any but one may keep a process that has run a trial."""
        return any(zygote.key.reuse for zygote in self.all if zygote is not but)

    def make_way(self, but: ZygoteHandle | None) -> None:
        """Close all but one that may keep a process, which cleans up then, or have a GPU open: a trial is to have its memory to itself."""
        with self._lock:
            others = [kept for kept in self._kept.values() if kept.zygote is not but and not kept.users]
        for kept in others:
            if kept.zygote.key.reuse or _has_device(kept.zygote.pid):
                self._drop_unused(kept)

    def drop_all(self) -> None:
        """Close all; none may run a trial."""
        for zygote in self.all:
            self.drop(zygote)

    def end_all(self) -> None:
        """Have all kill whatever they run, and end, without waiting for it."""
        for zygote in self.all:
            zygote.end()

    def _drop_unused(self, kept: _Kept) -> None:
        with self._lock:
            if kept.users or self._kept.get(kept.zygote.key) is not kept:
                return
            del self._kept[kept.zygote.key]
        kept.zygote.close()
        self._on_close(kept.zygote)


def _own_bytes(zygote: ZygoteHandle) -> int:
    """Return what a zygote, and a process of it that stays, have in memory for themselves; 0 where the kernel doesn't tell.

    Its spare is left out, which shares nearly all with it.
    """
    pids = [zygote.pid, *(children_of(zygote.pid) if zygote.key.reuse else ())]
    return sum(map(_unshared_bytes, pids))


def _unshared_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared = map(int, file.read().split()[:3])
    except (OSError, ValueError):
        return 0
    return (resident - shared) * _PAGE_BYTES


def _has_device(pid: int) -> bool:
    """Whether a process, or a child of it, has a GPU open; False where the kernel doesn't tell."""
    return any(path.startswith(DEVICE_FILES) for each in [pid, *children_of(pid)] for path in _open_files(each))


def _open_files(pid: int) -> Iterable[str]:
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for number in numbers:
        with contextlib.suppress(OSError):
            yield os.readlink(f"/proc/{pid}/fd/{number}")
