"""When a trial, or the whole experiment, has done enough."""

from mqtune.schedulers.stopping.base import AllRule, AnyRule, Scope, StopRule
from mqtune.schedulers.stopping.experiment import (
    ExperimentPlateau,
    TargetReached,
    TimeLimit,
    TrialsCompleted,
    TrialsFailed,
    TrialsStarted,
)
from mqtune.schedulers.stopping.given import as_rule
from mqtune.schedulers.stopping.trial import FunctionRule, MaximumIteration, MetricBounds, MetricMaximum, TrialPlateau

__all__ = [
    "AllRule",
    "AnyRule",
    "ExperimentPlateau",
    "FunctionRule",
    "MaximumIteration",
    "MetricBounds",
    "MetricMaximum",
    "Scope",
    "StopRule",
    "TargetReached",
    "TimeLimit",
    "TrialPlateau",
    "TrialsCompleted",
    "TrialsFailed",
    "TrialsStarted",
    "as_rule",
]
