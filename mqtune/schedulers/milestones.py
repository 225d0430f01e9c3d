"""Milestones: the multiples of an interval, at each of which a trial is looked at once."""

from __future__ import annotations

import math

from mqtune.core.errors import ConfigurationError
from mqtune.schedulers.arguments import exact, number, plain

__all__ = ["Milestones"]


class Milestones:
    """The multiples of *interval* that are not below *first*, without rounding.

    Raises:
        ConfigurationError: *interval* is not above 0, or *first* below it.
    """

    def __init__(self, scheduler: str, interval: tuple[str, float], first: tuple[str, float]) -> None:
        self.interval, self.first = number(scheduler, *interval), number(scheduler, *first)
        if self.interval <= 0:
            raise ConfigurationError(f"{scheduler}: {interval[0]}={interval[1]!r} must be above 0")
        if self.first < 0:
            raise ConfigurationError(f"{scheduler}: {first[0]}={first[1]!r} must not be below 0")
        self._interval = exact(self.interval)
        self._lowest = max(1, math.ceil(exact(self.first) / self._interval))
        self.lowest = plain(self._lowest * self._interval)

    def number(self, time: float) -> int:
        """Return which multiple is the last that *time* has reached."""
        return exact(time) // self._interval

    def after(self, time: float) -> float:
        """Return the first milestone that lies behind *time*."""
        return plain(max(self._lowest, self.number(time) + 1) * self._interval)
