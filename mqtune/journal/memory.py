"""A journal in the memory of one process, for unit tests and for runs without a server."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from mqtune.core.codec import REPORTS_PREFIX
from mqtune.core.errors import DriverFenced, JournalGone, NameTaken
from mqtune.core.events import Requested
from mqtune.core.tasks import task_names
from mqtune.core.trial import UNDRIVEN, CheckpointId, Intent, TrialId
from mqtune.journal.base import (
    BROKEN_S,
    FENCED,
    GAP,
    WAIT,
    Answer,
    Assignment,
    AttemptCheck,
    Chapter,
    Claim,
    DriverState,
    EndedBy,
    Entry,
    Fared,
    Grant,
    Guard,
    Intended,
    Journal,
    LastAttempt,
    Order,
    Others,
    Refusal,
    Reserved,
    Segment,
    ServerState,
    Unclaimed,
    entry_order,
)
from mqtune.journal.files.chapters import ChapterReader
from mqtune.journal.memory_server import MemoryExperiment, MemoryServer, TrialState, is_apart


class MemoryJournal(Journal):
    """One experiment's journal in memory. Journals with the same server share their data."""

    def __init__(self, server: MemoryServer, experiment: str) -> None:
        self.experiment = experiment
        self.keeps = not server.forgets
        self.server = server
        self._lock = server.changed
        self._epoch = 0
        self._chapters = ChapterReader(self)
        #: The arguments with which the driver's lock was taken: holder, description and duration.
        self._held_by = ("", "", 0.0)
        with self._lock:
            self._state = server.experiments.setdefault(experiment, MemoryExperiment())

    def _append(self, event: bytes) -> int:
        """Append an event, and return the number of its entry."""
        state = self._state
        number = state.forgotten + len(state.entries) + 1
        state.entries.append(Entry(f"{number}-{self.server.losses}", event))
        state.size += len(event)
        self._lock.notify_all()
        return number

    def _check_epoch(self) -> None:
        if self._epoch > self._state.epoch:
            raise JournalGone(f"experiment {self.experiment!r}: the events that this driver has written are gone")
        if not self._epoch or self._epoch != self._state.epoch:
            raise DriverFenced(f"experiment {self.experiment!r}: another driver has taken over")

    def _attempt_in(self, state: str, trial: TrialId, attempt: int) -> TrialState | None:
        """Return a trial's last attempt, if it has this number and this state."""
        known = self._state.trials.get(trial)
        return known if known is not None and (known.attempt, known.state) == (attempt, state) else None

    def lock(self, holder: str, description: str, hold_s: float, *, dead: str = "") -> None:
        with self._lock:
            state, now = self._state, self.server.clock()
            if self._epoch:
                self._check_epoch()
            if state.holder != holder:
                if self._epoch:
                    raise DriverFenced(f"experiment {self.experiment!r}: another driver has taken over")
                if state.driver_until is not None and state.driver_until > now and not (dead and state.driver == dead):
                    raise NameTaken(
                        f"experiment {self.experiment!r} is driven by {state.driver}, which took it "
                        f"{now - state.driver_since:.0f} s ago; choose another name",
                        holder=state.driver,
                        left_s=state.driver_until - now,
                    )
                state.epoch = self.server.epochs = max(self.server.epochs, state.epoch) + 1
                state.holder, state.driver, state.driver_since = holder, description, now
            if not self._epoch:
                self._epoch, self._held_by = state.epoch, (holder, description, hold_s)
            state.driver_until = now + hold_s

    def heartbeat(self, holder: str, hold_s: float, state: DriverState) -> ServerState:
        with self._lock:
            self._check_epoch()
            self.lock(holder, "", hold_s)
            self._state.on_loss, self._state.most_bytes = state.on_loss, state.most_bytes
            return ServerState(self._state.size)

    def unlock(self, holder: str) -> None:
        with self._lock:
            if self._state.holder == holder:
                self._state.driver_until = self.server.clock()

    def _undriven(self) -> str:
        """Return the workers' policy if the driver has been away for the grace period; else ""."""
        state = self._state
        if state.on_loss.policy == "continue" or state.driver_until is None:
            return ""
        is_gone = self.server.clock() > state.driver_until + state.on_loss.grace_s
        return state.on_loss.policy if is_gone else ""

    def definition(self) -> bytes | None:
        return self._state.definition

    def record(self, *events: bytes, definition: bytes | None = None) -> None:
        with self._lock:
            self._check_epoch()
            if definition is not None:
                self._state.definition = definition
            for event in events:
                self._append(event)

    def stage(self, trial: TrialId, attempt: int, assignment: Assignment, event: bytes) -> bool:
        with self._lock:
            self._check_epoch()
            before = self._state.trials.get(trial)
            if before is not None and before.attempt >= attempt:
                return False
            now, kept = self.server.clock(), assignment.encode()
            if before is not None and before.task_plan:
                self._state.forget_tasks(trial)
            for name in task_names(trial, assignment.tasks):
                # Removed first, so that the dict keeps the order in which attempts were staged.
                self._state.trials.pop(name, None)
                self._state.trials[name] = TrialState(attempt, kept, staged_at=now, task_plan=assignment.task_plan)
            if before is not None:
                self._state.trials[trial].timestamp, self._state.trials[trial].closed = before.timestamp, before.closed
            self._append(event)
            return True

    def intend(self, trial: TrialId, attempt: int, intent: Intent, event: bytes, ended: bytes) -> Intended:
        with self._lock:
            self._check_epoch()
            state = self._state.trials.get(trial)
            if state is None:
                state = self._state.trials[trial] = TrialState(attempt, b"", state="ended")
            if state.attempt != attempt:
                return "superseded"
            if state.decided != intent.value:
                state.decided = intent.value
                self._append(event)
            ended_by, is_running, was_staged = f"{self._epoch}:{intent.value}", False, state.state == "staged"
            for task in self._state.tasks(trial, state.task_plan):
                if task.state == "running":
                    is_running = True
                    if task is state or not intent.effect.keeps_state:
                        task.intent = intent.value
                elif task.state == "staged":
                    task.state, task.ended_by = "ended", ended_by
            if is_running:
                return "running"
            if was_staged:
                self._append(ended)
            return "unclaimed" if state.ended_by == ended_by else "ended"

    def close_trial(self, trial: TrialId, attempt: int, event: bytes) -> bool:
        with self._lock:
            self._check_epoch()
            state = self._state.trials.get(trial)
            if state is None:
                state = self._state.trials[trial] = TrialState(attempt, b"", state="ended")
            if (state.attempt, state.state) != (attempt, "ended") or state.closed == event:
                return False
            state.closed = event
            self._append(event)
            return True

    def order(self, orders: Sequence[Order]) -> list[bool]:
        with self._lock:
            self._check_epoch()
            running = [self._attempt_in("running", order.trial, order.attempt) for order in orders]
            for order, state in zip(orders, running, strict=True):
                if state is not None:
                    # Removed first, so that the order comes last, as on Redis.
                    state.orders.pop(order.kind, None)
                    state.orders[order.kind] = order.word
            return [state is not None for state in running]

    def drop_checkpoints(self, checkpoints: Sequence[CheckpointId], event: bytes) -> None:
        with self._lock:
            self._check_epoch()
            for checkpoint in checkpoints:
                self._state.checkpoints.pop(checkpoint, None)
            if checkpoints and self._state.dropped != tuple(checkpoints):
                self._state.dropped = tuple(checkpoints)
                self._append(event)

    def checkpoint(self, checkpoint: CheckpointId) -> bytes | None:
        return self._state.checkpoints.get(checkpoint)

    def expired(self) -> list[TrialId]:
        with self._lock:
            now = self.server.clock()
            trials = self._state.trials.items()
            return [trial for trial, state in trials if state.state == "running" and state.lease_until <= now]

    def look(self, attempts: Sequence[tuple[TrialId, int]], lease_s: float) -> AttemptCheck:
        with self._lock:
            self._check_epoch()
            now, are_under_way = self.server.clock(), []
            for trial, attempt in attempts:
                standing, tasks = self._state.standing(trial, attempt)
                is_under_way = standing in ("running", "staged")
                are_under_way.append(is_under_way)
                for name, task in zip(task_names(trial, len(tasks)), tasks if is_under_way else (), strict=False):
                    if task.lease_until == math.inf:
                        task.lease_until = now + lease_s
                    if task.staged_at == math.inf:
                        task.staged_at = now
                        self._state.trials[name] = self._state.trials.pop(name)
            entries = self._state.entries
            return AttemptCheck(entries[-1].id if entries else "", are_under_way)

    def lose(
        self, trial: TrialId, attempt: int, guard: Guard, event: bytes, timestamp: float = 0.0, read: str = ""
    ) -> bool:
        with self._lock:
            self._check_epoch()
            state, ended_by = self._state.trials.get(trial), f"{self._epoch}:lost"
            is_it = state is not None and state.attempt == attempt
            if state is not None and is_it and state.ended_by == ended_by:
                return True
            standing, tasks = self._state.standing(trial, attempt)
            others = False
            if guard == "gone":
                entries = self._state.entries
                has_read_all = bool(entries) and entries[-1].id == read
                if state is not None and state.attempt > attempt and not has_read_all:
                    return False
                if standing in ("running", "staged"):
                    return False
                self._state.forget_tasks(trial, "" if state is None else state.task_plan)
                state = self._state.trials[trial] = TrialState(attempt, b"", timestamp=timestamp)
                tasks = [state]
            else:
                now, running = self.server.clock(), [task for task in tasks if task.state == "running"]
                has_expired = any(task.lease_until <= now or task.lease_until == math.inf for task in running)
                if state is None or standing != "running" or (guard == "expired" and not has_expired):
                    return False
                others = state.ended_as not in ("", "failure")
                if not others and state.timestamp != timestamp and self._state.has_reports(trial, read):
                    return False
            for task in tasks:
                task.state, task.intent, task.ended_by = "ended", "", f"{self._epoch}:" if others else ended_by
            self._append(state.end if others else event)
            return not others

    def erase(self, trials: Sequence[TrialId]) -> None:
        with self._lock:
            self._check_epoch()
            state = self._state
            # So new entries never reuse the id of a deleted one.
            state.forgotten += len(state.entries)
            state.entries.clear()
            state.checkpoints.clear()
            state.requests.clear()
            state.dropped, state.definition = (), None
            state.chapters, state.first = [], None
            state.size = state.most_bytes = 0
            for trial in trials:
                state.trials.pop(trial, None)
                self._state.forget_tasks(trial)

    def unclaimed(self, *, older_than_s: float = 0.0, count: int | None = None) -> list[Unclaimed]:
        with self._lock:
            now, unclaimed = self.server.clock(), []
            for trial, state in self._state.trials.items():
                if state.state == "staged" and state.staged_at <= now - older_than_s:
                    importing_s = None if state.imports_at is None else now - state.imports_at
                    held = (state.held_by, importing_s) if state.held_until > now else ()
                    unclaimed.append((state.staged_at, Unclaimed(trial, state.attempt, *held)))
            return [pair for _, pair in sorted(unclaimed, key=lambda pair: pair[0])][:count]

    def read(self, after: str, *, count: int, block_s: float = 0) -> list[Entry]:
        def read_server(after: str, count: int, may_wait: bool) -> tuple[list[Entry], str]:
            return self._read_server(after, count, block_s if may_wait else 0)

        return self._chapters.read(after, count, read_server)

    def _read_server(self, after: str, count: int, block_s: float) -> tuple[list[Entry], str]:
        with self._lock:
            state = self._state
            at = state.index_after(after)
            if block_s and at >= len(state.entries):
                self._lock.wait_for(lambda: state.index_after(after) < len(state.entries), timeout=block_s)
                at = state.index_after(after)
            if self.server.forgets and at:
                del state.entries[:at]
                state.forgotten, at = state.forgotten + at, 0
            return state.entries[at : at + count], state.chapters[-1].last if state.chapters else ""

    def first(self) -> Entry | None:
        with self._lock:
            return self._state.first or next(iter(self._state.entries), None)

    def holds(self, entry: str) -> bool:
        with self._lock:
            state = self._state
            at = state.index_after(entry) - 1
            if not state.chapters or entry_order(entry) > entry_order(state.chapters[-1].last):
                return at < 0 or (at < len(state.entries) and state.entries[at].id == entry)
        return self._chapters.has(entry)

    def chapters(self) -> list[Chapter]:
        with self._lock:
            return list(self._state.chapters)

    def trim(self, chapter: Chapter, before: str) -> int | None:
        with self._lock:
            self._check_epoch()
            state = self._state
            last, at = state.chapters[-1].last if state.chapters else "", state.index_after(chapter.last)
            is_next = last == before and 0 < at < len(state.entries) and state.entries[at - 1].id == chapter.last
            is_next = is_next and (bool(last) or state.entries[0].id == chapter.first)
            if is_next and last != chapter.last:
                state.first = state.first or state.entries[0]
                state.chapters.append(chapter)
                state.forgotten += at
                del state.entries[:at]
                state.size = max(0, state.size - chapter.size)
            return state.size if is_next or last == chapter.last else None

    def checkpoints(self) -> set[CheckpointId]:
        with self._lock:
            return set(self._state.checkpoints)

    def bring_checkpoint(self, checkpoint: CheckpointId, data: bytes) -> None:
        with self._lock:
            self._state.checkpoints.setdefault(checkpoint, data)

    def restore(
        self,
        entries: Callable[[], Iterable[Entry]],
        attempts: Sequence[LastAttempt],
        events: Sequence[bytes],
        *,
        requests: Mapping[str, str],
        definition: bytes,
        chapters: Sequence[Chapter] = (),
        first: Entry | None = None,
    ) -> None:
        with self._lock:
            state = self._state
            if self._epoch < state.epoch:
                raise DriverFenced(f"experiment {self.experiment!r}: another driver has taken over")
            state.entries, state.chapters, state.first = list(entries()), list(chapters), first
            if chapters:
                # So later entries have higher ids than those in chapters.
                state.forgotten = max(state.forgotten, entry_order(chapters[-1].last)[0])
            state.size = sum(len(entry.data) for entry in state.entries)
            state.definition, state.epoch = definition, self._epoch
            state.holder, state.driver, hold_s = self._held_by
            state.driver_until = self.server.clock() + hold_s
            state.requests = dict(requests)
            state.trials = {
                trial: TrialState(attempt, b"", state="ended", ended_by="restored", timestamp=at)
                for trial, attempt, at in attempts
            }
            for event in events:
                self._append(event)

    def request(self, event: Requested) -> str:
        with self._lock:
            requests = self._state.requests
            if event.id not in requests:
                if self._state.definition is None:
                    raise JournalGone(f"there is no experiment {self.experiment!r}")
                self._append(event.encode())
                requests[event.id] = self._state.entries[-1].id
            return requests[event.id]

    def hold(self, held: Sequence[Unclaimed], hold_s: float) -> None:
        with self._lock:
            now = self.server.clock()
            for trial, attempt, worker, importing_s in held:
                state = self._attempt_in("staged", trial, attempt)
                if state is not None:
                    state.held_until, state.held_by = now + hold_s, worker
                    state.imports_at = None if importing_s is None else now - importing_s

    def claim(
        self, claim: Claim, worker: str, lease_s: float, event: bytes, address: str = ""
    ) -> Grant | Refusal | Reserved:
        with self._lock:
            state = self._state.trials.get(claim.trial)
            if state is None:
                return "unknown"
            if state.attempt != claim.attempt:
                return "superseded"
            if state.state == "ended":
                return "ended"
            if state.state == "running" and state.token != claim.token:
                return "taken"
            trial, _ = claim.task
            tasks, now = self._state.tasks(trial, state.task_plan), self.server.clock()
            if state.state == "staged":
                if state.task_plan and lease_s == 0:
                    state.token = "" if state.token == claim.token else state.token
                    return "left"
                if (refusal := self._refusal(claim, worker, state, tasks)) is not None:
                    return refusal
                state.worker, state.token, state.address, state.start = worker, claim.token, address, event
                if not all(task is state or task.is_taken(now) for task in tasks):
                    state.reserved_until = now + lease_s
                    return "reserved"
                for task in tasks:
                    task.state, task.lease_until = "running", now + lease_s
                    self._append(task.start)
            elif lease_s:
                state.lease_until = now + lease_s
            return Grant(
                Assignment.decode(state.assignment), state.timestamp, tasks[0].address if state.task_plan else ""
            )

    def _refusal(self, claim: Claim, worker: str, state: TrialState, tasks: list[TrialState]) -> Refusal | None:
        """Return why a claim of a staged attempt or task is refused. None if it is not."""
        if self._state.is_revoked(claim.task[0], claim.attempt):
            return "revoked"
        if self._undriven():
            return "undriven"
        if not state.task_plan or state.token == claim.token:
            return None
        now = self.server.clock()
        if state.is_taken(now):
            return "taken"
        if is_apart(state.task_plan) and any(task.is_taken(now) and task.worker == worker for task in tasks):
            return "beside"
        return "after" if self._state.comes_after(claim.task[0], state.task_plan, worker, now) else None

    def _running(self, claim: Claim) -> TrialState | None:
        """Return the running attempt of a claim. None if the claim is fenced."""
        trial, attempt, token = claim
        state = self._state.trials.get(trial)
        is_held = state is not None and state.attempt == attempt and state.token == token and state.state == "running"
        return state if is_held else None

    def _wait_if_full(self) -> str:
        """Return WAIT while the journal is full, else an empty text."""
        return WAIT if 0 < self._state.most_bytes <= self._state.size else ""

    def report(self, segments: Sequence[Segment]) -> list[Answer]:
        with self._lock:
            answers: list[Answer] = []
            accepted: list[bytes] = []
            for claim, first, size, timestamp, data in segments:
                state = self._running(claim)
                if state is None:
                    answers.append(FENCED)
                elif first == state.sequence + 1:
                    state.sequence, state.timestamp = first + size - 1, timestamp
                    accepted.append(data)
                    answers.append(state.answer)
                else:
                    answers.append(state.answer if first + size - 1 <= state.sequence else GAP)
            if accepted:
                length = b"\xdd" + len(accepted).to_bytes(4, "big")
                self._append(REPORTS_PREFIX + length + b"".join(accepted))
            wait = self._wait_if_full()
            return [_or_wait(answer, wait) for answer in answers]

    def put_checkpoint(self, claim: Claim, checkpoint: CheckpointId, data: bytes) -> Answer:
        with self._lock:
            state = self._running(claim)
            if state is None:
                return FENCED
            self._state.checkpoints.setdefault(checkpoint, data)
            return state.answer

    def saved(self, claim: Claim, events: Mapping[CheckpointId, bytes]) -> Answer:
        with self._lock:
            state = self._running(claim)
            if state is None:
                return FENCED
            newest = list(events)[-1]
            is_new = state.saved != newest
            if is_new:
                state.saved = newest
                for event in events.values():
                    self._append(event)
            return _or_wait(state.answer, self._wait_if_full())

    def renew(self, claims: Sequence[Claim], lease_s: float) -> list[Answer]:
        with self._lock:
            answers: list[Answer] = []
            ends = self._undriven() == "stop"
            for claim in claims:
                state = self._running(claim)
                if state is not None:
                    state.lease_until = self.server.clock() + lease_s
                undriven = ends and state is not None and not state.intent
                answers.append(FENCED if state is None else UNDRIVEN if undriven else state.answer)
            return answers

    def compare(self, fared: Fared, worker: str, device: str) -> Others:
        with self._lock:
            state, now = self._state, self.server.clock()
            who = {"well": worker, "failed": worker, "broken": f"{worker} {device}"}
            noted = (state.fared.get(kind, (-math.inf, mine)) for kind, mine in who.items())
            well, failed, broken = (
                math.inf if by == mine else now - at for (at, by), mine in zip(noted, who.values(), strict=True)
            )
            kind: Fared = "failed" if fared == "broken" and broken < BROKEN_S else fared
            state.fared[kind] = now, who[kind]
            running = sum(trial.state == "running" for trial in state.trials.values())
            return Others(well, failed, broken < BROKEN_S, running)

    def end(self, claim: Claim, event: bytes, reports: int = 0, by: EndedBy = "itself") -> bool:
        with self._lock:
            state = self._state.trials.get(claim.trial)
            if state is None or (state.attempt, state.token) != claim[1:] or not state.token:
                return False
            if state.state == "ended":
                return state.ended_by == claim.token
            if state.state != "running" or state.sequence < reports:
                return False
            state.state, state.intent, state.ended_by = "ended", "", claim.token
            tasks = self._state.tasks(claim.task[0], state.task_plan)
            first = tasks[0]
            counts = state is first or by == "worker" or (by == "failure" and not first.intent)
            if (counts and not first.ended_as) or (first.ended_as == "failure" and by == "worker"):
                first.ended_as, first.end = by, event
            running = [task for task in tasks if task.state == "running"]
            for task in running if counts else ():
                task.intent = task.intent or (Intent.STOP if by == "itself" else Intent.HAND_BACK).value
            if not running:
                self._append(first.end)
            return True


def _or_wait(answer: Answer, wait: str) -> Answer:
    """Return the answer to an attempt's message, with *wait* appended if the attempt continues."""
    return f"{answer} {wait}".strip() if not answer or ":" in answer else answer
