"""Keeps what is dear to make, so that any number of pages cost what one does, and one costs a small share of a core."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import Final, NamedTuple

from mqtune.results.frames import Row

#: How many times as long as it took to make a thing it is kept, although there is news: 5 % of a core.
_SHARE: Final = 20.0
#: The most things that are kept, those asked for last.
_MOST: Final = 200


class Made(NamedTuple):
    """A thing, the version that it is of, and when it may be made anew (of ``time.monotonic()``)."""

    value: Row
    version: Hashable
    due_at: float

    @property
    def pause_s(self) -> float:
        """In how many seconds there may be a newer one."""
        return max(0.0, self.due_at - time.monotonic())


class Paced:
    """Things by their keys, each made by one thread at a time.

    Args:
        at_once: the most of them that are made at the same time; None for any number.
    """

    def __init__(self, at_once: int | None = None) -> None:
        self._turns = contextlib.nullcontext() if at_once is None else threading.BoundedSemaphore(at_once)
        self._lock = threading.Lock()
        self._made: dict[Hashable, Made] = {}
        self.locks = Locks()

    def get(self, key: Hashable, version: Hashable, make: Callable[[], Row]) -> Made:
        """Return what *make* returns for this version, or what it returned for an earlier one a moment ago."""
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
                # It is the last one that was asked for.
                self._made.pop(key, None)
                self._made[key] = made
                while len(self._made) > _MOST:
                    del self._made[next(iter(self._made))]
        return made


class Locks:
    """A lock for each key, which is there as long as somebody holds it or waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: Counter[Hashable] = Counter()
        self._locks: dict[Hashable, threading.Lock] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._locks)

    @contextlib.contextmanager
    def held(self, key: Hashable) -> Iterator[None]:
        """Hold the lock of a key, which no other thread holds meanwhile."""
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
