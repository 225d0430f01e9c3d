"""The median stopping rule: stop a trial whose best so far is worse than what the others had on average by then.

After Golovin et al., "Google Vizier: A Service for Black-Box Optimization", KDD 2017, section 3.2.2.
"""

from __future__ import annotations

import heapq
import math
from functools import partial

from mqtune.core.checks import number, positive, whole_number
from mqtune.core.trial import CONTINUE, ITERATION, Action, Decision, Report, Trial
from mqtune.schedulers.timed import Milestones, Progress, TimedScheduler


class MedianStopping(TimedScheduler["_Course"]):
    """Stops a trial whose best value so far is worse than the median of the others' running averages at that time.

    **Milestones.** They are the multiples of *interval* from *grace_period* on, in exact arithmetic. A trial comes to a
    milestone with the first report whose time has reached it.

    **The rule.** At a milestone a trial's running average is the mean of its values from *grace_period* on, up to and
    with that report, and its best the lowest (or highest, by the mode) of all its values up to there. If at least *min_samples* other trials have come to the milestone
    before it, and its best is strictly worse than the median of their running averages there, it stops. Whether it
    stops or not, its own average counts from then on for those that come later. Trials that came earlier are not judged again.

    - *Scores that count*: one for each trial that has come to the milestone, also of those that stopped, failed or ended
      since; the scores of a trial that is abandoned are removed. A trial that ended before the milestone has none there.
    - *Median*: of an even number of averages the mean of the middle two; where one of those is infinite, the worse.
    - *Ties*: a trial that equals the median continues.
    - *NaN* is left out of a trial's average and best. A trial that had nothing else counts as infinitely bad.
    - *A report without the metric*, or with None for it, has no value, and the milestone waits for the next one that
      has it.
    - *A report that skips milestones* comes to the highest that it has reached, and to none of those below.
    - *A late or repeated report* changes nothing and gets the decision in force.
    - *A trial that fails, or is paused by hand, and runs again* goes on with its average and its best: reports of the
      new attempt at times that an earlier one has reached are ignored, whether it began from a checkpoint or not.

    **Cost.** A report costs O(1), or at a milestone O(log n) in the trials that have come there. Memory is one number
    for each trial at each of its milestones.

    Args:
        grace_period: no trial stops earlier, and no average has what came before.
        interval: the time between milestones.
        min_samples: how many other trials must have come to a milestone before one can stop there.
        time_attr: the key of the time in the reports, which never goes down within an attempt.
    """

    kind = "median_stopping"
    asks_ahead = True

    def __init__(
        self,
        *,
        grace_period: float = 1,
        interval: float = 1,
        min_samples: int = 3,
        time_attr: str = ITERATION,
    ) -> None:
        super().__init__(time_attr)
        self._grace_period = number(self._name, "grace_period", grace_period, least=0)
        self._interval = positive(self._name, "interval", interval)
        self._milestones = Milestones(self._interval, self._grace_period)
        self._min_samples = whole_number(self._name, "min_samples", min_samples, 1)
        self._averages: dict[int, _Median] = {}

    def _enrol(self, trial: Trial) -> _Course:
        return _Course(self._milestones.lowest)

    def _begin(self, trial: Trial, attempt: int) -> _Course:
        known = self._progress.get(trial.id)
        reached = -math.inf if known is None else max(known.reached, known.time)
        course = super()._begin(trial, attempt)
        course.reached = reached
        return course

    def _reach(self, trial: Trial, report: Report, progress: _Course) -> Decision:
        value = report.metrics.get(self.metric)
        if value is None or progress.time <= progress.reached or progress.decision is not CONTINUE:
            return progress.decision
        progress.add(self._score(report, value), is_averaged=progress.time >= self._grace_period)
        if progress.time < progress.next_milestone:
            return CONTINUE
        progress.next_milestone = self._milestones.after(progress.time)
        others = self._averages.setdefault(self._milestones.number(progress.time), _Median())
        is_worse = others.count >= self._min_samples and progress.best > others.value
        median, count = others.value, others.count
        others.add(progress.average)
        progress.counted.append(partial(others.withdraw, progress.average))
        if not is_worse:
            return CONTINUE
        sign = 1 if self.mode == "min" else -1
        what = f"the best {self.metric} so far, {sign * progress.best:g}, is worse than {sign * median:g}"
        return Decision(Action.STOP, f"{what}, the median of the running averages of {count} others at {progress.time}")


class _Course(Progress):
    """A trial's progress and values, of which lower is better; each report counts for the average."""

    __slots__ = ("_count", "_lowest", "_mean", "next_milestone", "reached")

    def __init__(self, next_milestone: float) -> None:
        super().__init__(-math.inf)
        self.next_milestone = next_milestone
        #: The latest time of its earlier attempts.
        self.reached = -math.inf
        self._count = 0
        self._mean = 0.0
        self._lowest = math.inf

    @property
    def average(self) -> float:
        """The mean of the values, or infinity where there is none."""
        return self._mean if self._count and not math.isnan(self._mean) else math.inf

    @property
    def best(self) -> float:
        """The lowest value, or infinity."""
        return self._lowest

    def add(self, value: float, *, is_averaged: bool) -> None:
        """Add a value, unless it is NaN, to the best and, if *is_averaged*, to the average."""
        if math.isnan(value):
            return
        self._lowest = min(self._lowest, value)
        if not is_averaged:
            return
        self._count += 1
        if math.isfinite(value) and math.isfinite(self._mean):
            # A sum could overflow, and so could a difference.
            self._mean += value / self._count - self._mean / self._count
        else:
            self._mean += value


class _Median:
    """A running median of numbers, none of which is NaN; each addition costs O(log n)."""

    __slots__ = ("_high", "_low")

    def __init__(self) -> None:
        #: Heaps of the lower half, negated, and of the upper half; as long as each other, or the lower is one longer.
        self._low: list[float] = []
        self._high: list[float] = []

    @property
    def count(self) -> int:
        """The number of numbers."""
        return len(self._low) + len(self._high)

    @property
    def value(self) -> float:
        """The median; of two middle numbers their mean, or the higher where one is infinite; infinity of none."""
        if not self._low:
            return math.inf
        if len(self._low) > len(self._high):
            return -self._low[0]
        low, high = -self._low[0], self._high[0]
        return low / 2 + high / 2 if math.isfinite(low) and math.isfinite(high) else high

    def add(self, number: float) -> None:
        """Add a number."""
        heapq.heappush(self._high, -heapq.heappushpop(self._low, -number))
        if len(self._high) > len(self._low):
            heapq.heappush(self._low, -heapq.heappop(self._high))

    def withdraw(self, number: float) -> None:
        """Remove a number that was added; this costs O(n), and is rare."""
        numbers = sorted([*(-low for low in self._low), *self._high])
        numbers.remove(number)
        middle = (len(numbers) + 1) // 2
        # Sorted lists are heaps.
        self._low, self._high = [-low for low in reversed(numbers[:middle])], numbers[middle:]
