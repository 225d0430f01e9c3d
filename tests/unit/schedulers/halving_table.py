"""A promotion ASHA whose trials a test moves by hand."""

from __future__ import annotations

from typing import Any

from mqtune.core.trial import Attempt, Decision, Metrics, Report, Trial, TrialId, TrialStatus
from mqtune.schedulers.asha import PromotionASHA
from mqtune.schedulers.base import Scheduler


def bound(scheduler: Scheduler) -> Any:
    """Return a scheduler that minimises the loss."""
    scheduler.bind("loss", "min")
    return scheduler


class Table:
    """Moves trials of a promotion ASHA by hand."""

    def __init__(self, **arguments: Any) -> None:
        self.scheduler: PromotionASHA = bound(PromotionASHA(**arguments))
        self.trials: dict[int, Trial] = {}

    def stage(self, number: int) -> None:
        trial = self.trials.setdefault(number, Trial(TrialId(str(number)), {}))
        trial.attempts.append(Attempt(len(trial.attempts) + 1, 0.0))
        trial.status = TrialStatus.RUNNING
        self.scheduler.on_stage(trial)

    def report(self, number: int, now: int, loss: float | None) -> Decision:
        trial = self.trials[number]
        metrics: Metrics = {"training_iteration": now, "loss": loss}
        return self.scheduler.on_report(trial, Report(trial.id, trial.attempt.number, now, 0.0, metrics))

    def pause(self, number: int) -> None:
        self.scheduler.on_trial_pause(self.trials[number])
