"""PASHA: promotion ASHA that trains for longer only while the best trials still change places.

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

#: The percentile of the gaps between trials that cross that counts as noise; section 4.2 of the paper.
_NOISE_RATIO: Final = (9, 10)
#: A pair crosses from noise if the better one has changed at least so often: there, and back again.
_CROSSINGS: Final = 2


class PASHA(PromotionASHA):
    """Progressive ASHA: ``PromotionASHA`` with a top rung that rises only while rankings are not stable yet.

    It finds a good config with less training than ASHA; most trials never come near *max_t*, and what it finds is to be
    trained to its end afterwards.

    **The rule** is that of ``PromotionASHA``, but no trial is promoted beyond the top rung, which is the second one at
    first. Each time that a trial enters the top rung, the trials that have entered it are ranked by their scores there,
    and by their scores in the rung below. If the two rankings differ, the next rung becomes the top rung, up to that at
    *max_t*, where trials complete. They don't differ as long as, at each place, the trial of the one ranking and that of
    the other have scores in the rung below that are no further apart than *epsilon*.

    **Epsilon** is how much noise may move a score, and measured. Two trials of the top rung differ by noise if the better
    one of them, over the times that both have reported, has changed at least twice. Epsilon is the 90th percentile of how
    far such pairs are apart at the last of those times, interpolated linearly. As long as a top rung has no such pair it
    is what it was, and 0 at first.

    - *Outcome constraints*: as in ``PromotionASHA``. Where two trials that violate some change places the rankings don't differ.
    - *Ties, NaN*, and reports that are late, repeated, skip rungs or lack the metric: as in ``PromotionASHA``. NaN and
      infinities are left out of epsilon. Of a time that a trial has reported more than once the first value counts.
    - *A trial that skips a rung* is in no ranking with that.
    - *The scores of a trial that is abandoned* are removed from the rankings, and from epsilon; the top rung stays.

    **The end.** As in ``PromotionASHA``: when no new trial can start, those that are paused at the top rung are released
    too, as soon as none is under way to it.

    **Cost.** A report costs two look-ups; one that enters the top rung, with k trials of up to t reports there, O(k t log t).
    Memory is the scores of ``PromotionASHA``, and the values of trials that have not ended or have entered the top rung.

    Args:
        max_t: the time at which a trial completes, if any comes so far.
        grace_period: the time of the lowest rung.
        reduction_factor: one in this many is promoted; above 1, fractions allowed, 3 or 4 as a rule.
        time_attr: the key of the time in the reports, which never goes down within an attempt. For epsilon it must be
            one that trials have in common, such as epochs.
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
        #: What entered each rung, and the finite scores of each trial by time.
        self._ranks: list[dict[TrialId, Rank]] = [{} for _ in self._levels]
        self._curves: dict[TrialId, dict[float, float]] = {}
        #: How far pairs of the top rung are apart by noise.
        self._gaps: dict[tuple[TrialId, TrialId], float] = {}
        self._noise = Quantile(_NOISE_RATIO)
        self._epsilon = 0.0

    @property
    def current_max_t(self) -> float:
        """The time of the top rung at present."""
        return self._levels[self._top]

    def on_stage(self, trial: Trial) -> None:
        super().on_stage(trial)
        climb = self._progress.get(trial.id)
        if climb is not None and climb.next_level < math.inf:
            # Each report is noted down.
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
        """Measure the noise with one more trial in the top rung, and raise that if rankings differ by more."""
        for other in self._ranks[self._top]:
            if other != trial and (gap := self._gap(trial, other)) is not None:
                self._gaps[other, trial] = gap
                self._noise.add(gap)
        if self._gaps:
            self._epsilon = self._noise.value
        if not self._is_stable():
            self._top += 1
            self._gaps, self._noise = {}, Quantile(_NOISE_RATIO)
            # Those that have ended below come no further.
            self._curves = {name: curve for name, curve in self._curves.items() if name in self._progress}

    def _gap(self, one: TrialId, other: TrialId) -> float | None:
        """Return how far two trials are apart at the end, if they cross from noise."""
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
            # Neither those with NaN nor those that violate a constraint are what is looked for.
            return one[0] == other[0]
        return one[1] == other[1] or abs(one[1] - other[1]) <= self._epsilon

    def _rungs_downwards(self) -> Iterator[Rung]:
        """Yield the rungs that trials are promoted from."""
        yield from reversed(self._all_brackets[0].rungs[: self._top])

    def _why_released(self, rung: Rung) -> str:
        if rung is not self._all_brackets[0].rungs[self._top]:
            return super()._why_released(rung)
        return f"the order of the {rung.entered} trials there is stable, and no other trial comes"
