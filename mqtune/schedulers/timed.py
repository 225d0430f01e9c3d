"""Base class and helpers of schedulers that decide at certain times of a trial."""

from __future__ import annotations

import heapq
import math
from abc import abstractmethod
from fractions import Fraction
from numbers import Integral, Real
from typing import Any, Final, Generic, Protocol, TypeVar

from mqtune.core.checks import name
from mqtune.core.errors import ConfigurationError
from mqtune.core.scope import ScopedValue, checked_scope
from mqtune.core.text import name_in_words, names_in_words
from mqtune.core.trial import CONTINUE, ITERATION, Decision, Report, Trial, TrialId
from mqtune.schedulers.base import Scheduler


class _Scores(Protocol):
    def withdraw(self, score: Any, /) -> None:
        """Remove a score."""


class Progress:
    """The progress of a trial: its last report, its last decision, and when to decide next."""

    __slots__ = ("attempt", "counted", "decision", "next_level", "scoped", "sequence", "time")

    def __init__(self, next_level: float) -> None:
        self.attempt = 0
        self.sequence = 0
        self.time: float = -math.inf
        #: The time at which the scheduler decides next.
        self.next_level = next_level
        self.decision = CONTINUE
        #: The trial's scores, each with the comparison that counts it, to remove them if the trial is abandoned.
        self.counted: list[tuple[_Scores, Any]] = []
        #: For each metric its mean or best value so far, if *scope* is not "last".
        self.scoped: list[ScopedValue] = []


P = TypeVar("P", bound=Progress)
_LAST: Final = "last"


class TimedScheduler(Scheduler, Generic[P]):
    """Tracks the time of each trial's reports, and decides when a trial reaches its next level.

    For a late or repeated report, or one before the next level, the trial's last decision is returned. That costs two
    dict look-ups. A trial's progress is forgotten when the trial ends.

    Args:
        time_attr: the reports' key of the time. Its value must be above 0, and never decrease within an attempt. If it
            is ``training_iteration`` and a report lacks it, the sequence number counts.
        scope: which value of the metric counts, see ``ScopedValue``.
    """

    def __init__(self, time_attr: str, scope: str = _LAST) -> None:
        self._time_attr = name(self._name, "time_attr", time_attr, "the time's key in the reports")
        self._scope = checked_scope(self._name, scope)
        self._is_scoped = scope != _LAST
        self._progress: dict[TrialId, P] = {}

    def on_report(self, trial: Trial, report: Report) -> Decision:
        """Return a new decision if *trial* has reached its next level, else its last decision.

        Raises:
            ConfigurationError: the time or the metric is not a number, or the time decreases within an attempt.
        """
        # A flood of reports is the driver's hot path.
        progress, attempt, sequence = self._progress.get(trial.id), report.attempt, report.sequence
        if progress is None or attempt > progress.attempt:
            if trial.status.is_terminal:
                return CONTINUE
            progress = self._begin(trial, attempt)
        elif sequence <= progress.sequence or attempt < progress.attempt:
            return progress.decision
        time = report.metrics.get(self._time_attr)
        if time.__class__ is not int:
            time = self._checked_time(report, time)
        if time < progress.time:
            raise ConfigurationError(
                f"{self._name}: {_place(report)} has {self._time_attr}={time!r} after {progress.time!r}; "
                "it must never go down"
            )
        progress.sequence = sequence
        progress.time = time
        if self._is_scoped:
            report = self._apply_scope(report, progress)
        if time >= progress.next_level:
            progress.decision = self._reach(trial, report, progress)
        return progress.decision

    def on_abandon(self, trial: Trial) -> None:
        """Remove the scores of *trial* from all comparisons. Earlier decisions stay."""
        progress = self._progress.get(trial.id)
        while progress is not None and progress.counted:
            scores, score = progress.counted.pop()
            scores.withdraw(score)

    def on_trial_end(self, trial: Trial) -> None:
        """Forget the progress of *trial*. Its scores still count."""
        self._progress.pop(trial.id, None)

    def _apply_scope(self, report: Report, progress: P) -> Report:
        """Return the report with the mean or best values so far in place of its own metrics."""
        values = None if self.objective is None else self.objective.values(report.metrics)
        if self.objective is None or values is None:
            return report
        if not progress.scoped:
            progress.scoped = [ScopedValue(self._scope, mode) for mode in self.objective.modes]
        judged = [scoped.add(value) for scoped, value in zip(progress.scoped, values, strict=True)]
        return report._replace(metrics={**report.metrics, **dict(zip(self.objective.metrics, judged, strict=True))})

    @property
    def time_attr(self) -> str:
        return self._time_attr

    def _judged(self, metric: str) -> str:
        return metric if self._scope == _LAST else f"{self._scope} of {metric}"

    @property
    def _name(self) -> str:
        return type(self).__name__

    @abstractmethod
    def _enrol(self, trial: Trial) -> P:
        """Return the initial progress of a new trial."""

    @abstractmethod
    def _reach(self, trial: Trial, report: Report, progress: P) -> Decision:
        """Decide on a trial that has reached its next level, and set its following level."""

    def _queued(self, trial: Trial) -> P | None:
        """Return the new progress of *trial* for its queued attempt.

        None if that has reported already.
        """
        known = self._progress.get(trial.id)
        if known is not None and trial.attempt.number <= known.attempt:
            return None
        progress = self._begin(trial, trial.attempt.number)
        progress.decision = CONTINUE
        return progress

    def _begin(self, trial: Trial, attempt: int) -> P:
        if not self.metric:
            raise ConfigurationError(f"{self._name}: there is no metric to decide on; call bind(metric, mode) first")
        progress = self._progress.get(trial.id)
        if progress is None:
            progress = self._progress[trial.id] = self._enrol(trial)
        progress.attempt = attempt
        progress.sequence = 0
        progress.time = -math.inf
        return progress

    def _checked_time(self, report: Report, time: object) -> float:
        if isinstance(time, float) and math.isfinite(time):
            return time
        if time is None and self._time_attr == ITERATION:
            return report.sequence
        if time is None:
            keys = names_in_words(report.metrics) or "nothing"
            raise ConfigurationError(
                f"{self._name}: {_place(report)} lacks the time_attr {self._time_attr!r}; it has {keys}"
            )
        if isinstance(time, bool) or not isinstance(time, Real) or not math.isfinite(time):
            raise ConfigurationError(
                f"{self._name}: {_place(report)} has {self._time_attr}={name_in_words(time)}, which is not a finite "
                "number"
            )
        return int(time) if isinstance(time, Integral) else float(time)

    def _rank_of(self, report: Report, order: int = 0) -> Rank | None:
        """Return the rank of a report, or None if it lacks the metric.

        Of two equal ranks, the one with the lower *order* is better.
        """
        value = report.metrics.get(self.metric)
        if value is None:
            return None
        return rank_of(self._score(report, value), order, self._violation(report))

    def _violation(self, report: Report) -> float:
        """Return by how much a report violates outcome constraints, or 0."""
        return 0.0 if self.objective is None else self.objective.violation(report.metrics)

    def _score(self, report: Report, value: object) -> float:
        """Return *value*, negated in mode "max", so that lower is better."""
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ConfigurationError(
                f"{self._name}: {_place(report)} has {self.metric}={value!r}, which is not a number"
            )
        plain = int(value) if isinstance(value, Integral) else float(value)
        return plain if self.mode == "min" else -plain


def _place(report: Report) -> str:
    return f"report {report.sequence} of trial {report.trial}"


class Milestones:
    """The multiples of *interval* that are at least *first*. Arithmetic is exact.

    Args:
        interval: the time between milestones, above 0.
        first: the lowest possible milestone.
        has_zero: whether time 0 may be a milestone.
    """

    def __init__(self, interval: float, first: float, *, has_zero: bool = False) -> None:
        self._interval = exact(interval)
        self._lowest = max(0 if has_zero else 1, math.ceil(exact(first) / self._interval))
        self.lowest = plain(self._lowest * self._interval)

    def number(self, time: float) -> int:
        """Return the number of whole intervals up to a time."""
        return exact(time) // self._interval

    def after(self, time: float) -> float:
        """Return the first milestone after a time."""
        return plain(max(self._lowest, self.number(time) + 1) * self._interval)


#: The rank of a report; lower is better. The first item is 0, or 1 if the report violates an outcome constraint, or 2
#: if its metric is NaN. The second is the score, or the violation. The third decides ties.
Rank = tuple[int, float, int]
#: A rank, or the values of several metrics. Lower is better.
AnyRank = tuple[float, ...]


def rank_of(score: float, order: int = 0, violation: float = 0.0) -> Rank:
    """Return the rank of a report, see ``Rank``.

    A report without a violation is better than any with one, and a smaller violation is better. After Deb, "An
    efficient constraint handling method for genetic algorithms", 2000, section 3.

    Args:
        score: the metric, negated in mode "max".
        order: decides ties; lower is better.
        violation: by how much the report violates outcome constraints, or 0.
    """
    if math.isnan(score):
        return 2, 0.0, order
    return (1, violation, order) if violation else (0, score, order)


def keeps_to_constraints(rank: Rank) -> bool:
    """Return whether the report with this rank satisfies all outcome constraints."""
    return rank[0] != 1


#: Trials with lower keys come first.
_Key = tuple[float, ...]


class Waiting:
    """A priority queue of trials, from which any trial can be removed.

    Operations cost O(log n), amortised.
    """

    __slots__ = ("_heap", "_keys")

    def __init__(self) -> None:
        self._heap: list[tuple[_Key, TrialId]] = []
        self._keys: dict[TrialId, _Key] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, trial: TrialId) -> bool:
        return trial in self._keys

    @property
    def first(self) -> TrialId | None:
        """The trial with the lowest key, or None."""
        return self._heap[0][1] if self._heap else None

    @property
    def last(self) -> TrialId | None:
        """The trial with the highest key, or None. This costs O(n)."""
        return max(self._keys, key=self._keys.__getitem__, default=None)

    def add(self, trial: TrialId, key: _Key) -> None:
        self._keys[trial] = key
        heapq.heappush(self._heap, (key, trial))

    def discard(self, trial: TrialId) -> None:
        self._keys.pop(trial, None)
        # A removed entry stays in the heap until it comes first. Remove it here, so that ``first`` changes nothing.
        while self._heap and self._keys.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)


def exact(value: float) -> Fraction:
    """Return the exact fraction of the decimal number that *value* is written as: 11/10 for 1.1."""
    return Fraction(str(value))


def plain(value: float | Fraction) -> float:
    """Return *value* as an int if it is whole, else as the nearest float."""
    return int(value) if value == int(value) else float(value)
