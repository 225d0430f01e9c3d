"""What a journal does, said once more and plainly: the contract's heads as a model in memory, to hold the scripts against."""

from __future__ import annotations

import copy
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mqtune.core.codec import decode_value
from mqtune.core.events import Requested
from mqtune.core.trial import UNDRIVEN, CheckpointId, Intent, TrialId
from mqtune.journal.base import (
    FENCED,
    GAP,
    Answer,
    Assignment,
    Claim,
    Entry,
    Grant,
    Guard,
    LastAttempt,
    OnLoss,
    Order,
    Segment,
    Unclaimed,
)

__all__ = ["DRIVER_FENCED", "JOURNAL_GONE", "Driver", "Model", "Run", "Taken"]

#: The outcome of a driver's call after a later driver took over, and after the server lost that the driver had the lock.
DRIVER_FENCED = "the driver is fenced"
JOURNAL_GONE = "the journal is gone"


@dataclass(frozen=True)
class Taken:
    """The outcome of asking for a lock that another driver holds: who, and how much longer."""

    holder: str
    left_s: float


@dataclass
class Driver:
    """One process that drives, or wants to; it learns its epoch from the answers that it hears."""

    owner: str
    description: str
    epoch: int = 0
    #: For how long it first took the lock.
    hold_s: float = 0.0


@dataclass
class Run:
    """One attempt: it waits, then one claim runs it, then it is over."""

    number: int
    assignment: Assignment
    staged_at: float
    claim: Claim | None = None
    worker: str = ""
    lease_until: float = 0.0
    is_over: bool = False
    #: The epoch of the driver that ended it, the intent with which it did while nobody had claimed it, or the claim.
    ended_by_driver: int = 0
    ended_by_intent: Intent | None = None
    ended_by_claim: Claim | None = None
    reports: int = 0
    intent: Intent | None = None
    decided: Intent | None = None
    orders: dict[str, str] = field(default_factory=dict)
    saved: str = ""
    held_until: float = 0.0
    #: The epoch of the driver that ended it because it was lost.
    lost_by: int = 0

    @property
    def is_running(self) -> bool:
        return self.claim is not None and not self.is_over

    @property
    def is_waiting(self) -> bool:
        return self.claim is None and not self.is_over

    @property
    def answer(self) -> Answer:
        return " ".join(self.orders.values()) if self.intent is None else self.intent.value


@dataclass
class Model:
    """One experiment's journal; a method does what the journal's of the same name does, for the driver that calls it."""

    now: float = 0.0
    #: The epochs that no driver has had yet; a server that loses what it had gives none out again.
    epochs: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    #: What the journal holds: an event as it was given, or the segments of one batch of reports.
    events: list[bytes | list[Any]] = field(default_factory=list)
    runs: dict[TrialId, Run] = field(default_factory=dict)
    #: All claims that anybody tried, and those that were ever granted.
    claims: dict[TrialId, list[Claim]] = field(default_factory=lambda: defaultdict(list))
    timestamps: dict[TrialId, float] = field(default_factory=dict)
    #: How many entries there were with each request.
    requests: dict[str, int] = field(default_factory=dict)
    closed: dict[TrialId, bytes] = field(default_factory=dict)
    data: dict[CheckpointId, bytes] = field(default_factory=dict)
    dropped: tuple[CheckpointId, ...] = ()
    defined: bytes | None = None
    owner: str = ""
    holder: str = ""
    epoch: int = 0
    held_until: float | None = None
    on_loss: OnLoss = field(default_factory=OnLoss)
    #: What each worker may be told by a hint: trial, attempt, answer.
    hints: dict[str, set[tuple[str, int, str]]] = field(default_factory=lambda: defaultdict(set))

    def as_it_was(self, before: Model | None) -> Model:
        """The model of a server that came back with what it had *before*, or with nothing; what others know stays."""
        model = Model() if before is None else copy.deepcopy(before)
        model.now, model.epochs, model.claims, model.hints = self.now, self.epochs, self.claims, self.hints
        return model

    def current(self, trial: TrialId, attempt: int) -> Run | None:
        run = self.runs.get(trial)
        return run if run is not None and run.number == attempt else None

    def held(self, claim: Claim) -> Run | None:
        """The attempt that *claim* runs; None when it doesn't."""
        run = self.current(claim.trial, claim.attempt)
        return run if run is not None and run.is_running and run.claim == claim else None

    def _hint(self, trial: TrialId, run: Run, answer: Answer) -> None:
        self.hints[run.worker].add((trial, run.number, answer))

    def _refusal(self, driver: Driver) -> str | None:
        if driver.epoch > self.epoch:
            return JOURNAL_GONE
        return DRIVER_FENCED if not driver.epoch or driver.epoch != self.epoch else None

    def _undriven(self) -> str:
        """What workers do because nobody has driven the experiment for too long, or nothing."""
        if self.on_loss.policy == "continue" or self.held_until is None:
            return ""
        return self.on_loss.policy if self.now > self.held_until + self.on_loss.grace_s else ""

    # The driver's lock.

    def lock(self, driver: Driver, owner: str, description: str, hold_s: float, dead: str, on_loss: OnLoss) -> Any:
        if driver.epoch and (refusal := self._refusal(driver)):
            return refusal
        if self.owner != owner:
            is_dead = bool(dead) and self.holder == dead
            if self.held_until is not None and self.held_until > self.now and not is_dead:
                return Taken(self.holder, self.held_until - self.now)
            self.epoch = next(self.epochs)
            self.owner, self.holder = owner, description
        if not driver.epoch:
            driver.epoch, driver.hold_s = self.epoch, hold_s
        self.held_until, self.on_loss = self.now + hold_s, on_loss
        return None

    def unlock(self, driver: Driver, owner: str, on_loss: OnLoss) -> Any:
        if self.owner == owner:
            self.held_until, self.on_loss = self.now, on_loss

    # What a driver writes.

    def record(self, driver: Driver, event: bytes, definition: bytes | None) -> Any:
        if refusal := self._refusal(driver):
            return refusal
        if definition is not None:
            self.defined = definition
        self.events.append(event)
        return None

    def stage(self, driver: Driver, trial: TrialId, attempt: int, assignment: Assignment, event: bytes) -> Any:
        if refusal := self._refusal(driver):
            return refusal
        if trial in self.runs and self.runs[trial].number >= attempt:
            return False
        self.runs[trial] = Run(attempt, assignment, self.now)
        self.events.append(event)
        return True

    def intend(self, driver: Driver, trial: TrialId, attempt: int, intent: Intent, event: bytes, ended: bytes) -> Any:
        if refusal := self._refusal(driver):
            return refusal
        if trial not in self.runs:
            self.runs[trial] = Run(attempt, Assignment({}), 0.0, is_over=True)
        run = self.current(trial, attempt)
        if run is None:
            return "superseded"
        if run.decided is not intent:
            run.decided = intent
            self.events.append(event)
        if run.is_running:
            run.intent = intent
            self._hint(trial, run, intent.value)
            return "running"
        if run.is_waiting:
            run.is_over, run.ended_by_driver, run.ended_by_intent = True, driver.epoch, intent
            self.events.append(ended)
        return "unclaimed" if (run.ended_by_driver, run.ended_by_intent) == (driver.epoch, intent) else "ended"

    def close_trial(self, driver: Driver, trial: TrialId, attempt: int, event: bytes) -> Any:
        if refusal := self._refusal(driver):
            return refusal
        if trial not in self.runs:
            self.runs[trial] = Run(attempt, Assignment({}), 0.0, is_over=True)
        run = self.current(trial, attempt)
        if run is None or not run.is_over or self.closed.get(trial) == event:
            return False
        self.closed[trial] = event
        self.events.append(event)
        return True

    def look(self, driver: Driver, attempts: Sequence[tuple[TrialId, int]], lease_s: float) -> Any:
        if refusal := self._refusal(driver):
            return refusal
        runs = [self.current(*each) for each in attempts]
        return [run is not None and not run.is_over for run in runs]

    def lose(
        self,
        driver: Driver,
        trial: TrialId,
        attempt: int,
        guard: Guard,
        event: bytes,
        timestamp: float = 0.0,
        read: str = "",
    ) -> Any:
        if refusal := self._refusal(driver):
            return refusal
        run = self.runs.get(trial)
        is_it = run is not None and run.number == attempt
        if run is not None and is_it and run.lost_by == driver.epoch:
            return True
        if guard == "gone":
            if run is not None and (run.number > attempt or (is_it and not run.is_over)):
                return False
            self.runs[trial] = run = Run(attempt, Assignment({}), 0.0)
            self.timestamps[trial] = timestamp
            self.closed.pop(trial, None)
        elif run is None or not is_it or not run.is_running or (guard == "expired" and run.lease_until > self.now):
            return False
        run.is_over, run.intent, run.lost_by = True, None, driver.epoch
        self.events.append(event)
        return True

    def forget(self, trial: TrialId) -> None:
        """A trial's key is deleted."""
        self.runs.pop(trial, None)
        self.timestamps.pop(trial, None)
        self.closed.pop(trial, None)

    def order(self, driver: Driver, orders: Sequence[Order]) -> Any:
        if refusal := self._refusal(driver):
            return refusal
        running = []
        for order in orders:
            run = self.current(order.trial, order.attempt)
            running.append(run is not None and run.is_running)
            if run is not None and run.is_running and run.intent is None:
                rest = {kind: word for kind, word in run.orders.items() if kind != order.kind}
                run.orders = {**rest, order.kind: order.word}
                self._hint(order.trial, run, order.word)
        return running

    def drop_checkpoints(self, driver: Driver, checkpoints: Sequence[CheckpointId], event: bytes) -> Any:
        if refusal := self._refusal(driver):
            return refusal
        if not checkpoints or self.dropped == tuple(checkpoints):
            return None
        self.dropped = tuple(checkpoints)
        for checkpoint in checkpoints:
            self.data.pop(checkpoint, None)
        self.events.append(event)
        return None

    def bring_checkpoint(self, driver: Driver, checkpoint: CheckpointId, data: bytes) -> Any:
        self.data.setdefault(checkpoint, data)

    def restore(
        self,
        driver: Driver,
        entries: Sequence[Entry],
        attempts: Sequence[LastAttempt],
        events: Sequence[bytes],
        requests: dict[str, str],
        definition: bytes,
    ) -> Any:
        if driver.epoch < self.epoch:
            return DRIVER_FENCED
        self.events = [*(entry.data for entry in entries), *events]
        self.runs = {trial: Run(number, Assignment({}), 0.0, is_over=True) for trial, number, _ in attempts}
        self.timestamps = {trial: timestamp for trial, _, timestamp in attempts}
        self.closed = {}
        places = {entry.id: place for place, entry in enumerate(entries, 1)}
        self.requests = {id_: places[entry] for id_, entry in requests.items()}
        self.defined, self.held_until = definition, self.now + driver.hold_s
        self.epoch, self.owner, self.holder = driver.epoch, driver.owner, driver.description
        return None

    # What anybody reads.

    def definition(self, driver: Driver) -> Any:
        return self.defined

    def checkpoint(self, driver: Driver, checkpoint: CheckpointId) -> Any:
        return self.data.get(checkpoint)

    def checkpoints(self, driver: Driver) -> Any:
        return set(self.data)

    def expired(self, driver: Driver) -> Any:
        return {trial for trial, run in self.runs.items() if run.is_running and run.lease_until <= self.now}

    def unclaimed(self, driver: Driver, older_than_s: float) -> Any:
        before = self.now - older_than_s
        return {
            (trial, run.number, run.held_until > self.now)
            for trial, run in self.runs.items()
            if run.is_waiting and run.staged_at <= before
        }

    # What anybody writes.

    def request(self, driver: Driver, event: Requested) -> Any:
        if event.id not in self.requests:
            if self.defined is None:
                return JOURNAL_GONE
            self.events.append(event.encode())
            self.requests[event.id] = len(self.events)
        return self.requests[event.id]

    # What a worker writes.

    def hold(self, driver: Driver, held: Sequence[Unclaimed], hold_s: float) -> Any:
        for trial, attempt, _, _ in held:
            run = self.current(trial, attempt)
            if run is not None and run.is_waiting:
                run.held_until = self.now + hold_s

    def claim(self, driver: Driver, claim: Claim, worker: str, lease_s: float, event: bytes) -> Any:
        if claim not in self.claims[claim.trial]:
            self.claims[claim.trial].append(claim)
        if claim.trial not in self.runs:
            return "unknown"
        run = self.current(claim.trial, claim.attempt)
        if run is None:
            return "superseded"
        if run.is_over:
            return "ended"
        if run.claim not in (None, claim):
            return "taken"
        if run.claim is None:
            if self._undriven():
                return "undriven"
            run.claim, run.worker = claim, worker
            self.events.append(event)
        run.lease_until = self.now + lease_s
        return Grant(run.assignment, self.timestamps.get(claim.trial, 0.0))

    def report(self, driver: Driver, segments: Sequence[Segment]) -> Any:
        answers, accepted = [], []
        for segment in segments:
            run = self.held(segment.claim)
            last = segment.first + segment.size - 1
            if run is None:
                answers.append(FENCED)
                continue
            if segment.first == run.reports + 1:
                run.reports = last
                self.timestamps[segment.claim.trial] = segment.timestamp
                accepted.append(decode_value(segment.data))
            answers.append(run.answer if last <= run.reports else GAP)
        if accepted:
            self.events.append(accepted)
        return answers

    def put_checkpoint(self, driver: Driver, claim: Claim, checkpoint: CheckpointId, data: bytes) -> Any:
        run = self.held(claim)
        if run is None:
            return FENCED
        self.data.setdefault(checkpoint, data)
        return run.answer

    def saved(self, driver: Driver, claim: Claim, events: dict[CheckpointId, bytes]) -> Any:
        run = self.held(claim)
        if run is None:
            return FENCED
        *_, newest = events
        if run.saved != newest:
            run.saved = newest
            self.events += events.values()
        return run.answer

    def renew(self, driver: Driver, claims: Sequence[Claim], lease_s: float) -> Any:
        answers = []
        for claim in claims:
            run = self.held(claim)
            if run is None:
                answers.append(FENCED)
                continue
            run.lease_until = self.now + lease_s
            ends = self._undriven() == "stop" and run.intent is None
            answers.append(UNDRIVEN if ends and run.intent is None else run.answer)
        return answers

    def end(self, driver: Driver, claim: Claim, event: bytes, reports: int = 0) -> Any:
        run = self.held(claim)
        if run is not None:
            if run.reports < reports:
                return False
            run.is_over, run.intent, run.ended_by_claim = True, None, claim
            self.events.append(event)
            return True
        run = self.current(claim.trial, claim.attempt)
        return run is not None and run.ended_by_claim == claim
