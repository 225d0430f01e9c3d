"""Stop rules: they end a trial, or the whole experiment.

This package exports the base class for rules, and the rules that count something. ``mqtune`` exports the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqtune.core.lazy import found_when_used

if TYPE_CHECKING:
    from mqtune.schedulers.stopping.experiment_rules import (
        ReportsReceived,
        TrialsCompleted,
        TrialsEnded,
        TrialsFailed,
        TrialsStarted,
    )
    from mqtune.schedulers.stopping.rule import StopRule
    from mqtune.schedulers.stopping.trial_rules import MaximumIteration

__all__ = [
    "MaximumIteration",
    "ReportsReceived",
    "StopRule",
    "TrialsCompleted",
    "TrialsEnded",
    "TrialsFailed",
    "TrialsStarted",
]

_HOMES: Final[dict[str, str]] = {
    **dict.fromkeys(
        ("ReportsReceived", "TrialsCompleted", "TrialsEnded", "TrialsFailed", "TrialsStarted"),
        "mqtune.schedulers.stopping.experiment_rules",
    ),
    "StopRule": "mqtune.schedulers.stopping.rule",
    "MaximumIteration": "mqtune.schedulers.stopping.trial_rules",
}
__getattr__ = found_when_used(__name__, _HOMES, checked_early=(__name__,))
