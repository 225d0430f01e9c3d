"""The median stopping rule: stops a trial that is worse than the median of other trials.

After Golovin et al., "Google Vizier: A Service for Black-Box Optimization", KDD 2017, section 3.2.2.
"""

from __future__ import annotations

import math
from typing import ClassVar, Final, Literal, get_args

from mqtune.core.checks import number, one_of, positive, whole_number
from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import CONTINUE, ITERATION, TIME_TOTAL, Action, Decision, Report, Trial, TrialStatus, is_number
from mqtune.schedulers.quantile import Quantile
from mqtune.schedulers.timed import Milestones, Progress, TimedScheduler, exact

Against = Literal["averages", "completed"]

_MEDIAN: Final = 0.5
#: Every finite float is an integer multiple of 2 ** -_SCALE_BITS.
_SCALE_BITS: Final = 1074


class MedianStopping(TimedScheduler["_RunningAverage"]):
    """Stops a trial whose best value is worse than the median of the others' running averages.

    **Milestones.** A milestone is a time at which trials are compared. The milestones are the multiples of *interval*
    that are at least *grace_period*, with 0 as one of them. Arithmetic is exact. A trial reaches a milestone with its
    first report at or after that time.

    **The rule.** At a milestone, a trial's running average is the mean of its values from *grace_period* on, up to that
    report. Its best is the lowest (for mode "max" the highest) of all its values so far. The trial is stopped if its
    best is strictly worse than the median of the averages that other trials had at this milestone. At least
    *min_samples* other trials must have reached the milestone before, and this trial must have run for *min_run_s*
    seconds. Its own average counts for later trials, even if it is stopped. Earlier trials are not judged again.

    **Other quantiles.** *cutoff* is the quantile of the averages, with the best first, that takes the place of the
    median. With 0.25, only trials as good as the best quarter continue. With n averages in order from the best, number
    0, it is the value at position (n - 1) * cutoff, interpolated linearly.

    **Only completed trials.** With ``against="completed"``, a trial's best is compared with the values, not the
    averages, that COMPLETED trials had at the milestone. NaN is left out. At least *min_completed* trials must have
    completed. If *grace_period* is a multiple of *interval*, and trials report at each step, this is the rule of
    Optuna's ``MedianPruner`` and ``PercentilePruner``. Their *n_startup_trials*, *n_warmup_steps*, *interval_steps*,
    *n_min_trials* and *percentile* / 100 are *min_completed*, *grace_period*, *interval*, *min_samples* and *cutoff*.

    - *Scores that count*: one for each trial that has reached the milestone, even if it has ended since. An abandoned
      trial's scores are removed.
    - *Median*: of an even number of averages the mean of the middle two, or the worse of them if one is infinite. Other
      quantiles are interpolated in the same way.
    - *Ties*: a trial whose best equals the median continues.
    - *Seconds* are the report's ``time_total_s``, which mqtune measures. Without it no trial stops.
    - *NaN* is left out of a trial's average and best, and so is a report that violates an outcome constraint. A trial
      with no other values counts as infinitely bad. A missing constrained metric violates nothing.
    - *A report without the metric*, or with None, reaches no milestone. The next report with the metric does.
    - *A report that skips milestones* reaches the highest of them, and none below.
    - *A late or repeated report* changes nothing, and the trial's last decision is returned.
    - *A trial that runs again*, after a failure or a pause by hand, keeps its average and its best. Reports of the new
      attempt are ignored up to the time that the trial had reached before.

    **Cost.** A report costs O(1), or at a milestone O(log n), with n trials that have reached it. Memory is one number
    for each trial and milestone.

    Args:
        grace_period: time before which no trial is stopped. Averages begin there.
        interval: time between milestones.
        min_samples: number of other trials that must have reached a milestone before a trial can be stopped there.
        cutoff: the quantile that a trial must reach, above 0 and below 1. With a lower one, more trials are stopped.
        min_run_s: seconds that a trial must have run before it can be stopped.
        against: compare with "averages": the others' running averages; or "completed": the values of COMPLETED trials.
        min_completed: number of trials that must have completed before a trial can be stopped.
        time_attr: the reports' key of the time. Its value must never decrease within an attempt.
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
        self._completed = 0
        self._compared: dict[int, Quantile] = {}

    def _enrol(self, trial: Trial) -> _RunningAverage:
        return _RunningAverage(self._milestones.lowest)

    def _begin(self, trial: Trial, attempt: int) -> _RunningAverage:
        known = self._progress.get(trial.id)
        reached = -math.inf if known is None else max(known.reached, known.time)
        course = super()._begin(trial, attempt)
        course.reached = reached
        return course

    def _reach(self, trial: Trial, report: Report, progress: _RunningAverage) -> Decision:
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
        comparison = f"the best {self.metric} so far, {sign * progress.best:g}, is worse than {sign * bound:g}"
        which = "median" if self._cutoff == _MEDIAN else f"{self._cutoff:g} quantile"
        whose = "the running averages of" if self._against == "averages" else "the values of"
        done = "" if self._against == "averages" else " that have completed"
        return Decision(Action.STOP, f"{comparison}, the {which} of {whose} {count} others{done} at {progress.time}")

    def on_trial_end(self, trial: Trial) -> None:
        """Forget the progress of *trial*. Later trials are still compared with its averages.

        If it completed, later trials are also compared with its values.
        """
        progress = self._progress.get(trial.id)
        if trial.status is TrialStatus.COMPLETED:
            self._completed += 1
            for others, value in () if progress is None else progress.values:
                others.add(value)
        super().on_trial_end(trial)

    def _has_run(self, report: Report) -> bool:
        if not self._min_run_s:
            return True
        seconds = report.metrics.get(TIME_TOTAL)
        return is_number(seconds) and seconds >= self._min_run_s


class _RunningAverage(Progress):
    __slots__ = ("_count", "_infinite", "_lowest", "_sum", "next_milestone", "reached", "values")

    def __init__(self, next_milestone: float) -> None:
        super().__init__(-math.inf)
        self.next_milestone = next_milestone
        #: The latest time of the trial's earlier attempts.
        self.reached = -math.inf
        #: The trial's values at milestones, each with the quantile that gets it when the trial completes.
        self.values: list[tuple[Quantile, float]] = []
        self._count = 0
        #: The exact sum of the finite values, in units of 2 ** -_SCALE_BITS.
        self._sum = 0
        #: The sum of the infinite values. NaN if they have both signs.
        self._infinite = 0.0
        self._lowest = math.inf

    @property
    def average(self) -> float:
        """The mean of the values.

        It is infinity without values, or with both positive and negative infinity.
        """
        if not self._count or math.isnan(self._infinite):
            return math.inf
        return self._infinite or self._sum / (self._count << _SCALE_BITS)

    @property
    def best(self) -> float:
        return self._lowest

    def add(self, value: float, *, is_averaged: bool) -> None:
        """Take a value into account for the best and, if *is_averaged*, for the average. Ignore NaN."""
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
