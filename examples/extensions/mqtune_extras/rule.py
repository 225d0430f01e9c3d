"""A stop rule: ends trials that have stopped getting better."""

from __future__ import annotations

import math

from mqtune.core.trial import Report, Trial, TrialId
from mqtune.schedulers.stopping import StopRule
from mqtune.schedulers.stopping.rule import Scope


class Patience(StopRule):
    """Ends a trial that has made *reports* reports in a row without a better value."""

    scopes = frozenset({Scope.TRIAL})

    def __init__(self, reports: int) -> None:
        self._reports = reports
        self._best: dict[TrialId, float] = {}
        self._since: dict[TrialId, int] = {}

    def stops_trial(self, trial: Trial, report: Report) -> str:
        value = report.metrics.get(self.metric, math.nan)
        cost = value if self.mode == "min" else -value
        if cost < self._best.get(trial.id, math.inf):
            self._best[trial.id], self._since[trial.id] = cost, 0
            return ""
        self._since[trial.id] = self._since.get(trial.id, 0) + 1
        return f"no better value in {self._reports} reports" if self._since[trial.id] >= self._reports else ""

    def on_trial_end(self, trial: Trial) -> None:
        self._best.pop(trial.id, None)
        self._since.pop(trial.id, None)
