"""What tests of population-based training share: trials that are moved by hand, and curves to play with."""

from __future__ import annotations

import math
from typing import Any

from scheduler_play import scattered

from mqtune.core.trial import (
    Attempt,
    CheckpointId,
    Config,
    Decision,
    Metrics,
    Report,
    SavedCheckpoint,
    Trial,
    TrialId,
    TrialStatus,
)
from mqtune.schedulers.base import Choice, Resume
from mqtune.schedulers.pbt import PBT
from mqtune.schedulers.policy import PBTReplay
from mqtune.search.domains import randint, uniform


def pbt(mode: str = "min", interval: float = 2, **arguments: Any) -> PBT:
    scheduler = PBT(interval, **{"hyperparam_mutations": {"lr": uniform(0, 1)}, **arguments})
    scheduler.bind("loss", mode)
    return scheduler


class Table:
    """Moves trials by hand; each report saves a checkpoint."""

    def __init__(self, scheduler: PBT | PBTReplay) -> None:
        self.scheduler = scheduler
        self.trials: dict[str, Trial] = {}

    def stage(self, *names: str, config: Config | None = None, source: str | None = None) -> None:
        for name in names:
            trial = self.trials.setdefault(name, Trial(TrialId(name), {"lr": 0.5}))
            trial.config = config or trial.config
            origin = TrialId(source) if source else None
            start = self.trials[source or name].checkpoint
            trial.attempts.append(
                Attempt(len(trial.attempts) + 1, 0.0, config=trial.config, checkpoint=start, source=origin)
            )
            trial.checkpoint = start
            trial.status = TrialStatus.RUNNING
            self.scheduler.on_stage(trial)

    def report(
        self, name: str, now: int, loss: Any = None, *, sequence: int | None = None, saves: bool = True
    ) -> Decision:
        trial = self.trials[name]
        metrics = {"training_iteration": now} | ({} if loss is None else {"loss": loss})
        number = trial.attempt.number
        checkpoint = CheckpointId(f"m-{name}-{number}-{now}" if saves else "")
        if saves:
            trial.checkpoint = checkpoint
            trial.checkpoints[checkpoint] = SavedCheckpoint(checkpoint, 0.0, metrics)
        return self.scheduler.on_report(trial, Report(trial.id, number, sequence or now, 0.0, metrics, checkpoint))

    def pause(self, name: str) -> None:
        self.trials[name].status = TrialStatus.PAUSED
        self.scheduler.on_trial_pause(self.trials[name])

    def end(self, name: str, status: TrialStatus = TrialStatus.FAILED) -> None:
        self.trials[name].status = status
        self.scheduler.on_trial_end(self.trials[name])

    def choose(self, *, can_start: bool = True) -> Choice:
        return self.scheduler.choose(can_start=can_start)

    def resumed(self) -> Resume:
        found = self.choose()
        assert isinstance(found, Resume)
        return found


def curve(config: Config, now: int) -> Metrics | None:
    value = scattered(int(config["lr"] * 1e6), now, values=9)
    return None if now > 12 else {} if value == 8 else {"loss": math.nan if value == 7 else value}


def starting(number: int) -> Config:
    return {"lr": (number % 10) / 10, "deep": {"layers": 1 + number % 4}}


MUTATIONS = {"lr": uniform(0, 1), "deep": {"layers": randint(1, 8)}}
