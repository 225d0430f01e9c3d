"""A scheduler that stops trials far worse than the best one after as many reports."""

from __future__ import annotations

import math

from mqtune.core.trial import CONTINUE, Report, Trial
from mqtune.schedulers import Action, Decision, Scheduler


class Trailing(Scheduler):
    """Stops a trial if its value is worse than *factor* times the best one at the same report.

    The first *grace* - 1 reports never stop it.
    """

    asks_ahead = True

    def __init__(self, factor: float = 3.0, grace: int = 3) -> None:
        self._factor = factor
        self._grace = grace
        self._best: dict[int, float] = {}

    def on_report(self, trial: Trial, report: Report) -> Decision:
        value = report.metrics.get(self.metric, math.nan)
        if not math.isfinite(value):
            return CONTINUE
        cost = value if self.mode == "min" else -value
        best = self._best[report.sequence] = min(cost, self._best.get(report.sequence, cost))
        if report.sequence < self._grace or cost <= best + (self._factor - 1) * abs(best):
            return CONTINUE
        return Decision(Action.STOP, f"{self._factor:g} times worse than the best of report {report.sequence}")
