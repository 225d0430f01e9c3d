"""The median stopping rule: stop a trial whose best so far is worse than what the others had on average by then.

After Golovin et al., "Google Vizier: A Service for Black-Box Optimization", KDD 2017, section 3.2.2.
"""

from __future__ import annotations

import math
from typing import ClassVar, Final, Literal, get_args

from mqtune.core.checks import number, one_of, positive, whole_number
from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import (
    CONTINUE,
    ITERATION,
    TIME_TOTAL,
    Action,
    Decision,
    Report,
    Trial,
    TrialStatus,
    is_number,
)
from mqtune.schedulers.quantile import Quantile
from mqtune.schedulers.timed import Milestones, Progress, TimedScheduler, exact

#: What a trial's best is compared with.
Against = Literal["averages", "completed"]

_MEDIAN: Final = 0.5
#: Every finite float is a whole number of 2 to the power of minus this.
_SCALE_BITS: Final = 1074


class MedianStopping(TimedScheduler["_Course"]):
    """Stops a trial whose best value so far is worse than the median of the others' running averages at that time.

    **Milestones.** They are the multiples of *interval* from *grace_period* on, in exact arithmetic; 0 is one. A trial comes to a
    milestone with the first report whose time has reached it.

    **The rule.** At a milestone a trial's running average is the mean of its values from *grace_period* on, up to and
    with that report, and its best the lowest (or highest, by the mode) of all its values up to there. If at least
    *min_samples* other trials have come to the milestone before it, it has run for *min_run_s* seconds, and its best is
    strictly worse than the median of their running averages there, it stops. Whether it stops or not, its own average
    counts from then on for those that come later. Trials that came earlier are not judged again.

    **The share.** With another *cutoff* than 1/2, the median's, the best must be as good as that quantile of the averages,
    from the best of them on: with 0.25 only those go on that are as good as the best quarter. Of n averages, a_0 the best
    of them, it is the value at the place (n - 1) * cutoff, between two of them interpolated linearly.

    **Completed trials alone.** With ``against="completed"`` the best is compared with the values, and not the averages,
    that the trials that have COMPLETED had at the milestone; a NaN there doesn't count. At least *min_completed* trials
    must have completed, wherever they have come. With *grace_period* a multiple of *interval*, and reports at each
    step, that is the rule of Optuna's ``MedianPruner`` and ``PercentilePruner``, whose *n_startup_trials*,
    *n_warmup_steps*, *interval_steps*, *n_min_trials* and *percentile* / 100 are *min_completed*, *grace_period*,
    *interval*, *min_samples* and *cutoff*.

    - *Scores that count*: one for each trial that has come to the milestone, also of those that stopped, failed or ended
      since; the scores of a trial that is abandoned are removed. A trial that ended before the milestone has none there.
    - *Median*: of an even number of averages the mean of the middle two; where one of those is infinite, the worse. So it
      is between two averages for every quantile.
    - *Ties*: a trial that equals the median continues.
    - *Seconds* are those of the report's ``time_total_s``, which mqtune measures; without a number there none stops.
    - *NaN* is left out of a trial's average and best, and so is a report that violates an outcome constraint. A trial that had nothing
      else counts as infinitely bad. A constrained metric that a report lacks says nothing.
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
        cutoff: the quantile of the others' averages that a trial must reach, above 0 and below 1; a lower one stops more.
        min_run_s: for how many seconds a trial must have run before it can stop, whatever its time is.
        against: what a trial's best is compared with: "averages", the others' running averages, or "completed", the
            values of those that have completed.
        min_completed: how many trials must have completed before one can stop.
        time_attr: the key of the time in the reports, which never goes down within an attempt.
    """

    kind = "median_stopping"
    later: ClassVar = {"cutoff": 0.5, "min_run_s": 0, "against": "averages", "min_completed": 0}
    asks_ahead = True

    def __init__(
        self,
        *,
        grace_period: float = 1,
        interval: float = 1,
        min_samples: int = 3,
        cutoff: float = 0.5,
        min_run_s: float = 0,
        against: Against = "averages",
        min_completed: int = 0,
        time_attr: str = ITERATION,
    ) -> None:
        super().__init__(time_attr)
        self._grace_period = number(self._name, "grace_period", grace_period, least=0)
        self._interval = positive(self._name, "interval", interval)
        self._milestones = Milestones(self._interval, self._grace_period, has_zero=True)
        self._min_samples = whole_number(self._name, "min_samples", min_samples, 1)
        self._cutoff = number(self._name, "cutoff", cutoff)
        if not 0 < self._cutoff < 1:
            raise ConfigurationError(f"{self._name}: cutoff={cutoff!r} must be above 0 and below 1; 0.5 is the median")
        self._ratio = exact(self._cutoff).as_integer_ratio()
        self._min_run_s = number(self._name, "min_run_s", min_run_s, least=0)
        self._against = one_of(self._name, "against", against, get_args(Against))
        self._min_completed = whole_number(self._name, "min_completed", min_completed, 0)
        #: How many trials have completed; and by milestone what a trial's best is compared with.
        self._completed = 0
        self._compared: dict[int, Quantile] = {}

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
        score = self._score(report, value)
        if self._violation(report):
            score = math.nan
        progress.add(score, is_averaged=progress.time >= self._grace_period)
        if progress.time < progress.next_milestone:
            return CONTINUE
        progress.next_milestone = self._milestones.after(progress.time)
        others = self._compared.setdefault(self._milestones.number(progress.time), Quantile(self._ratio))
        bound, count = others.value, others.count
        may_stop = count >= self._min_samples and self._completed >= self._min_completed and self._has_run(report)
        is_worse = may_stop and progress.best > bound
        if self._against == "averages":
            others.add(progress.average)
            progress.counted.append((others, progress.average))
        elif not math.isnan(score):
            progress.values.append((others, score))
        if not is_worse:
            return CONTINUE
        sign = 1 if self.mode == "min" else -1
        what = f"the best {self.metric} so far, {sign * progress.best:g}, is worse than {sign * bound:g}"
        which = "median" if self._cutoff == _MEDIAN else f"{self._cutoff:g} quantile"
        whose = "the running averages of" if self._against == "averages" else "the values of"
        done = "" if self._against == "averages" else " that have completed"
        return Decision(Action.STOP, f"{what}, the {which} of {whose} {count} others{done} at {progress.time}")

    def on_trial_end(self, trial: Trial) -> None:
        """Forget the progress of *trial*; its averages still count, and its values do if it has completed."""
        progress = self._progress.get(trial.id)
        if trial.status is TrialStatus.COMPLETED:
            self._completed += 1
            for others, value in () if progress is None else progress.values:
                others.add(value)
        super().on_trial_end(trial)

    def _has_run(self, report: Report) -> bool:
        """Return whether a trial has run for long enough to be stopped."""
        if not self._min_run_s:
            return True
        seconds = report.metrics.get(TIME_TOTAL)
        return is_number(seconds) and seconds >= self._min_run_s


class _Course(Progress):
    """A trial's progress and values, of which lower is better; each report counts for the average."""

    __slots__ = ("_count", "_infinite", "_lowest", "_sum", "next_milestone", "reached", "values")

    def __init__(self, next_milestone: float) -> None:
        super().__init__(-math.inf)
        self.next_milestone = next_milestone
        #: The latest time of its earlier attempts.
        self.reached = -math.inf
        #: Its values at milestones, with those that they join once it has completed.
        self.values: list[tuple[Quantile, float]] = []
        self._count = 0
        #: The exact sum of the finite values, in units of 2 ** -_SCALE_BITS: it neither rounds nor overflows.
        self._sum = 0
        #: The sum of the infinite values; NaN where they have both signs.
        self._infinite = 0.0
        self._lowest = math.inf

    @property
    def average(self) -> float:
        """The mean of the values, rounded once; infinity where there is no value, or where there are infinities of both signs."""
        if not self._count or math.isnan(self._infinite):
            return math.inf
        return self._infinite or self._sum / (self._count << _SCALE_BITS)

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
        if math.isfinite(value):
            numerator, denominator = value.as_integer_ratio()
            self._sum += numerator << (_SCALE_BITS + 1 - denominator.bit_length())
        else:
            self._infinite += value
