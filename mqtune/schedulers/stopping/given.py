"""What a user may give for a stop rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqtune.core.errors import ConfigurationError
from mqtune.schedulers.stopping.base import StopRule
from mqtune.schedulers.stopping.trial import FunctionRule, MetricBounds

__all__ = ["as_rule"]


def as_rule(stop: Any) -> StopRule | None:
    """Return the rule that *stop* stands for, or None for None.

    Args:
        stop: a rule; a dict of metric → bound, see :class:`MetricBounds`; or a function of a trial and its report that
            returns whether the trial is to end, see :class:`FunctionRule`.

    Raises:
        ConfigurationError: it is none of these, or a dict or function that can't be a rule.
    """
    if stop is None or isinstance(stop, StopRule):
        return stop
    if isinstance(stop, type):
        raise ConfigurationError(f"stop={stop.__name__} is a class; give one of its kind: stop={stop.__name__}(…)")
    if isinstance(stop, Mapping):
        return MetricBounds(stop)
    if callable(stop):
        return FunctionRule(stop)
    raise ConfigurationError(
        f"stop={stop!r} is no stop rule; give a dict of metric and bound such as {{'training_iteration': 100}}, a function "
        "of a trial and its report, or a rule such as TimeLimit(3600); join several by | (any) or & (all)"
    )
