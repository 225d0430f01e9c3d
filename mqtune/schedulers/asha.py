"""ASHA: stop a trial early when it does badly among those that came as far.

After Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, section 3, in the variant that
stops trials at a rung instead of pausing and promoting them.
"""

from __future__ import annotations

import math
from bisect import bisect_right

from mqtune.core.trial import CONTINUE, Action, Decision, Report, Trial
from mqtune.schedulers.halving import RungHalving
from mqtune.schedulers.rungs import rank_of
from mqtune.schedulers.timed import Progress

__all__ = ["ASHA"]


class ASHA(RungHalving[Progress]):
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
    - *A trial that fails* leaves its scores in the rungs. An attempt that starts again from scratch, or from an older
      checkpoint, is not looked at until it is behind the last rung that its trial has entered.
    - *A trial that is abandoned* takes its scores out of the rungs: from then on n is without it. Who was judged before
      is not judged again.

    **Cost.** A report that reaches no rung costs two look-ups; one that does, O(log n) in the trials of that rung.
    Memory is one score for each trial in each rung.

    Args:
        max_t: the time at which a trial completes.
        grace_period: the time of the lowest rung; no trial stops earlier.
        reduction_factor: one in this many continues; above 1, fractions allowed, 3 or 4 as a rule.
        time_attr: the key of the time in the reports: anything that starts above 0 and never goes down within an
            attempt. Under its default name, a report without it counts by its sequence number.

    Raises:
        ConfigurationError: an argument makes no sense.
    """

    asks_ahead = True
    kind = "asha"
    _least = 1

    def _enrol(self, trial: Trial) -> Progress:
        return Progress(self._levels[0])

    def _reach(self, trial: Trial, report: Report, progress: Progress) -> Decision:
        index = bisect_right(self._levels, progress.time) - 1
        is_top = index == len(self._levels) - 1
        value = report.metrics.get(self.metric)
        if value is None:
            return self._complete if is_top else CONTINUE
        rung = self._rungs[index]
        rank = rank_of(self._score(report, value))
        self._enter_rung(trial.id, rung, rank)
        if is_top:
            progress.next_level = math.inf
            return self._complete
        if rung.is_among_best(rank):
            progress.next_level = self._levels[index + 1]
            return CONTINUE
        progress.next_level = math.inf
        place = f"is not among the best {rung.places} of {rung.entered}"
        return Decision(Action.STOP, f"rung {self._levels[index]}: {self.metric}={float(value):g} {place}")
