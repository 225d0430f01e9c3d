"""A worker without Celery and Redis: one slot, a journal in memory, and attempts with real processes."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from impaired import nothing_impaired
from waiting import DEADLINE_S, eventually

from mqtune.core.codec import encode_value
from mqtune.core.events import START, AttemptEnded, DecisionTaken, ExperimentCreated, Reports, TrialStaged, decode_event
from mqtune.core.resources import Resources
from mqtune.core.timing import Timing
from mqtune.core.trial import CheckpointId, Intent, Report, TrialId
from mqtune.journal import Assignment, Claim, Intended, MemoryJournal, MemoryServer
from mqtune.services.folders.worker import Folders
from mqtune.services.late_imports.known import LateImports
from mqtune.services.reuse.worker import Reuse
from mqtune.worker import (
    AttemptRun,
    ExperimentHere,
    Logs,
    MemoryKills,
    RunResult,
    Scratch,
    SlotPlan,
    Slots,
    Uplink,
    WorkerHooks,
    WorkerParts,
    ZygoteFinder,
)
from mqtune.worker.ports import WorkerService


class Machine:
    """A worker without Celery and Redis: one slot, and a journal in memory."""

    def __init__(self, folder: Path, code: str, timing: Timing, *services: WorkerService) -> None:
        self.code_root, self.log_root = folder / "code", folder / "logs"
        self.code_root.mkdir()
        (self.code_root / "worker_code.py").write_text(code)
        self.grace_s = 10.0
        # As in a worker, they outlive the zygotes that they start.
        self.threads = ThreadPoolExecutor(8)
        self.runs: list[AttemptRun] = []
        scratch = Scratch(self.log_root)
        hooks = WorkerHooks([Folders(self.log_root, scratch), Reuse(), *services])
        slots = Slots(
            SlotPlan(offer=Resources(cpus=1), devices=((),)),
            self.log_root,
            nothing_impaired(),
            hooks,
            preloads=LateImports(self.log_root),
            timing=timing,
        )
        (self.slot,), self.back_off = slots.all, slots.back_off
        self.parts = WorkerParts(
            name="w1@here",
            host="here",
            queue="mqtune.cpu1",
            timing=timing,
            grace_s=10.0,
            clock=time,
            uplink=Uplink(time, timing),
            logs=Logs(self.log_root, (), nothing_impaired()),
            scratch=scratch,
            slots=slots,
            zygotes=ZygoteFinder("w1@here", self.code_root, self.log_root, hooks),
            memory_kills=MemoryKills(None),
            wake_consumer=lambda: None,
            hooks=hooks,
        )
        self.parts.uplink.start()
        self.begin(MemoryServer())

    def begin(
        self, server: MemoryServer, open_journal: Callable[[MemoryServer, str], MemoryJournal] = MemoryJournal
    ) -> None:
        """Begin an experiment anew, on this server; attempts use a journal that is opened so."""
        self.server = server
        self.open_journal = open_journal
        self.attempts: dict[str, int] = {}
        self.driver = MemoryJournal(server, "e")
        self.driver.lock("driver", "a test", 600)
        created = ExperimentCreated(name="e", definition={}, at=1.0)
        self.driver.record(created.encode(), definition=encode_value(created.definition))

    def start(
        self,
        name: str,
        config: dict[str, Any] | None = None,
        *,
        trial: str = "0001",
        checkpoint: str = "",
        timeout_s: float | None = None,
        kind: str = "function",
        **definition: Any,
    ) -> Attempt:
        """Stage the next attempt of a trial and have it run."""
        number = self.stage(config, trial=trial, checkpoint=checkpoint, timeout_s=timeout_s)
        return self.attempt(number, name, trial=trial, kind=kind, **definition)

    def stage(
        self,
        config: dict[str, Any] | None = None,
        *,
        trial: str = "0001",
        checkpoint: str = "",
        timeout_s: float | None = None,
    ) -> int:
        """Stage the next attempt of a trial; returns its number."""
        number = self.attempts[trial] = self.attempts.get(trial, 0) + 1
        staged = TrialStaged(trial=TrialId(trial), attempt=number, config=config or {}, at=1.0, cursor=START)
        assignment = Assignment(config or {"x": 1}, CheckpointId(checkpoint), timeout_s)
        assert self.driver.stage(TrialId(trial), number, assignment, staged.encode())
        return number

    def attempt(
        self, number: int, name: str = "steady", *, trial: str = "0001", kind: str = "function", **definition: Any
    ) -> Attempt:
        """Have an attempt run, if it can be claimed."""
        whole = {"trainable": {"name": name, "module": "worker_code", "kind": kind}, "metric": "loss", **definition}
        return Attempt(self, Claim(TrialId(trial), number, uuid.uuid4().hex), whole)

    def events(self) -> list[Any]:
        return [decode_event(entry.data) for entry in self.driver.read("0-0", count=100_000)]

    def end_all(self) -> None:
        """Kill the trials that run."""
        for run in self.runs:
            if run.is_running:
                run.terminate(kill=True)
        self.runs.clear()

    def close(self) -> None:
        self.end_all()
        self.threads.shutdown()
        self.parts.slots.close()
        self.parts.uplink.close()


class Attempt:
    """An attempt that a thread supervises."""

    def __init__(self, machine: Machine, claim: Claim, definition: dict[str, Any]) -> None:
        self.machine, self.claim = machine, claim
        parts = dataclasses.replace(machine.parts, grace_s=machine.grace_s)
        self.run = AttemptRun(parts, ExperimentHere(machine.open_journal(machine.server, "e"), definition), claim)
        machine.runs.append(self.run)
        self.outcome: RunResult | None = None
        self._thread = machine.threads.submit(self._supervise)

    def _supervise(self) -> None:
        with contextlib.closing(self.run):
            self.run.prepare()
            self.outcome = self.run.run(self.machine.slot)

    def of(self, kind: type) -> list[Any]:
        """Return this attempt's events of a kind in the journal."""
        events = [event for event in self.machine.events() if isinstance(event, kind)]
        return [event for event in events if (event.trial, event.attempt) == self.claim[:2]]

    @property
    def reports(self) -> list[Report]:
        every = (report for event in self.machine.events() if isinstance(event, Reports) for report in event)
        return [report for report in every if (report.trial, report.attempt) == self.claim[:2]]

    def has_reported(self, count: int) -> Attempt:
        eventually(lambda: len(self.reports) >= count or self.outcome)
        assert len(self.reports) >= count
        return self

    def decide(self, intent: Intent) -> Intended:
        """Decide as a driver does, without the hint; returns how the attempt stands."""
        decision = DecisionTaken(
            trial=self.claim.trial,
            attempt=self.claim.attempt,
            sequence=0,
            action=intent.value,
            intent=intent,
            reason="",
            at=1.0,
            cursor=START,
        )
        return self.machine.driver.intend(*self.claim[:2], intent, decision.encode(), b"")

    def intend(self, intent: Intent) -> Attempt:
        """Decide as a driver does, with the hint."""
        assert self.decide(intent) == "running"
        self.run.on_answer(intent.value)
        return self

    def ended_unclaimed(self) -> str:
        """Why it was not run."""
        outcome = self.finished()
        assert outcome.end is None
        return outcome.note

    def beat(self) -> None:
        """Renew the lease and act on the answer, as a worker's heartbeat does."""
        (answer,) = self.run.journal.renew([self.claim], self.machine.parts.timing.lease_s)
        self.run.on_answer(answer)
        self.run.write_again_if_in_doubt()

    def finished(self) -> RunResult:
        """Wait until all its processes have exited; returns how it ended."""
        self._thread.result(3 * DEADLINE_S)
        assert self.outcome is not None
        return self.outcome

    def ended(self) -> AttemptEnded:
        self._thread.result(3 * DEADLINE_S)
        (ended,) = self.of(AttemptEnded)
        return ended  # type: ignore[no-any-return]
