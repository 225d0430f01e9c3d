"""Rungs: the times at which trials are measured against each other, and who is how good there; in exact arithmetic."""

from __future__ import annotations

import heapq
import math
from fractions import Fraction
from typing import Any, Final

from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import TrialId
from mqtune.schedulers.arguments import exact, plain

__all__ = ["Rank", "Rung", "Waiting", "levels_of", "rank_of"]

#: More rungs than this are a mistaken reduction factor; with factor 2 they would span 300 orders of magnitude.
MAX_RUNGS: Final = 1000

#: Lower is better: whether the score is NaN, which is worst; the score, lower being better; what breaks ties.
Rank = tuple[int, float, int]


def rank_of(score: float, order: int = 0) -> Rank:
    """Return the rank of a score, lower being better; of equal scores the one with the lower *order* is better."""
    return (1, 0.0, order) if math.isnan(score) else (0, score, order)


def levels_of(scheduler: str, grace_period: float, max_t: float, reduction_factor: float) -> list[float]:
    """Return ``grace_period * reduction_factor**k`` for every k that gives less than *max_t*, and *max_t*.

    Raises:
        ConfigurationError: rungs can't be made of these numbers, which are finite.
    """
    if grace_period <= 0:
        raise ConfigurationError(
            f"{scheduler}: grace_period={grace_period!r} must be above 0; 1 is the first iteration"
        )
    if max_t < grace_period:
        raise ConfigurationError(f"{scheduler}: max_t={max_t!r} must not be below grace_period={grace_period!r}")
    if reduction_factor <= 1:
        raise ConfigurationError(f"{scheduler}: reduction_factor={reduction_factor!r} must be above 1; 3 or 4 is usual")
    level, levels = exact(grace_period), []
    while level < exact(max_t):
        levels.append(level)
        level *= exact(reduction_factor)
        if len(levels) > MAX_RUNGS:
            raise ConfigurationError(
                f"{scheduler}: reduction_factor={reduction_factor!r} makes more than {MAX_RUNGS} rungs; 3 or 4 is usual"
            )
    return [plain(level) for level in [*levels, exact(max_t)]]


class Rung:
    """The ranks of those who have entered one rung, of which one in *factor* is among the best, and at least *least*.

    They are split into the best and the rest, so that an entry costs O(log n).
    """

    __slots__ = ("_best", "_factor", "_least", "_rest", "arrivals", "entered")

    def __init__(self, factor: Fraction, *, least: int) -> None:
        self._factor = factor.as_integer_ratio()
        self._least = least
        self.entered = 0
        #: How many have ever entered, those that were taken out again included.
        self.arrivals = 0
        #: A heap of the best ranks, negated so that the worst of them is on top; as many as there are places.
        self._best: list[Rank] = []
        #: A heap of the others.
        self._rest: list[Rank] = []

    @property
    def places(self) -> int:
        """How many of those who have entered are the best."""
        numerator, denominator = self._factor
        return max(self._least, self.entered * denominator // numerator)

    def enter(self, rank: Rank) -> None:
        """Add a rank."""
        self.entered += 1
        self.arrivals += 1
        heapq.heappush(self._rest, _negated(heapq.heappushpop(self._best, _negated(rank))))
        if len(self._best) < self.places:
            heapq.heappush(self._best, _negated(heapq.heappop(self._rest)))

    def withdraw(self, rank: Rank) -> None:
        """Take a rank out that has entered, as if it never had; O(n), for what happens rarely."""
        self.entered -= 1
        ranks = [*self._rest, *map(_negated, self._best)]
        ranks.remove(rank)
        ranks.sort()
        # Sorted lists are heaps.
        self._best = sorted(map(_negated, ranks[: self.places]))
        self._rest = ranks[self.places :]

    def is_among_best(self, rank: Rank) -> bool:
        """Whether *rank* is among the best, or equals the last of them."""
        return bool(self._best) and _negated(rank) >= self._best[0]


def _negated(rank: Rank) -> Rank:
    is_nan, score, order = rank
    return -is_nan, -score, -order


class Waiting:
    """Trials in the order of their keys, of which any may be taken out; each step costs O(log n), amortised."""

    __slots__ = ("_heap", "_keys")

    def __init__(self) -> None:
        self._heap: list[tuple[Any, TrialId]] = []
        self._keys: dict[TrialId, Any] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, trial: TrialId) -> bool:
        return trial in self._keys

    @property
    def first(self) -> TrialId | None:
        """The trial with the lowest key, or None."""
        return self._heap[0][1] if self._heap else None

    def key(self, trial: TrialId) -> Any:
        """Return the key that *trial* waits under."""
        return self._keys[trial]

    def add(self, trial: TrialId, key: Any) -> None:
        """Put in a trial that does not wait yet."""
        self._keys[trial] = key
        heapq.heappush(self._heap, (key, trial))

    def discard(self, trial: TrialId) -> None:
        """Take a trial out, if it waits."""
        self._keys.pop(trial, None)
        # What was taken out further down goes when it comes up, so that looking at the first changes nothing.
        while self._heap and self._keys.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
