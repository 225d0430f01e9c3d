"""Trials that a test moves by hand, to see what their scheduler says at each step."""

from __future__ import annotations

from typing import Any

from mqtune.core.trial import (
    Action,
    Attempt,
    CheckpointId,
    Config,
    Decision,
    Report,
    SavedCheckpoint,
    Trial,
    TrialId,
    TrialStatus,
)
from mqtune.schedulers import Choice, Release, Resume, Scheduler


def bound(scheduler: Scheduler, mode: str = "min") -> Any:
    """Return a scheduler that goes by the loss."""
    scheduler.bind("loss", mode)
    return scheduler


class Table:
    """A scheduler and its trials, by name or number; who is first heard of in a report is queued before.

    Args:
        scheduler: a bound one.
        saves: whether a report saves a checkpoint where it says nothing else.
    """

    def __init__(self, scheduler: Any, *, saves: bool = False) -> None:
        self.scheduler = scheduler
        self.trials: dict[str, Trial] = {}
        self._saves = saves

    def stage(self, *names: str | int, config: Config | None = None, source: str | None = None) -> None:
        for name in map(str, names):
            trial = self.trials.setdefault(name, Trial(TrialId(name), {"lr": 0.5}))
            trial.config = config or trial.config
            copied, trial.checkpoint = TrialId(source) if source else None, self.trials[source or name].checkpoint
            number = len(trial.attempts) + 1
            trial.attempts.append(Attempt(number, 0.0, trial.config, checkpoint=trial.checkpoint, source=copied))
            trial.status = TrialStatus.RUNNING
            self.scheduler.on_queue(trial)

    def report(
        self,
        name: str | int,
        now: float,
        loss: Any = None,
        sequence: int = 0,
        saves: bool | None = None,
        **metrics: Any,
    ) -> Decision:
        """Report at a time, which is the sequence number too unless that is given."""
        if str(name) not in self.trials:
            self.stage(name)
        trial = self.trials[str(name)]
        number, given = trial.attempt.number, {"training_iteration": now, **metrics}
        if loss is not None:
            given["loss"] = loss
        checkpoint = CheckpointId("")
        if self._saves if saves is None else saves:
            checkpoint = trial.checkpoint = CheckpointId(f"m-{name}-{number}-{now}")
            trial.checkpoints[checkpoint] = SavedCheckpoint(checkpoint, 0.0, given)
        return self.scheduler.on_report(trial, Report(trial.id, number, sequence or int(now), 0.0, given, checkpoint))

    def pause(self, name: str | int) -> None:
        self.trials[str(name)].status = TrialStatus.PAUSED
        self.scheduler.on_trial_pause(self.trials[str(name)])

    def end(self, name: str | int, status: TrialStatus = TrialStatus.FAILED) -> None:
        self.trials[str(name)].status = status
        self.scheduler.on_trial_end(self.trials[str(name)])

    def abandon(self, name: str | int) -> None:
        self.trials[str(name)].status = TrialStatus.ABANDONED
        self.scheduler.on_abandon(self.trials[str(name)])
        self.end(name, TrialStatus.ABANDONED)

    def arrive(self, now: float, **losses: Any) -> None:
        """Have trials report where they are to pause, and pause."""
        for name, loss in losses.items():
            assert self.report(name, now, loss).action is Action.PAUSE
            self.pause(name)

    def choose(self, *, can_start: bool = True) -> Choice:
        return self.scheduler.choose(can_start=can_start)

    def resumed(self) -> Resume:
        found = self.choose()
        assert isinstance(found, Resume)
        return found

    def everything_chosen(self, *, can_start: bool = True) -> list[str]:
        """Carry out what is chosen until a start or a wait comes, and say what it was."""
        done = []
        while isinstance(choice := self.choose(can_start=can_start), Resume | Release):
            done.append(f"{type(choice).__name__} {choice.trial}")
            if isinstance(choice, Resume):
                self.stage(choice.trial)
            else:
                self.end(choice.trial, TrialStatus.EARLY_STOPPED)
        return done
