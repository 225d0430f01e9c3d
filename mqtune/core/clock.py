"""Interface of the driver's clock: the server's, or a simulated one."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """A clock. Everything in the driver that waits uses one."""

    def time(self) -> float:
        """Return the time in seconds since the epoch (UTC). It may jump if someone sets the clock."""

    def monotonic(self) -> float:
        """Return seconds since a fixed moment. It never decreases."""
