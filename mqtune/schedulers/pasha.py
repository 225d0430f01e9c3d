"""PASHA: promotion ASHA that trains longer only while the best trials change places.

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

#: The percentile of crossing trials' gaps that counts as noise. Section 4.2 of the paper.
_NOISE_RATIO: Final = (9, 10)
#: A pair crosses by noise if the better trial changes at least this many times.
_CROSSINGS: Final = 2


class PASHA(PromotionASHA):
    """Progressive ASHA: ``PromotionASHA`` with a top rung that rises until rankings are stable.

    It finds a good config with less training than ASHA. Most trials never come near *max_t*, so train the found config
    to its end afterwards.

    **The rule** is that of ``PromotionASHA``, but no trial is promoted beyond the top rung, at first the second one.
    When a trial enters the top rung, its trials are ranked by their scores there, and by those in the rung below. If
    the rankings differ, the next rung becomes the top rung, up to *max_t*, where trials complete. They don't differ if
    at each place the two trials' scores in the rung below are at most *epsilon* apart.

    **Epsilon** is the measured noise of a score. Two trials of the top rung differ by noise if the better one, over
    their common times, has changed at least twice. Epsilon is the 90th percentile of such pairs' gaps at the last
    common time, interpolated linearly. Until a top rung has such a pair, epsilon stays what it was, at first 0.

    - *Outcome constraints*: as in ``PromotionASHA``. Trials that violate some may change places without making rankings
      differ.
    - *Ties, NaN*, and reports that are late, repeated, skip rungs or lack the metric: as in ``PromotionASHA``. NaN and
      infinities are left out of epsilon. The first value at a time counts.
    - *A trial that skips a rung* is in no ranking of that rung.
    - *An abandoned trial's scores* are removed from rankings and epsilon. The top rung stays.

    **The end.** As in ``PromotionASHA``. Paused trials of the top rung are released too, once no other trial is on its
    way there.

    **Cost.** A report costs two look-ups. Entering the top rung costs O(k t log t), with k trials of up to t reports
    there. Memory is the scores of ``PromotionASHA``, and the values of unfinished trials and those in the top rung.

    Args:
        max_t: the time at which a trial completes, if any comes so far.
        grace_period: the time of the lowest rung.
        reduction_factor: one in this many trials of a rung is promoted. Above 1, usually 3 or 4; fractions are allowed.
        time_attr: the reports' key of the time. Its value must never decrease within an attempt. For epsilon trials
            need common times, such as epochs.
    """

    kind = "pasha"

    def __init__(
        self,
        max_t: float,
        *,
        grace_period: float = 1,
        reduction_factor: float = 3,
        time_attr: str = ITERATION,
    ) -> None:
        super().__init__(max_t, grace_period=grace_period, reduction_factor=reduction_factor, time_attr=time_attr)
        self._top = min(1, len(self._levels) - 1)
        #: The ranks by rung, and the finite scores of each trial by time.
        self._ranks: list[dict[TrialId, Rank]] = [{} for _ in self._levels]
        self._curves: dict[TrialId, dict[float, float]] = {}
        #: Gaps of pairs that cross by noise in the top rung.
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
            # Each report must reach ``_reach``, which records it.
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
        """Update the noise with a new trial in the top rung. Raise the rung if rankings differ."""
        for other in self._ranks[self._top]:
            if other != trial and (gap := self._gap(trial, other)) is not None:
                self._gaps[other, trial] = gap
                self._noise.add(gap)
        if self._gaps:
            self._epsilon = self._noise.value
        if not self._is_stable():
            self._top += 1
            self._gaps, self._noise = {}, Quantile(_NOISE_RATIO)
            # Trials that ended below the top rung don't get there.
            self._curves = {name: curve for name, curve in self._curves.items() if name in self._progress}

    def _gap(self, one: TrialId, other: TrialId) -> float | None:
        """Return the gap of two trials at their last common time, if they cross by noise."""
        first, second = self._curves.get(one, {}), self._curves.get(other, {})
        times = sorted(first.keys() & second.keys())
        better = [first[time] < second[time] for time in times]
        crossings = sum(now != then for then, now in itertools.pairwise(better))
        return abs(first[times[-1]] - second[times[-1]]) if crossings >= _CROSSINGS else None

    def _is_stable(self) -> bool:
        """Return whether the top rung ranks its trials as the rung below does, but for noise."""
        here, below = self._ranks[self._top], self._ranks[self._top - 1]
        both = [trial for trial in here if trial in below]
        rankings = (sorted(both, key=ranks.__getitem__) for ranks in (here, below))
        return all(self._is_close(below[one], below[other]) for one, other in zip(*rankings, strict=True))

    def _is_close(self, one: Rank, other: Rank) -> bool:
        if one[0] or other[0]:
            # Places of trials with NaN, or that violate a constraint, don't matter.
            return one[0] == other[0]
        return one[1] == other[1] or abs(one[1] - other[1]) <= self._epsilon

    def _rungs_downwards(self) -> Iterator[Rung]:
        yield from reversed(self._all_brackets[0].rungs[: self._top])

    def _why_released(self, rung: Rung) -> str:
        if rung is not self._all_brackets[0].rungs[self._top]:
            return super()._why_released(rung)
        return f"the order of the {rung.entered} trials there is stable, and no other trial comes"
