"""RUSH: ASHA for tuning again, beginning with configs that were good in earlier experiments.

After Zappella, Salinas and Archambeau, "A resource-efficient method for repeated HPO and NAS", AutoML workshop at ICML
2021 (arXiv:2103.16111).
"""

from __future__ import annotations

from typing import ClassVar

from mqtune.core.checks import whole_number
from mqtune.core.trial import ITERATION, Trial, TrialId
from mqtune.schedulers.asha import ASHA
from mqtune.schedulers.halving import Rung
from mqtune.schedulers.timed import AnyRank


class RUSH(ASHA):
    """ASHA that also stops trials that are worse than the best known config at a rung.

    Try the known configs of earlier experiments first::

        known = [{"lr": 0.1}, {"lr": 0.03}]
        Tuner(train, space, scheduler=RUSH(27, candidates=len(known)), searcher=InitialPoints(known), …)

    **The rule.** The first *candidates* queued trials are the candidates. All trials follow the rule of ``ASHA``, with
    one bracket. In addition, a trial that is not a candidate is stopped at a rung if its score is worse than the best
    score of the candidates that have continued from that rung.

    - *Ties*: a trial with the score of the best candidate continues.
    - *NaN* is worse than every number and equal to itself.
    - *A candidate that fails or ends* still counts, and no other trial replaces it. An abandoned candidate no longer
      counts.
    - All else is as in ``ASHA``.

    **Cost.** That of ``ASHA``, and O(*candidates*) for each report that reaches a rung.

    Args:
        max_t: the time at which a trial completes.
        candidates: number of candidates: the first trials, which have the known configs.
        grace_period: the time of the lowest rung. No trial stops earlier.
        reduction_factor: one in this many trials of a rung continues. Above 1, usually 3 or 4; fractions are allowed.
        time_attr: the reports' key of the time. Its value must never decrease within an attempt.
    """

    kind = "rush"
    later: ClassVar = {}

    def __init__(
        self,
        max_t: float,
        candidates: int,
        *,
        grace_period: float = 1,
        reduction_factor: float = 3,
        time_attr: str = ITERATION,
    ) -> None:
        super().__init__(max_t, grace_period=grace_period, reduction_factor=reduction_factor, time_attr=time_attr)
        self._candidates = whole_number(self._name, "candidates", candidates, 1)
        self._known: set[TrialId] = set()
        #: By rung, the ranks of the candidates that have continued from it.
        self._bars: dict[str, dict[TrialId, AnyRank]] = {rung.name: {} for rung in self._all_brackets[0].rungs}

    def on_queue(self, trial: Trial) -> None:
        if len(self._known) < self._candidates:
            self._known.add(trial.id)

    def on_abandon(self, trial: Trial) -> None:
        super().on_abandon(trial)
        for bars in self._bars.values():
            bars.pop(trial.id, None)

    def _why_stopped(self, trial: Trial, rung: Rung, rank: AnyRank) -> str:
        reason, bars = super()._why_stopped(trial, rung, rank), self._bars[rung.name]
        if reason:
            return reason
        if trial.id in self._known:
            bars[trial.id] = rank
            return ""
        best = min(bars, key=bars.__getitem__, default=None)
        return (
            "" if best is None or rank <= bars[best] else f"is worse than that of trial {best}, whose config was known"
        )
