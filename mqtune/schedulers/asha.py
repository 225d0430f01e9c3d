"""ASHA: stop a trial early when it does badly among those that came as far.

After Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, section 3, in the variant that
stops trials at a rung instead of pausing and promoting them.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from fractions import Fraction
from numbers import Integral, Real
from typing import Any, Final

from mqtune.errors import ConfigurationError
from mqtune.schedulers.base import Scheduler
from mqtune.trial import CONTINUE, Action, Decision, Report, Trial, TrialId

__all__ = ["ASHA"]

#: The key that a report's iteration is known by; a report without it counts by its sequence number.
ITERATION: Final = "training_iteration"

#: More rungs than this are a mistaken reduction factor; with factor 2 they would span 300 orders of magnitude.
MAX_RUNGS: Final = 1000


class ASHA(Scheduler):
    """Asynchronous successive halving: stops trials early, and completes those that reach *max_t*.

    **Rungs.** They lie at ``grace_period * reduction_factor**k`` for every k that gives less than *max_t*, and at
    *max_t*. They are computed with fractions and never with logarithms, a float being taken as the decimal number
    that it is written as: (1, 243, factor 3) has rungs 1, 3, 9, 27, 81 and 243; (1, 1000, factor 10) has 1, 10, 100
    and 1000.

    **The rule.** A trial enters a rung with the metric of the first report whose time has reached the rung. Of the n
    trials that have entered, itself included, it continues if it is among the best
    ``max(1, floor(n / reduction_factor))``, else it stops. Who entered earlier is not judged again. At *max_t* every
    trial completes.

    - *Ties*: who equals the last of those best continues too.
    - *NaN* is worse than every number and equal to itself; it counts like any other score. Infinities are numbers.
    - *A report without the metric*, or with None for it, enters no rung; the next one that has it does.
    - *A report that skips rungs* enters the highest that it has reached. The trial never enters those below, as a
      score from later on would spoil a cut-off that others are measured by.
    - *Each trial enters a rung once*, across attempts. A report that was seen before, or is older than one that was,
      changes nothing and gets the decision that stands.

    **Cost.** A report that reaches no rung costs two look-ups; one that does, O(log n) in the trials of that rung.
    Memory is one number for each trial in each rung.

    Args:
        max_t: the time at which a trial completes.
        grace_period: the time of the lowest rung; no trial stops earlier.
        reduction_factor: one in this many continues; above 1, fractions allowed, 3 or 4 as a rule.
        time_attr: the key of the time in the reports: anything that starts above 0 and never goes down within an
            attempt. Under its default name, a report without it counts by its sequence number.

    Raises:
        ConfigurationError: an argument makes no sense.
    """

    def __init__(
        self,
        max_t: float,
        *,
        grace_period: float = 1,
        reduction_factor: float = 3,
        time_attr: str = ITERATION,
    ) -> None:
        self._max_t = _number("max_t", max_t)
        self._grace_period = _number("grace_period", grace_period)
        self._reduction_factor = _number("reduction_factor", reduction_factor)
        if not isinstance(time_attr, str) or not time_attr:
            raise ConfigurationError(f"ASHA: time_attr={time_attr!r} is not a name; give the time's key in the reports")
        self._time_attr = time_attr
        self._levels = _levels(self._grace_period, self._max_t, self._reduction_factor)
        self._rungs = [_Rung(_exact(self._reduction_factor)) for _ in self._levels]
        self._complete = Decision(Action.COMPLETE, f"reached max_t={self._max_t}")
        self._progress: dict[TrialId, _Progress] = {}

    @property
    def rung_levels(self) -> tuple[float, ...]:
        """The times of the rungs, upwards; the last is *max_t*."""
        return tuple(self._levels)

    @property
    def rung_sizes(self) -> tuple[int, ...]:
        """How many trials have entered each rung."""
        return tuple(rung.entered for rung in self._rungs)

    def on_report(self, trial: Trial, report: Report) -> Decision:
        """Return CONTINUE, STOP at a rung, or COMPLETE at *max_t*.

        Raises:
            ConfigurationError: the time or the metric is no number, or the time goes down within an attempt.
        """
        progress = self._progress.get(trial.id)
        if progress is None or report.attempt > progress.attempt:
            if trial.status.is_terminal:
                return CONTINUE
            progress = self._begin_attempt(report, progress)
        elif report.sequence <= progress.sequence or report.attempt < progress.attempt:
            return progress.decision
        time = report.metrics.get(self._time_attr)
        if time.__class__ is not int:
            time = self._checked_time(report, time)
        if time < progress.time:
            raise ConfigurationError(
                f"ASHA: {_place(report)} has {self._time_attr}={time!r} after {progress.time!r}; it must never go down"
            )
        progress.sequence = report.sequence
        progress.time = time
        if time >= progress.next_level:
            progress.decision = self._reach(report, progress)
        return progress.decision

    def on_trial_end(self, trial: Trial) -> None:
        """Forget where *trial* was; its scores stay in the rungs."""
        self._progress.pop(trial.id, None)

    def describe(self) -> dict[str, Any]:
        """Return its arguments."""
        return {
            "scheduler": "asha",
            "max_t": self._max_t,
            "grace_period": self._grace_period,
            "reduction_factor": self._reduction_factor,
            "time_attr": self._time_attr,
        }

    def _begin_attempt(self, report: Report, progress: _Progress | None) -> _Progress:
        if not self.metric:
            raise ConfigurationError("ASHA: there is no metric to decide on; call bind(metric, mode) first")
        if progress is None:
            progress = self._progress[report.trial] = _Progress(self._levels[0])
        progress.attempt = report.attempt
        progress.sequence = 0
        progress.time = -math.inf
        return progress

    def _checked_time(self, report: Report, time: Any) -> float:
        if isinstance(time, float) and math.isfinite(time):
            return time
        if time is None and self._time_attr == ITERATION:
            return report.sequence
        if time is None:
            keys = ", ".join(map(repr, report.metrics)) or "nothing"
            raise ConfigurationError(f"ASHA: {_place(report)} lacks the time_attr {self._time_attr!r}; it has {keys}")
        if isinstance(time, bool) or not isinstance(time, Real) or not math.isfinite(time):
            raise ConfigurationError(
                f"ASHA: {_place(report)} has {self._time_attr}={time!r}, which is no finite number"
            )
        return int(time) if isinstance(time, Integral) else float(time)

    def _reach(self, report: Report, progress: _Progress) -> Decision:
        index = bisect_right(self._levels, progress.time) - 1
        is_top = index == len(self._levels) - 1
        value = report.metrics.get(self.metric)
        if value is None:
            return self._complete if is_top else CONTINUE
        rung = self._rungs[index]
        continues = rung.enter(self._score(report, value))
        if is_top or not continues:
            progress.next_level = math.inf
        else:
            progress.next_level = self._levels[index + 1]
        if is_top:
            return self._complete
        if continues:
            return CONTINUE
        rank = f"is not among the best {rung.places} of {rung.entered}"
        return Decision(Action.STOP, f"rung {self._levels[index]}: {self.metric}={float(value):g} {rank}")

    def _score(self, report: Report, value: Any) -> float:
        """Return *value* such that lower is better."""
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ConfigurationError(f"ASHA: {_place(report)} has {self.metric}={value!r}, which is no number")
        plain = int(value) if isinstance(value, Integral) else float(value)
        return plain if self.mode == "min" else -plain


class _Progress:
    """Where a trial is: its last report, its next rung and the decision that stands."""

    __slots__ = ("attempt", "decision", "next_level", "sequence", "time")

    def __init__(self, next_level: float) -> None:
        self.attempt = 0
        self.sequence = 0
        self.time: float = -math.inf
        self.next_level = next_level
        self.decision = CONTINUE


class _Rung:
    """The scores of one rung, split into the best places and the rest so that an entry costs O(log n)."""

    __slots__ = ("_best", "_factor", "_rest", "entered")

    def __init__(self, factor: Fraction) -> None:
        self._factor = factor.as_integer_ratio()
        self.entered = 0
        #: A heap of the best scores, negated so that the worst of them is on top; at most as many as there are places.
        self._best: list[float] = []
        #: A heap of the other scores. NaN, the worst, is in neither: it is only counted.
        self._rest: list[float] = []

    @property
    def places(self) -> int:
        """How many of the trials that have entered are good enough to continue."""
        numerator, denominator = self._factor
        return max(1, self.entered * denominator // numerator)

    def enter(self, score: float) -> bool:
        """Add *score*, lower being better, and return whether it is among the best or equals the last of them."""
        self.entered += 1
        places = self.places
        if not math.isnan(score):
            heapq.heappush(self._rest, -heapq.heappushpop(self._best, -score))
        if len(self._best) < places and self._rest:
            heapq.heappush(self._best, -heapq.heappop(self._rest))
        if len(self._best) < places:
            return True  # The last of the best is NaN, and nothing is worse.
        return score <= -self._best[0]


def _place(report: Report) -> str:
    return f"report {report.sequence} of trial {report.trial}"


def _exact(value: float) -> Fraction:
    """Return the decimal number that *value* is written as: 1.1 is 11/10."""
    return Fraction(str(value))


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ConfigurationError(f"ASHA: {name}={value!r} is not a finite number")
    return int(value) if isinstance(value, Integral) else float(value)


def _levels(grace_period: float, max_t: float, reduction_factor: float) -> list[float]:
    if grace_period <= 0:
        raise ConfigurationError(f"ASHA: grace_period={grace_period!r} must be above 0; 1 is the first iteration")
    if max_t < grace_period:
        raise ConfigurationError(f"ASHA: max_t={max_t!r} must not be below grace_period={grace_period!r}")
    if reduction_factor <= 1:
        raise ConfigurationError(f"ASHA: reduction_factor={reduction_factor!r} must be above 1; 3 or 4 is usual")
    level, levels = _exact(grace_period), []
    while level < _exact(max_t):
        levels.append(level)
        level *= _exact(reduction_factor)
        if len(levels) > MAX_RUNGS:
            raise ConfigurationError(
                f"ASHA: reduction_factor={reduction_factor!r} makes more than {MAX_RUNGS} rungs; 3 or 4 is usual"
            )
    return [int(level) if level.denominator == 1 else float(level) for level in [*levels, _exact(max_t)]]
