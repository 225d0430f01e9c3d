"""A cache of expensive responses, so that many open pages cost as much as one."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import Final, NamedTuple

from mqtune.results.frames import Row

#: A value is cached for this multiple of its computing time. So its computation takes at most 5 % of a core.
_SHARE: Final = 20.0
#: The most cached values. The least recently used one is dropped.
_MOST: Final = 200


class Made(NamedTuple):
    """A cached value. A newer version may be computed at *due_at*, by ``time.monotonic()``."""

    value: Row
    version: Hashable
    due_at: float

    @property
    def pause_s(self) -> float:
        """Seconds until a newer version may be computed."""
        return max(0.0, self.due_at - time.monotonic())


class Paced:
    """Caches values by key. A key's value is computed by one thread at a time.

    Args:
        at_once: the most computations at the same time, or None without a limit.
    """

    def __init__(self, at_once: int | None = None) -> None:
        self._turns = contextlib.nullcontext() if at_once is None else threading.BoundedSemaphore(at_once)
        self._lock = threading.Lock()
        self._made: dict[Hashable, Made] = {}
        self.locks = Locks()

    def get(self, key: Hashable, version: Hashable, make: Callable[[], Row]) -> Made:
        """Return ``make()``, or a cached value of this version or, if recent, of an earlier one."""
        with self.locks.held(key):
            with self._lock:
                made = self._made.get(key)
            if made is None or (made.version != version and made.pause_s <= 0):
                with self._turns:
                    began = time.monotonic()
                    value = make()
                    now = time.monotonic()
                made = Made(value, version, now + _SHARE * (now - began))
            with self._lock:
                # The end of the dict has the most recently used value.
                self._made.pop(key, None)
                self._made[key] = made
                while len(self._made) > _MOST:
                    del self._made[next(iter(self._made))]
        return made


class Locks:
    """A lock for each key. Locks that are not in use are discarded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: Counter[Hashable] = Counter()
        self._locks: dict[Hashable, threading.Lock] = {}

    def __len__(self) -> int:
        """Return the number of locks in use."""
        return len(self._locks)

    @contextlib.contextmanager
    def held(self, key: Hashable) -> Iterator[None]:
        """Hold the lock of a key within the context."""
        with self._lock:
            self._users[key] += 1
            lock = self._locks.setdefault(key, threading.Lock())
        try:
            with lock:
                yield
        finally:
            with self._lock:
                self._users[key] -= 1
                if not self._users[key]:
                    del self._users[key], self._locks[key]
