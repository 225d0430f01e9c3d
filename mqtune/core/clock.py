"""Where time comes from: the server, or a simulation."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Clock"]


class Clock(Protocol):
    """Tells the time; all waiting in the driver goes by one of these."""

    def time(self) -> float:
        """Return the time in seconds since the epoch (UTC); it may step."""

    def monotonic(self) -> float:
        """Return seconds since some moment; it never goes back."""
