"""Stop rules made again from their descriptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from mqtune.core.errors import ConfigurationError
from mqtune.core.registry import rebuilt
from mqtune.schedulers.stopping.experiment_rules import (
    ExperimentPlateau,
    TargetReached,
    TimeLimit,
    TrialsCompleted,
    TrialsFailed,
    TrialsStarted,
)
from mqtune.schedulers.stopping.rule import AllRule, AnyRule, MetricBounds, StopRule
from mqtune.schedulers.stopping.trial_rules import MaximumIteration, MetricMaximum, TrialPlateau

__all__ = ["rule_of"]


def rule_of(description: Mapping[str, Any]) -> StopRule:
    """Return a rule that describes itself so, at its beginning.

    Raises:
        ConfigurationError: it, or one that it is made of, is a function or class of the user's own.
    """
    return rebuilt("rule", _KINDS, description)


def _function(*, function: str) -> StopRule:
    raise ConfigurationError(f"the rule is a function of yours, {function}, which only your code has")


def _trial_plateau(*, metric: str, **arguments: Any) -> TrialPlateau:
    return TrialPlateau(metric or None, **arguments)


def _experiment_plateau(*, metric: str, mode: Literal["min", "max", ""], **arguments: Any) -> ExperimentPlateau:
    return ExperimentPlateau(metric or None, mode=mode or None, **arguments)


_KINDS: Final[dict[str, Callable[..., StopRule]]] = {
    "all": lambda *, rules: AllRule(*map(rule_of, rules)),
    "any": lambda *, rules: AnyRule(*map(rule_of, rules)),
    "experiment_plateau": _experiment_plateau,
    "function": _function,
    "maximum_iteration": MaximumIteration,
    "metric_bounds": MetricBounds,
    "metric_maximum": MetricMaximum,
    "target_reached": TargetReached,
    "time_limit": TimeLimit,
    "trial_plateau": _trial_plateau,
    "trials_completed": TrialsCompleted,
    "trials_failed": TrialsFailed,
    "trials_started": TrialsStarted,
}
