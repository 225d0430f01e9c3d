"""A running quantile."""

from __future__ import annotations

import heapq
import math


class Quantile:
    """A running quantile of numbers without NaN. Each addition costs O(log n).

    Args:
        ratio: numerator and denominator of the quantile, which is above 0 and below 1.
    """

    __slots__ = ("_high", "_low", "_ratio")

    def __init__(self, ratio: tuple[int, int]) -> None:
        self._ratio = ratio
        #: A heap of the numbers up to the quantile, negated.
        self._low: list[float] = []
        #: A heap of the numbers above the quantile.
        self._high: list[float] = []

    @property
    def count(self) -> int:
        return len(self._low) + len(self._high)

    @property
    def value(self) -> float:
        """The quantile, interpolated linearly between the two nearest numbers.

        Infinity without numbers. If one of the two is infinite, the higher one is returned.
        """
        if not self._low:
            return math.inf
        numerator, denominator = self._ratio
        above = (self.count - 1) * numerator % denominator / denominator
        if not above:
            return -self._low[0]
        low, high = -self._low[0], self._high[0]
        if low == high or not (math.isfinite(low) and math.isfinite(high)):
            # Rounding would give a result outside two equal numbers.
            return high
        return low * (1 - above) + high * above

    def add(self, number: float) -> None:
        heapq.heappush(self._high, -heapq.heappushpop(self._low, -number))
        if len(self._low) < self._lower(self.count):
            heapq.heappush(self._low, -heapq.heappop(self._high))

    def _lower(self, count: int) -> int:
        """Return the number of elements of ``_low`` for *count* numbers in all."""
        numerator, denominator = self._ratio
        return (count - 1) * numerator // denominator + 1 if count else 0

    def withdraw(self, number: float) -> None:
        """Remove a number that was added. This is rare, and costs O(n)."""
        numbers = sorted([*(-low for low in self._low), *self._high])
        numbers.remove(number)
        lower = self._lower(len(numbers))
        self._low, self._high = [-low for low in reversed(numbers[:lower])], numbers[lower:]
