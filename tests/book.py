"""A journal written by hand, as a driver and its workers would write it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mqtune.core.codec import encode_value
from mqtune.core.events import (
    START,
    VERSION,
    AttemptEnded,
    AttemptStarted,
    Cursor,
    DecisionTaken,
    ExperimentCreated,
    ExperimentEnded,
    Reports,
    TrialStaged,
)
from mqtune.core.objective import Modes, Objective
from mqtune.core.trial import AttemptEnd, Intent, TrialId
from mqtune.journal import JOURNAL_FILE, Entry, JournalFile

ASHA = {"scheduler": "asha", "max_t": 9, "grace_period": 1, "reduction_factor": 3, "time_attr": "training_iteration"}


class Book:
    """Events one by one; each entry is a second after the one before, and the driver has always seen all of them."""

    def __init__(
        self,
        folder: Path,
        *,
        metric: str | list[str] = "loss",
        mode: Modes = "min",
        scheduler: dict[str, Any] | None = None,
        max_failures: int = 0,
        accept_no_report: bool = False,
        code_files: dict[str, str] | None = None,
        space: dict[str, Any] | None = None,
        stop: dict[str, Any] | None = None,
        store: str | None = None,
    ):
        self.folder = folder
        self.entries: list[Entry] = []
        self.attempts: dict[str, int] = {}
        self.sequences: dict[str, int] = {}
        self.cursor = START
        objective = Objective.of(metric, mode)
        definition = {
            "metric": objective.metric,
            "mode": mode,
            "max_failures": max_failures,
            "scheduler": scheduler or {"scheduler": "fifo"},
            "max_trials": 4,
            "accept_no_report": accept_no_report,
            "code_files": code_files or {},
            "searcher": {"searcher": "random"},
            **objective.kept_constraints,
        }
        if space is not None:
            definition["space"] = space
        if stop is not None:
            definition["stop"] = stop
        if store is not None:
            definition["store"] = store
        self.write(ExperimentCreated(name=folder.name, definition=definition, at=self.now).encode())

    @property
    def now(self) -> float:
        return 1_700_000_000.0 + len(self.entries)

    def write(self, data: bytes) -> str:
        id_ = f"{len(self.entries) + 1}-0"
        self.entries.append(Entry(id_, data))
        return id_

    def stage(self, trial: str, config: dict[str, Any] | None = None, *, start: bool = True) -> None:
        attempt = self.attempts[trial] = self.attempts.get(trial, 0) + 1
        self.sequences[trial] = 0
        staged = TrialStaged(
            trial=TrialId(trial), attempt=attempt, config=config or {"lr": 0.1}, at=self.now, cursor=self.cursor
        )
        self.write(staged.encode())
        if start:
            self.start(trial)

    def start(self, trial: str, **details: Any) -> None:
        started = AttemptStarted(
            trial=TrialId(trial),
            attempt=self.attempts[trial],
            host="host",
            at=self.now,
            stdout_path=f"/logs/{trial}.stdout",
            stderr_path=f"/logs/{trial}.stderr",
            **{"worker": "w1@host", "devices": ["0"], **details},
        )
        self.cursor = Cursor(self.write(started.encode()))

    def report(self, trial: str, *metrics: dict[str, Any]) -> None:
        segment = [trial, self.attempts[trial], self.sequences[trial] + 1, [[self.now, each] for each in metrics]]
        self.sequences[trial] += len(metrics)
        self.cursor = Cursor(self.write(encode_value([VERSION, Reports.KIND, [segment]])), len(metrics))

    def decide(self, trial: str, action: str = "stop", reason: str = "rung 1") -> None:
        decision = DecisionTaken(
            trial=TrialId(trial),
            attempt=self.attempts[trial],
            sequence=self.sequences[trial],
            action=action,
            intent=Intent.STOP,
            reason=reason,
            at=self.now,
            cursor=self.cursor,
        )
        self.write(decision.encode())

    def end(self, trial: str, end: AttemptEnd = AttemptEnd.COMPLETED, **details: Any) -> None:
        ended = AttemptEnded(trial=TrialId(trial), attempt=self.attempts[trial], end=end, at=self.now, pid=7, **details)
        self.cursor = Cursor(self.write(ended.encode()))

    def finish(self, outcome: str = "finished") -> None:
        self.write(ExperimentEnded(outcome=outcome, reason="", at=self.now, cursor=self.cursor).encode())

    def run(self, trial: str, *losses: float, config: dict[str, Any] | None = None) -> None:
        """Have a trial report these losses and complete."""
        self.stage(trial, config)
        if losses:
            self.report(trial, *({"loss": loss, "epoch": epoch} for epoch, loss in enumerate(losses, 1)))
        self.end(trial)

    def save(self) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        copy = JournalFile(self.folder / JOURNAL_FILE)
        copy.begin(self.entries)
        copy.close()
        return self.folder
