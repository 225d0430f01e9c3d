"""Where time comes from: the system, or a simulation."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """Tells the time; all waiting in the driver goes by one of these."""

    def time(self) -> float:
        """Return the time in seconds since the epoch (UTC); it may step."""

    def monotonic(self) -> float:
        """Return seconds since some moment; it never goes back."""


class SystemClock:
    """This machine's clock."""

    def time(self) -> float:
        """Return the time in seconds since the epoch (UTC)."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds since some moment; it never goes back."""
        return time.monotonic()
