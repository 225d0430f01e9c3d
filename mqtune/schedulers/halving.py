"""Base classes of the halving schedulers, with their rungs and brackets."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import ClassVar, Final, TypeVar

from mqtune.core.checks import flag, number, whole_number
from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import CONTINUE, ITERATION, Action, Decision
from mqtune.schedulers.timed import AnyRank, Progress, TimedScheduler, Waiting, exact, plain

#: Largest number of rungs. More rungs mean that the reduction factor is a mistake.
MAX_RUNGS: Final = 1000


def levels_of(scheduler: str, grace_period: float, max_t: float, reduction_factor: float) -> list[float]:
    """Return the times of the rungs in ascending order.

    They are ``grace_period * reduction_factor**k`` for k = 0, 1, … as long as this is less than *max_t*, and *max_t*.

    Args:
        scheduler: the scheduler's name, for errors.
        grace_period: the lowest rung.
        max_t: the highest rung.
        reduction_factor: the ratio of two rungs.

    Raises:
        ConfigurationError: the numbers give no rungs, or more than ``MAX_RUNGS``.
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
    """The ranks of the trials that have entered a rung, split into the best and the rest.

    The best are one in *factor* of the trials, but at least *least*. Both parts are heaps, so an entry costs O(log n).
    """

    __slots__ = ("_best", "_factor", "_least", "_rest", "arrivals", "coming", "entered", "name", "waiting")

    def __init__(self, name: str, factor: Fraction, *, least: int) -> None:
        self.name = name
        self._factor = factor.as_integer_ratio()
        self._least = least
        #: Number of trials in the rung, without withdrawn ones.
        self.entered = 0
        #: Number of entries so far, with withdrawn ones.
        self.arrivals = 0
        #: A heap of the best ranks, negated so that the worst of them is on top.
        self._best: list[AnyRank] = []
        self._rest: list[AnyRank] = []
        #: The trials that are paused at this rung.
        self.waiting = Waiting()
        #: Number of trials that are on their way to this rung, or about to pause there.
        self.coming = 0

    @property
    def places(self) -> int:
        """Number of trials that count as the best."""
        numerator, denominator = self._factor
        return max(self._least, self.entered * denominator // numerator)

    def enter(self, rank: AnyRank) -> None:
        self.entered += 1
        self.arrivals += 1
        heapq.heappush(self._rest, _negated(heapq.heappushpop(self._best, _negated(rank))))
        if len(self._best) < self.places:
            heapq.heappush(self._best, _negated(heapq.heappop(self._rest)))

    def withdraw(self, rank: AnyRank) -> None:
        """Remove a rank, as if its trial had never entered. This is rare, and costs O(n)."""
        self.entered -= 1
        ranks = [*self._rest, *map(_negated, self._best)]
        ranks.remove(rank)
        ranks.sort()
        self._best = sorted(map(_negated, ranks[: self.places]))
        self._rest = ranks[self.places :]

    def is_among_best(self, rank: AnyRank) -> bool:
        """Return whether *rank* is among the best, or equal to the worst of them."""
        return bool(self._best) and _negated(rank) >= self._best[0]


class CostRung(Rung):
    """A rung whose best trials together cost at most one *factor*-th of all its trials' costs."""

    __slots__ = ("_spent", "_total", "costs")

    def __init__(self, name: str, factor: Fraction) -> None:
        super().__init__(name, factor, least=0)
        #: The cost of each trial, by its rank.
        self.costs: dict[AnyRank, Fraction] = {}
        #: The cost of all trials, and of the best ones.
        self._total = Fraction(0)
        self._spent = Fraction(0)

    @property
    def places(self) -> int:
        return len(self._best)

    def enter(self, rank: AnyRank) -> None:
        self.entered += 1
        self.arrivals += 1
        self._total += self.costs[rank]
        if self.is_among_best(rank):
            heapq.heappush(self._best, _negated(rank))
            self._spent += self.costs[rank]
        else:
            heapq.heappush(self._rest, rank)
        self._balance()

    def withdraw(self, rank: AnyRank) -> None:
        self.entered -= 1
        ranks = [*self._rest, *map(_negated, self._best)]
        ranks.remove(rank)
        self._total -= self.costs.pop(rank)
        self._best, self._rest, self._spent = [], sorted(ranks), Fraction(0)
        self._balance()

    def _balance(self) -> None:
        numerator, denominator = self._factor
        limit = self._total * denominator / numerator
        while self._spent > limit:
            worst = _negated(heapq.heappop(self._best))
            self._spent -= self.costs[worst]
            heapq.heappush(self._rest, worst)
        while self._rest and self._spent + self.costs[self._rest[0]] <= limit:
            next_best = heapq.heappop(self._rest)
            self._spent += self.costs[next_best]
            heapq.heappush(self._best, _negated(next_best))


def _negated(rank: AnyRank) -> AnyRank:
    is_nan, score, order = rank
    return -is_nan, -score, -order


P = TypeVar("P", bound=Progress)


class Halving(TimedScheduler[P]):
    """Base of schedulers that let one in *reduction_factor* trials continue at each rung."""

    later: ClassVar[Mapping[str, object]] = {"stop_last_trials": True, "scope": "last"}

    def __init__(
        self,
        max_t: float,
        *,
        grace_period: float = 1,
        reduction_factor: float = 3,
        stop_last_trials: bool = True,
        scope: str = "last",
        time_attr: str = ITERATION,
    ) -> None:
        self._max_t = number(self._name, "max_t", max_t)
        self._grace_period = number(self._name, "grace_period", grace_period)
        self._reduction_factor = number(self._name, "reduction_factor", reduction_factor)
        super().__init__(time_attr, scope)
        self._levels = levels_of(self._name, self._grace_period, self._max_t, self._reduction_factor)
        self._stop_last_trials = flag(self._name, "stop_last_trials", stop_last_trials)
        complete = Decision(Action.COMPLETE, f"reached max_t={self._max_t}")
        self._at_max_t = complete if self._stop_last_trials else CONTINUE


class Bracket:
    """The rungs of one bracket. Its trials begin at the rung with index *lowest*."""

    __slots__ = ("lowest", "part", "rungs", "trials")

    def __init__(self, lowest: int, rungs: list[Rung], part: int) -> None:
        self.lowest = lowest
        self.rungs = rungs
        #: Brackets get trials in proportion to their parts.
        self.part = part
        #: Number of trials that have joined.
        self.trials = 0


def trials_of_bracket(s: int, highest: int, factor: Fraction) -> int:
    """Return the number of trials of bracket *s* in the Hyperband paper, where it is n.

    *highest* is the number of the bracket with the most trials, s_max in the paper.
    """
    return math.ceil(Fraction(highest + 1, s + 1) * factor**s)


class InBracket(Progress):
    """The progress of a trial in a bracket."""

    __slots__ = ("bracket",)

    def __init__(self, bracket: Bracket, next_level: float) -> None:
        super().__init__(next_level)
        self.bracket = bracket


B = TypeVar("B", bound=InBracket)


class RungHalving(Halving[B]):
    """Base of schedulers that compare a trial with the trials that entered its rung before."""

    later: ClassVar = {**Halving.later, "brackets": 1}
    #: Number of trials that count as the best of a rung, at least.
    _least: ClassVar[int]

    def __init__(
        self,
        max_t: float,
        *,
        grace_period: float = 1,
        reduction_factor: float = 3,
        brackets: int = 1,
        stop_last_trials: bool = True,
        scope: str = "last",
        time_attr: str = ITERATION,
    ) -> None:
        super().__init__(
            max_t,
            grace_period=grace_period,
            reduction_factor=reduction_factor,
            stop_last_trials=stop_last_trials,
            scope=scope,
            time_attr=time_attr,
        )
        self._brackets = whole_number(self._name, "brackets", brackets, 1)
        if self._brackets > len(self._levels):
            raise ConfigurationError(
                f"{self._name}: brackets={brackets!r} is too large; give at most {len(self._levels)}, as the rungs are "
                f"{self._levels}"
            )
        self._all_brackets = [self._make_bracket(number) for number in range(self._brackets)]

    @property
    def rung_levels(self) -> tuple[float, ...]:
        """The times of the rungs in ascending order. The last one is *max_t*."""
        return tuple(self._levels)

    @property
    def rung_sizes(self) -> tuple[int, ...]:
        """Number of trials that have entered each rung, in all brackets, without abandoned trials."""
        rungs = zip(*(bracket.rungs for bracket in self._all_brackets), strict=True)
        return tuple(sum(rung.entered for rung in same_level) for same_level in rungs)

    def _make_bracket(self, number: int) -> Bracket:
        prefix, factor = f"bracket {number}, " if self._brackets > 1 else "", exact(self._reduction_factor)
        unit = "iteration" if self.time_attr == ITERATION else self.time_attr
        rungs = [self._rung(f"{prefix}at {unit} {level}", factor) for level in self._levels]
        highest = len(rungs) - 1
        return Bracket(number, rungs, trials_of_bracket(highest - number, highest, factor))

    def _rung(self, name: str, factor: Fraction) -> Rung:
        return Rung(name, factor, least=self._least)

    def _next_bracket(self) -> Bracket:
        """Add a trial to the bracket that is furthest behind its share, and return the bracket."""
        trials = sum(bracket.trials for bracket in self._all_brackets) + 1
        parts = sum(bracket.part for bracket in self._all_brackets)
        chosen = max(self._all_brackets, key=lambda bracket: bracket.part * trials - bracket.trials * parts)
        chosen.trials += 1
        return chosen

    def _enter(self, progress: B, rung: Rung, rank: AnyRank) -> None:
        rung.enter(rank)
        progress.counted.append((rung, rank))
