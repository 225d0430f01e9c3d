"""PASHA: promotion ASHA that trains trials longer only while their ranking still changes.

After Bohdal et al., "PASHA: Efficient HPO and NAS with Progressive Resource Allocation", ICLR 2023, section 4.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Final

from mqtune.core.trial import ITERATION, Decision, Report, Trial, TrialId
from mqtune.schedulers.asha import Climb, PromotionASHA
from mqtune.schedulers.halving import Rung
from mqtune.schedulers.quantile import Quantile
from mqtune.schedulers.timed import Rank

#: The quantile of the gaps of crossing pairs that is taken as noise, as numerator and denominator. Section 4.2 of the
#: paper.
_NOISE_RATIO: Final = (9, 10)
#: Two trials cross by noise if the better one of them changes at least this many times.
_CROSSINGS: Final = 2


class PASHA(PromotionASHA):
    """Progressive ASHA: ``PromotionASHA`` with a top rung that rises until rankings are stable.

    It finds a good config with less training than ASHA. Most trials stop far below *max_t*, so train the best config to
    its end afterwards.

    **The rule** is that of ``PromotionASHA``, but no trial is promoted beyond the *top rung*. At first that is the
    second rung. When a trial enters the top rung, the trials there are ranked twice: by their scores in this rung, and
    by their scores in the rung below. If the two rankings differ, the next rung becomes the top rung, up to *max_t*,
    where trials complete. The rankings count as equal if, at each position, the two trials' scores in the rung below
    differ by at most *epsilon*.

    **Epsilon** is the measured noise of a score. Two trials of the top rung cross by noise if, over the times that both
    have reported, the better one of them has changed at least twice. Their gap is the difference of their scores at the
    last of these times. Epsilon is the 90th percentile of these pairs' gaps, interpolated linearly. It is 0 at first,
    and stays the same until a new top rung has such a pair.

    - *Outcome constraints*: as in ``PromotionASHA``. Trials that violate one may swap positions without making the
      rankings differ.
    - *Ties, NaN*, and reports that are late, repeated, skip rungs or lack the metric: as in ``PromotionASHA``. NaN and
      infinities are left out of epsilon. If a trial reports a time twice, the first value counts.
    - *A trial that skips a rung* is in no ranking of that rung.
    - *An abandoned trial's scores* are removed from rankings and epsilon. The top rung stays.

    **The end.** As in ``PromotionASHA``. Paused trials of the top rung are released too, as soon as no other trial is
    on its way there.

    **Cost.** A report costs two dict look-ups. Entering the top rung costs O(k t log t), with k trials of up to t
    reports there. Memory is the scores of ``PromotionASHA``, and the values of unfinished trials and of trials in the
    top rung.

    Args:
        max_t: the time at which a trial completes, if the top rung rises so far.
        grace_period: the time of the lowest rung.
        reduction_factor: one in this many trials of a rung is promoted. Above 1, usually 3 or 4; fractions are allowed.
        time_attr: the reports' key of the time. Its value must never decrease within an attempt. To measure epsilon,
            trials must report at the same times, such as epochs.
    """

    kind = "pasha"

    def __init__(
        self, max_t: float, *, grace_period: float = 1, reduction_factor: float = 3, time_attr: str = ITERATION
    ) -> None:
        super().__init__(max_t, grace_period=grace_period, reduction_factor=reduction_factor, time_attr=time_attr)
        self._top = min(1, len(self._levels) - 1)
        #: For each rung, the ranks of its trials.
        self._ranks: list[dict[TrialId, Rank]] = [{} for _ in self._levels]
        #: The finite scores of each trial by time.
        self._curves: dict[TrialId, dict[float, float]] = {}
        #: The gaps of pairs in the top rung that cross by noise.
        self._gaps: dict[tuple[TrialId, TrialId], float] = {}
        self._noise = Quantile(_NOISE_RATIO)
        self._epsilon = 0.0

    @property
    def current_max_t(self) -> float:
        return self._levels[self._top]

    def on_queue(self, trial: Trial) -> None:
        super().on_queue(trial)
        climb = self._progress.get(trial.id)
        if climb is not None and climb.next_level < math.inf:
            # ``_reach`` must get each report, to record its score.
            climb.next_level = -math.inf

    def on_abandon(self, trial: Trial) -> None:
        super().on_abandon(trial)
        for ranks in self._ranks:
            ranks.pop(trial.id, None)
        for pair in [pair for pair in self._gaps if trial.id in pair]:
            self._noise.withdraw(self._gaps.pop(pair))

    def on_trial_end(self, trial: Trial) -> None:
        super().on_trial_end(trial)
        if trial.id not in self._ranks[self._top]:
            self._curves.pop(trial.id, None)

    def _enrol(self, trial: Trial) -> Climb:
        climb = super()._enrol(trial)
        climb.next_level = -math.inf
        return climb

    def _reach(self, trial: Trial, report: Report, progress: Climb) -> Decision:
        value = report.metrics.get(self.metric)
        if value is not None and math.isfinite(score := self._score(report, value)):
            self._curves.setdefault(trial.id, {}).setdefault(progress.time, score)
        if progress.time < self._levels[progress.index]:
            return progress.decision
        was_here = progress.rank is not None
        decision = super()._reach(trial, report, progress)
        if progress.rank is not None and not was_here:
            self._ranks[progress.index][trial.id] = progress.rank
            if progress.index == self._top < len(self._levels) - 1:
                self._enter_top(trial.id)
        return decision

    def _enter_top(self, trial: TrialId) -> None:
        """Update epsilon with a new trial in the top rung. If rankings differ, raise the top rung."""
        for other in self._ranks[self._top]:
            if other != trial and (gap := self._gap(trial, other)) is not None:
                self._gaps[other, trial] = gap
                self._noise.add(gap)
        if self._gaps:
            self._epsilon = self._noise.value
        if not self._is_stable():
            self._top += 1
            self._gaps, self._noise = {}, Quantile(_NOISE_RATIO)
            # Forget the curves of ended trials: they never enter the new top rung.
            self._curves = {name: curve for name, curve in self._curves.items() if name in self._progress}

    def _gap(self, one: TrialId, other: TrialId) -> float | None:
        """Return the gap of two trials at their last common time. None unless they cross by noise."""
        first, second = self._curves.get(one, {}), self._curves.get(other, {})
        times = sorted(first.keys() & second.keys())
        better = [first[time] < second[time] for time in times]
        crossings = sum(now != then for then, now in itertools.pairwise(better))
        return abs(first[times[-1]] - second[times[-1]]) if crossings >= _CROSSINGS else None

    def _is_stable(self) -> bool:
        """Return whether the rankings in the top rung and in the rung below differ only by noise."""
        here, below = self._ranks[self._top], self._ranks[self._top - 1]
        both = [trial for trial in here if trial in below]
        rankings = (sorted(both, key=ranks.__getitem__) for ranks in (here, below))
        return all(self._is_close(below[one], below[other]) for one, other in zip(*rankings, strict=True))

    def _is_close(self, one: Rank, other: Rank) -> bool:
        if one[0] or other[0]:
            # Two trials with NaN, or two that violate a constraint, may swap positions.
            return one[0] == other[0]
        return one[1] == other[1] or abs(one[1] - other[1]) <= self._epsilon

    def _rungs_downwards(self) -> Iterator[Rung]:
        yield from reversed(self._all_brackets[0].rungs[: self._top])

    def _why_released(self, rung: Rung) -> str:
        if rung is not self._all_brackets[0].rungs[self._top]:
            return super()._why_released(rung)
        return f"the order of the {rung.entered} trials there is stable, and no other trial comes"
