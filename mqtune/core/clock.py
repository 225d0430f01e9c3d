"""The clock that the driver uses: the server's, or a simulated one."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Tells the time; everything in the driver that waits uses a clock."""

    def time(self) -> float:
        """Return the time in seconds since the epoch (UTC); it may step."""

    def monotonic(self) -> float:
        """Return seconds since some moment; it never goes back."""
