"""Virtual time, and what is to happen in it."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final

__all__ = ["STARTS_AT", "Agenda", "Order", "SimulatedClock"]

#: When virtual time begins, in seconds since the epoch: the same moment in every run, the first of 2000 (UTC).
STARTS_AT: Final = 946_684_800.0


class SimulatedClock:
    """Virtual time; it passes when its agenda is carried out, and only then."""

    def __init__(self) -> None:
        self.now = 0.0

    def time(self) -> float:
        """Return the virtual time in seconds since the epoch (UTC)."""
        return STARTS_AT + self.now

    def monotonic(self) -> float:
        """Return the virtual seconds since the beginning."""
        return self.now


class Order(IntEnum):
    """What comes first of what is due at one instant."""

    HEARD = 0  #: what a worker hears from the driver, and what it does about it
    DONE = 1  #: what a worker and its trial do by themselves


class Agenda:
    """What is to happen, by time; at one instant by its order, and then by when it was noted down. O(log n) for each."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self._events: list[tuple[float, int, int, Callable[[Any], None], Any]] = []
        self._number = 0

    def __bool__(self) -> bool:
        return bool(self._events)

    def note(self, at: float, order: Order, action: Callable[[Any], None], subject: Any = None) -> None:
        """Have ``action(subject)`` called at *at*, by the monotonic clock."""
        self._number += 1
        heapq.heappush(self._events, (at, order, self._number, action, subject))

    def carry_out_instant(self, until: float) -> bool:
        """Go to the next instant at which something is due, up to *until*, and do all that was due then when it began.

        What comes of it at the same instant is the next call's, so that a driver may decide in between. Returns False,
        with the time at *until*, when there is nothing up to then.
        """
        events = self._events
        if not events or events[0][0] > until:
            self._clock.now = max(self._clock.now, until)
            return False
        now = self._clock.now = events[0][0]
        last = self._number
        while events and events[0][0] <= now and events[0][2] <= last:
            _, _, _, action, subject = heapq.heappop(events)
            action(subject)
        return True
