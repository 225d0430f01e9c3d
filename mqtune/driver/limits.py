"""How far an experiment goes: numbers, budgets, and rules that end it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from mqtune.core.checks import optional_count, optional_seconds
from mqtune.core.errors import ConfigurationError
from mqtune.core.experiment import Experiment
from mqtune.core.trial import TrialStatus
from mqtune.schedulers.stopping.rule import StopRule

__all__ = ["LOOK_S", "FailFast", "Limits"]

FailFast = Literal[False, True, "raise"]

#: How often what goes by the clock is looked at.
LOOK_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far an experiment goes; see ``Tuner`` for each.

    Raises:
        ConfigurationError: one of them makes no sense.
    """

    max_trials: int | None = None
    max_concurrent: int | None = None
    ttl_s: float | None = None
    time_budget_s: float | None = None
    trial_time_budget_s: float | None = None
    fail_fast: FailFast = False
    rule: StopRule | None = None

    def __post_init__(self) -> None:
        optional_count("max_trials", self.max_trials, 1)
        optional_count("max_concurrent", self.max_concurrent, 1)
        optional_seconds("ttl_s", self.ttl_s)
        optional_seconds("time_budget_s", self.time_budget_s)
        optional_seconds("trial_time_budget_s", self.trial_time_budget_s)
        if not isinstance(self.fail_fast, bool) and self.fail_fast != "raise":
            raise ConfigurationError(
                f"fail_fast={self.fail_fast!r} is none of False (go on), True (stop all) and 'raise' (raise TrialFailed)"
            )

    @property
    def is_timed(self) -> bool:
        """Whether a budget of time is set."""
        return self.time_budget_s is not None or self.trial_time_budget_s is not None

    def spent(self, experiment: Experiment, now: float) -> str:
        """Return which budget is used up, or an empty text; *now* is in seconds since the epoch.

        It looks at every trial that runs, so it is for now and then.
        """
        if self.time_budget_s is not None and experiment.driven_s(now) >= self.time_budget_s:
            return f"the time budget of {self.time_budget_s:g} s is used up"
        if self.trial_time_budget_s is not None and trial_s(experiment, now) >= self.trial_time_budget_s:
            return f"the trials have run for {self.trial_time_budget_s:g} s in all, which is their budget"
        return ""


def trial_s(experiment: Experiment, now: float) -> float:
    """Return for how long trials have run in all, those that run included."""
    if not experiment.counts[TrialStatus.RUNNING]:
        return experiment.run_s
    running = [trial.attempt for trial in experiment.trials.values() if trial.status is TrialStatus.RUNNING]
    return experiment.run_s + sum(max(0.0, now - a.started_at) for a in running if a.started_at is not None)
