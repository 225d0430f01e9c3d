"""Caches expensive responses, so that many pages cost as much as one."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import Final, NamedTuple

from mqtune.results.frames import Row

#: A value is kept for this multiple of its computing time, which limits it to 5 % of a core.
_SHARE: Final = 20.0
#: Capacity, least recently used first out.
_MOST: Final = 200


class Made(NamedTuple):
    """A cached value, its version, and its expiry by ``time.monotonic()``."""

    value: Row
    version: Hashable
    due_at: float

    @property
    def pause_s(self) -> float:
        """Seconds until a newer one may be made."""
        return max(0.0, self.due_at - time.monotonic())


class Paced:
    """Values by key, each computed by one thread at a time.

    Args:
        at_once: the most computations at the same time; None for no limit.
    """

    def __init__(self, at_once: int | None = None) -> None:
        self._turns = contextlib.nullcontext() if at_once is None else threading.BoundedSemaphore(at_once)
        self._lock = threading.Lock()
        self._made: dict[Hashable, Made] = {}
        self.locks = Locks()

    def get(self, key: Hashable, version: Hashable, make: Callable[[], Row]) -> Made:
        """Return ``make()`` for this version, or a recent result for an earlier one."""
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
                # Moves it to the end, as most recently used.
                self._made.pop(key, None)
                self._made[key] = made
                while len(self._made) > _MOST:
                    del self._made[next(iter(self._made))]
        return made


class Locks:
    """A lock for each key, discarded when unused."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: Counter[Hashable] = Counter()
        self._locks: dict[Hashable, threading.Lock] = {}

    def __len__(self) -> int:
        """Return the number of locks in use."""
        return len(self._locks)

    @contextlib.contextmanager
    def held(self, key: Hashable) -> Iterator[None]:
        """Hold the lock of a key."""
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
