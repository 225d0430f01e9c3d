"""The contract of stop rules, on mqtune's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import mqtune
from mqtune.schedulers.stopping.rule import StopRule, as_rule
from mqtune.testing.stop_rules import NewRule, StopRuleContract

RULES: dict[str, Callable[[], StopRule | None]] = {
    # The other rules that count trials differ in the number that they count.
    "TrialsStarted": lambda: mqtune.schedulers.stopping.TrialsStarted(5),
    "ReportsReceived": lambda: mqtune.schedulers.stopping.ReportsReceived(20),
    "TargetReached": lambda: mqtune.TargetReached(0.05),
    "ExperimentPlateau": lambda: mqtune.ExperimentPlateau(top=2, patience=3),
    "MetricMaximum": lambda: mqtune.MetricMaximum("accuracy", 0.9),
    "MaximumIteration": lambda: mqtune.schedulers.stopping.MaximumIteration(5),
    "TrialDiverged": lambda: mqtune.TrialDiverged(),
    "TrialPlateau": lambda: mqtune.TrialPlateau(num_results=3, grace_period=2),
    "a dict": lambda: as_rule({"training_iteration": 4}),
    "any and all": lambda: (
        mqtune.TargetReached(0.01) | (mqtune.schedulers.stopping.MaximumIteration(2) & {"accuracy": 0.5})
    ),
}


class TestStopRule(StopRuleContract):
    @pytest.fixture(params=RULES)
    def new_rule(self, request: pytest.FixtureRequest) -> NewRule:
        def new_rule() -> StopRule:
            rule = RULES[request.param]()
            assert rule is not None
            return rule

        return new_rule
