"""Schedulers and stop rules: they decide when a trial or an experiment ends.

This package exports the names for writing a scheduler. ``mqtune`` exports the schedulers themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqtune.core.lazy import found_when_used

if TYPE_CHECKING:
    from mqtune.core.trial import Action, Decision
    from mqtune.schedulers import stopping
    from mqtune.schedulers.base import Fork, Release, Resume, Scheduler, Start, Wait
    from mqtune.schedulers.policy import PBTReplay, PolicyStep, policy_of

__all__ = [
    "Action",
    "Decision",
    "Fork",
    "PBTReplay",
    "PolicyStep",
    "Release",
    "Resume",
    "Scheduler",
    "Start",
    "Wait",
    "policy_of",
    "stopping",
]

_HOMES: Final[dict[str, str]] = {
    **dict.fromkeys(("Action", "Decision"), "mqtune.core.trial"),
    **dict.fromkeys(("Fork", "Release", "Resume", "Scheduler", "Start", "Wait"), "mqtune.schedulers.base"),
    **dict.fromkeys(("PBTReplay", "PolicyStep", "policy_of"), "mqtune.schedulers.policy"),
    "stopping": "mqtune.schedulers.stopping",
    # Internal names, for unit tests.
    **dict.fromkeys(("BackgroundDecisions",), "mqtune.schedulers.background"),
    **dict.fromkeys(("CONTINUE", "Choice", "START"), "mqtune.schedulers.base"),
    **dict.fromkeys(("Exploration",), "mqtune.schedulers.exploration"),
    **dict.fromkeys(("AnyRule", "MetricBounds", "Scope", "as_rule"), "mqtune.schedulers.stopping.rule"),
    **dict.fromkeys(("p_of_larger",), "mqtune.schedulers.wilcoxon"),
}
__getattr__ = found_when_used(__name__, _HOMES, checked_early=(__name__,))
