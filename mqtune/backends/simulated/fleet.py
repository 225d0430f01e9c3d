"""Simulated workers. They claim, run and end attempts in virtual time."""

from __future__ import annotations

import heapq
import math
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

from mqtune.backends.simulated.reports import Item, Source
from mqtune.checkpoints.dicts import decode_dict, encode_dict
from mqtune.core.codec import ReportEncoder, report_packer
from mqtune.core.errors import CheckpointGone, MqtuneError
from mqtune.core.events import AttemptEnded, AttemptStarted, CheckpointSaved
from mqtune.core.trial import (
    ITERATION,
    TIME_THIS_ITER,
    TIME_TOTAL,
    AttemptEnd,
    CheckpointId,
    Intent,
    Metrics,
    TrialId,
    checkpoint_id,
)
from mqtune.journal.base import WAIT, Assignment, Claim, Segment
from mqtune.journal.memory import MemoryJournal
from mqtune.journal.memory_server import MemoryServer

#: The start of virtual time, in seconds since the epoch: the first instant of 2000 (UTC), in every run.
STARTS_AT: Final = 946_684_800.0


class SimulatedClock:
    """Virtual time. The agenda advances it to its next actions, or to the end of a wait."""

    def __init__(self) -> None:
        self.now = 0.0

    def time(self) -> float:
        """Return the virtual time in seconds since the epoch (UTC)."""
        return STARTS_AT + self.now

    def monotonic(self) -> float:
        """Return the virtual seconds since the start."""
        return self.now


class Precedence(IntEnum):
    """The order of actions that are due at the same instant: the smaller number comes first."""

    HEARD = 0  #: a worker receives something from the driver and reacts to it
    DONE = 1  #: a worker or its trial does something by itself


class Agenda:
    """The future actions, by time. Each costs O(log n).

    At one instant, actions are sorted by their precedence, and then by when they were added.
    """

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self._events: list[tuple[float, int, int, Callable[[Any], None], Any]] = []
        self._number = 0

    def __bool__(self) -> bool:
        return bool(self._events)

    def note(self, at: float, order: Precedence, action: Callable[[Any], None], subject: Any = None) -> None:
        """Plan the call ``action(subject)`` for the time *at* of the monotonic clock."""
        self._number += 1
        heapq.heappush(self._events, (at, order, self._number, action, subject))

    def carry_out_instant(self, until: float) -> bool:
        """Advance the clock to the next instant with actions, and carry them out.

        Actions that these add for the same instant wait for the next call, so that a driver may decide in between. If
        no action is due up to *until*, advance the clock to *until* and return False.
        """
        events = self._events
        if not events or events[0][0] > until:
            self._clock.now = max(self._clock.now, until)
            return False
        now, _, _, action, subject = heapq.heappop(events)
        self._clock.now = now
        last = self._number
        action(subject)
        while events and events[0][0] <= now and events[0][2] <= last:
            _, _, _, action, subject = heapq.heappop(events)
            action(subject)
        return True


class WorkersJournal(MemoryJournal):
    """The workers' journal. ``written_to`` is the number of the last entry that they wrote."""

    def __init__(self, server: MemoryServer, experiment: str) -> None:
        super().__init__(server, experiment)
        self.written_to = 0

    def _append(self, event: bytes) -> int:
        self.written_to = number = super()._append(event)
        return number


@dataclass(slots=True, eq=False)
class SimulatedRun:
    """A claimed attempt on its worker."""

    claim: Claim
    #: The worker of task 0, and the workers of the further tasks.
    worker: Worker
    beside: Sequence[Worker]
    assignment: Assignment
    encoder: ReportEncoder
    #: The items of its future reports. Empty before it has begun and after its end.
    items: Iterator[Item] = field(default_factory=lambda: iter(()))
    #: The metrics of its next report, or the error that it will raise.
    next: Metrics | Exception = field(default_factory=dict)
    #: The duration of that report.
    seconds: float = 0.0
    #: The total duration of its reports so far, with those before its checkpoint.
    total_s: float = 0.0
    #: The number of reports before its checkpoint.
    begins_behind: int = 0
    sequence: int = 0
    checkpoints: int = 0
    #: The last intent that was sent to it, and the last report after which it was told to continue.
    sent_intent: Intent = Intent.RUN
    sent_sequence: int = 0
    #: The last intent that has reached it.
    told: Intent = Intent.RUN
    #: Whether it makes no more reports, because it was told to end, has returned or has failed.
    is_quiet: bool = False
    #: Whether its end is journaled or its worker is dead. Its planned actions then do nothing.
    is_over: bool = False
    #: Reports that have not reached the driver yet, and when the last of them arrives.
    under_way: deque[Segment] = field(default_factory=deque)
    arrives_at: float = 0.0
    #: In lockstep: whether it waits for the decision on its last report.
    waits: bool = False

    @property
    def trial(self) -> TrialId:
        """The trial's id."""
        return self.claim.trial

    @property
    def position(self) -> int:
        """The number of the trial's reports so far, with those before the checkpoint."""
        return self.begins_behind + self.sequence

    def new_checkpoint(self) -> CheckpointId:
        """Return the id of the run's next checkpoint."""
        self.checkpoints += 1
        return checkpoint_id(self.claim.trial, self.claim.attempt, self.checkpoints, in_memory=True)

    def segment(self, timestamp: float, checkpoint: str) -> Segment:
        """Encode the run's latest report.

        Raises:
            TypeError: the metrics can't be encoded.
        """
        metrics: Any = self.next
        self.total_s += self.seconds
        if isinstance(metrics, dict):
            metrics = {**metrics}
            if ITERATION not in metrics:
                metrics[ITERATION] = self.begins_behind + self.sequence
            if TIME_THIS_ITER not in metrics:
                metrics[TIME_THIS_ITER] = self.seconds
            if TIME_TOTAL not in metrics:
                metrics[TIME_TOTAL] = self.total_s
        sequence = self.sequence
        return Segment(
            self.claim, sequence, 1, timestamp, self.encoder.segment(sequence, timestamp, metrics, checkpoint)
        )

    def ended(
        self, end: AttemptEnd, at: float, error: Exception | None = None, *, outlived: bool = False
    ) -> AttemptEnded:
        """Return the event of the attempt's end, with the text and traceback of *error*.

        Args:
            outlived: whether the attempt failed because it ran longer than its ``timeout_s``.
        """
        kind = text = ""
        if error is not None:
            kind = type(error).__name__
            has_traceback = error.__traceback__ is not None
            text = "".join(traceback.format_exception(error)) if has_traceback else f"{kind}: {error}"
        return AttemptEnded(
            trial=self.trial,
            attempt=self.claim.attempt,
            end=end,
            at=at,
            # 0 would mean that no process was started.
            pid=self.worker.number,
            exit_code=int(end is AttemptEnd.FAILED),
            error_type=kind,
            error=text,
            outlived=outlived,
        )


@dataclass(slots=True, order=True)
class Worker:
    """A simulated worker with one slot.

    The free worker with the lowest number claims the next attempt.
    """

    number: int
    is_alive: bool = field(default=True, compare=False)
    #: Whether it is in the heap of free workers. Dead workers may stay there, and are skipped.
    is_waiting: bool = field(default=True, compare=False)
    run: SimulatedRun | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """The worker's name in the journal."""
        return f"simulated-{self.number}"


#: Virtual seconds until the lease of a dead worker's attempt expires, as with real workers.
LEASE_S: Final = 15.0
#: If the driver waits this often in a row although no action is planned, it is an error. With 2 virtual seconds for
#: each wait, these are two days, and a second or two of real time.
MAX_IDLE_WAITS: Final = 100_000
HOST: Final = "simulated"
#: The key in a simulated checkpoint with the number of reports that its trial has made.
_POSITION: Final = "position"


class AttemptTimeout(Exception):
    """An attempt ran for longer than its ``timeout_s``."""


Draw = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The settings of a simulation; see ``Simulated``. Each ``Draw`` returns seconds."""

    slots: int
    checkpoints: bool
    start_delay: Draw
    report_delay: Draw
    decision_delay: Draw
    stop_delay: Draw
    life: Draw | None
    away: Draw


class SimulatedFleet:
    """The simulated workers of one experiment.

    Actions are carried out in the order of time. An action costs O(log n) for n workers. Memory grows with workers and
    trials, but not with reports. Only one thread may use it.

    Args:
        source: returns the reports of a trial.
        conditions: all delays, and the number of slots.
        keeps_journal: whether entries stay in the journal after they were read.
    """

    def __init__(self, experiment: str, source: Source, conditions: Conditions, *, keeps_journal: bool) -> None:
        self.experiment = experiment
        self.clock = SimulatedClock()
        self.server = MemoryServer(self.clock.monotonic, forgets=not keeps_journal)
        #: Whether a trial waits for the decision on each report.
        self.is_lockstep = False
        #: Whether workers joined or left since the driver last looked.
        self.changed = False
        #: The number of workers that are alive.
        self.alive = conditions.slots
        #: The attempts that wait for workers, the next one first.
        self.queue: dict[tuple[TrialId, int], None] = {}
        #: How many workers each attempt takes. It is equal for all attempts of an experiment.
        self.tasks = 1
        self._source = source
        self._conditions = conditions
        self._journal = WorkersJournal(self.server, experiment)
        self._agenda = Agenda(self.clock)
        self._idle_waits = 0
        self._packer = report_packer()
        self._runs: dict[TrialId, SimulatedRun] = {}
        #: When the lease of an attempt on a dead worker expires, by trial.
        self._lost: dict[TrialId, float] = {}
        #: Attempts that must not report because the journal is full. The value says whether a report already waits.
        self._held: dict[SimulatedRun, bool] = {}
        #: The reports of the current instant, which are journaled in one entry.
        self._batch: list[Segment] = []
        self._free = [Worker(number) for number in range(1, conditions.slots + 1)]
        #: How often in a row the driver may wait while no action is planned.
        self.most_idle_waits = MAX_IDLE_WAITS
        self._claim_is_due = False
        self._claims = 0
        for worker in self._free:
            self._plan_death(worker)

    def advance(self, seconds: float) -> None:
        """Let *seconds* of virtual time pass, or less if a worker writes an entry, dies or returns.

        Raises:
            MqtuneError: the driver has waited very often although no action is planned.
        """
        self._idle_waits = 0 if self._agenda else self._idle_waits + 1
        if self._idle_waits > self.most_idle_waits:
            raise MqtuneError(
                f"the simulation of {self.experiment!r} can't continue: no trial runs, and no further event is due; "
                f"{len(self.queue)} attempts wait, and {self.alive} workers are alive; check that the searcher "
                "suggests configs, and that the scheduler resumes paused trials"
            )
        until = self.clock.now + seconds
        journal, before, carry_out = self._journal, self._journal.written_to, self._agenda.carry_out_instant
        while carry_out(until):
            if self._batch:
                self._send_batch()
            if journal.written_to > before or self.changed:
                return

    @property
    def written_to(self) -> int:
        """The number of the last journal entry that a worker wrote."""
        return self._journal.written_to

    @property
    def workers_die(self) -> bool:
        """Whether workers may die, so that leases expire."""
        return self._conditions.life is not None

    @property
    def has_begun(self) -> bool:
        """Whether a driver has created the experiment."""
        return self._journal.definition() is not None

    # From the driver.

    def publish(self, trial: TrialId, attempt: int) -> None:
        """Let workers claim an attempt as soon as enough of them are free."""
        self.queue[trial, attempt] = None
        self._plan_claim()

    def tell(self, trial: TrialId, attempt: int, intent: Intent) -> None:
        """Send an intent to a running attempt.

        The first one starts its end, the last one defines the end.
        """
        run = self._running(trial, attempt)
        if run is None or intent is run.sent_intent:
            return
        run.sent_intent = intent

        def hear(_: None) -> None:
            if run.told is Intent.RUN and not run.is_over:
                run.is_quiet = True
                self._plan(self._conditions.stop_delay(), Precedence.HEARD, self._end_by_intent, run)
            run.told = intent

        self._plan(self._conditions.decision_delay(), Precedence.HEARD, hear)

    def ask_to_save(self, trial: TrialId, attempt: int) -> None:
        """Order a running attempt to save a checkpoint."""
        run = self._running(trial, attempt)
        if run is not None and self._conditions.checkpoints:
            self._plan(self._conditions.decision_delay(), Precedence.HEARD, self._save, run)

    def let_go_on(self, trial: TrialId, attempt: int, sequence: int) -> None:
        """Let an attempt in lockstep continue after the report *sequence*."""
        run = self._running(trial, attempt)
        if run is None or sequence <= run.sent_sequence:
            return
        run.sent_sequence = sequence

        def hear(_: None) -> None:
            if run.waits and sequence >= run.sequence and not run.is_quiet:
                run.waits = False
                self._work(run)

        self._plan(self._conditions.decision_delay(), Precedence.HEARD, hear)

    def expired(self) -> list[TrialId]:
        """Return the trials with an expired lease. Their workers are dead."""
        return [trial for trial, at in self._lost.items() if at <= self.clock.now]

    def lose(self, trial: TrialId, attempt: int) -> None:
        """Forget an attempt that the driver has ended as lost."""
        run = self._running(trial, attempt)
        if run is not None:
            self._release(run)
        self._lost.pop(trial, None)

    def _running(self, trial: TrialId, attempt: int) -> SimulatedRun | None:
        run = self._runs.get(trial)
        return run if run is not None and run.claim.attempt == attempt else None

    def _plan(self, delay_s: float, order: Precedence, action: Callable[[Any], None], subject: Any = None) -> None:
        self._agenda.note(self.clock.now + delay_s, order, action, subject)

    # Workers.

    def _plan_death(self, worker: Worker) -> None:
        if self._conditions.life is not None:
            self._plan(self._conditions.life(), Precedence.DONE, self._die, worker)

    def _die(self, worker: Worker) -> None:
        worker.is_alive = False
        self.alive -= 1
        self.changed = True
        run = worker.run
        if run is not None:
            self._send_batch()
            self._journal.renew([run.claim], LEASE_S)
            self._lost[run.trial] = self.clock.now + LEASE_S
            self._release(run)
        self._plan(self._conditions.away(), Precedence.DONE, self._return_worker, worker)

    def _return_worker(self, worker: Worker) -> None:
        worker.is_alive = True
        self.alive += 1
        self.changed = True
        self._wait_for_attempt(worker)
        self._plan_death(worker)

    def _wait_for_attempt(self, worker: Worker) -> None:
        if not worker.is_waiting:
            worker.is_waiting = True
            heapq.heappush(self._free, worker)
        self._plan_claim()

    def _plan_claim(self) -> None:
        if self.queue and self._free and not self._claim_is_due:
            self._claim_is_due = True
            self._plan(0.0, Precedence.DONE, self._claim)

    def _claim(self, _: None) -> None:
        self._claim_is_due = False
        while self.queue and (workers := self._take_workers()):
            trial, attempt = next(iter(self.queue))
            del self.queue[trial, attempt]
            self._claims += 1
            if self._is_claimed(workers, Claim(trial, attempt, str(self._claims))):
                continue
            for worker in workers:
                worker.is_waiting = True
                heapq.heappush(self._free, worker)

    def _take_workers(self) -> list[Worker]:
        """Take a free worker for each task of an attempt. Take none if too few are free."""
        taken: list[Worker] = []
        while self._free and len(taken) < self.tasks:
            worker = heapq.heappop(self._free)
            worker.is_waiting = False
            if worker.is_alive:
                taken.append(worker)
        if len(taken) == self.tasks:
            return taken
        for worker in taken:
            worker.is_waiting = True
            heapq.heappush(self._free, worker)
        return []

    def _is_claimed(self, workers: Sequence[Worker], claim: Claim) -> bool:
        worker, *beside = workers
        started = AttemptStarted(
            trial=claim.trial,
            attempt=claim.attempt,
            worker=worker.name,
            host=HOST,
            devices=[],
            at=self.clock.time(),
            queue=HOST,
        )
        grant = self._journal.claim(claim, worker.name, math.inf, started.encode())
        if isinstance(grant, str):
            return False
        encoder = ReportEncoder(claim.trial, claim.attempt, self._packer)
        run = self._runs[claim.trial] = SimulatedRun(claim, worker, beside, grant.assignment, encoder)
        for other in workers:
            other.run = run
        self._plan(self._conditions.start_delay(), Precedence.DONE, self._begin, run)
        if grant.assignment.timeout_s is not None:
            self._plan(grant.assignment.timeout_s, Precedence.DONE, self._time_out, run)
        return True

    def _release(self, run: SimulatedRun) -> None:
        """End a run and free its workers."""
        run.is_over = run.is_quiet = True
        run.items = iter(())
        del self._runs[run.trial]
        for worker in (run.worker, *run.beside):
            worker.run = None
            if worker.is_alive:
                self._wait_for_attempt(worker)

    # Trials.

    def _begin(self, run: SimulatedRun) -> None:
        if run.is_quiet:
            return
        checkpoint = run.assignment.checkpoint
        if checkpoint:
            position = self._journal.checkpoint(checkpoint)
            if position is None:
                self._fail(run, CheckpointGone(f"the checkpoint {checkpoint} is gone"))
                return
            data, counters = decode_dict(position)
            run.begins_behind, run.total_s = data[_POSITION], counters[TIME_TOTAL]
        try:
            run.items = self._source(run.trial, run.assignment.config, run.begins_behind)
        except Exception as error:  # noqa: BLE001 - an error in user code fails the trial
            self._fail(run, error)
        else:
            self._work(run)

    def _work(self, run: SimulatedRun) -> None:
        """Start the computation of the next report."""
        try:
            run.seconds, run.next = seconds, _ = next(run.items)
        except StopIteration:
            self._plan(0.0, Precedence.DONE, self._return, run)
        except Exception as error:  # noqa: BLE001 - an error in user code fails the trial
            self._fail(run, error)
        else:
            self._agenda.note(self.clock.now + seconds, Precedence.DONE, self._report, run)

    def _report(self, run: SimulatedRun) -> None:
        if run.is_quiet:
            return
        if isinstance(run.next, Exception):
            self._fail(run, run.next)
            return
        if run in self._held:
            self._held[run] = True
            return
        run.sequence += 1
        checkpoint = run.new_checkpoint() if self._conditions.checkpoints else CheckpointId("")
        try:
            segment = run.segment(self.clock.time(), checkpoint)
        except TypeError as error:
            self._fail(run, error)
            return
        if checkpoint:
            self._put_checkpoint(run, checkpoint)
        delay_s = self._conditions.report_delay()
        if delay_s or run.under_way:
            # Reports of one attempt never overtake one another.
            run.arrives_at = max(run.arrives_at, self.clock.now + delay_s)
            run.under_way.append(segment)
            self._agenda.note(run.arrives_at, Precedence.DONE, self._arrive, run)
        else:
            self._batch.append(segment)
        if self.is_lockstep:
            run.waits = True
        else:
            self._work(run)

    def _arrive(self, run: SimulatedRun) -> None:
        if not run.is_over:
            self._batch.append(run.under_way.popleft())

    def _send_batch(self) -> None:
        if self._batch:
            answers = self._journal.report(self._batch)
            if any(answers):
                for segment, answer in zip(self._batch, answers, strict=True):
                    if answer.endswith(WAIT) and (run := self._runs.get(segment.claim.trial)) is not None:
                        self._held.setdefault(run, False)
            self._batch = []

    def release_held(self) -> None:
        """Let trials continue that wait because the journal was full."""
        held, self._held = self._held, {}
        for run in (run for run, is_due in held.items() if is_due):
            self._plan(0.0, Precedence.DONE, self._report, run)

    def _put_checkpoint(self, run: SimulatedRun, checkpoint: CheckpointId) -> None:
        """Save a checkpoint with the run's position."""
        data = encode_dict({_POSITION: run.position}, {ITERATION: run.position, TIME_TOTAL: run.total_s})
        self._journal.put_checkpoint(run.claim, checkpoint, data)

    def _save(self, run: SimulatedRun) -> None:
        if not run.is_quiet:
            checkpoint = run.new_checkpoint()
            self._put_checkpoint(run, checkpoint)
            self._send_batch()
            saved = CheckpointSaved(
                trial=run.trial, attempt=run.claim.attempt, checkpoint=checkpoint, at=self.clock.time()
            )
            self._journal.saved(run.claim, {checkpoint: saved.encode()})

    def _return(self, run: SimulatedRun) -> None:
        if not run.is_quiet:
            self._end(run, run.ended(AttemptEnd.COMPLETED, self.clock.time()))

    def _fail(self, run: SimulatedRun, error: Exception, *, outlived: bool = False) -> None:
        self._end(run, run.ended(AttemptEnd.FAILED, self.clock.time(), error, outlived=outlived))

    def _time_out(self, run: SimulatedRun) -> None:
        if not run.is_quiet:
            run.is_quiet = True
            error = AttemptTimeout(f"the attempt ran for {run.assignment.timeout_s:g} s, which is its timeout_s")
            self._plan(self._conditions.stop_delay(), Precedence.HEARD, lambda _: self._fail(run, error, outlived=True))

    def _end_by_intent(self, run: SimulatedRun) -> None:
        self._end(run, run.ended(run.told.effect.end, self.clock.time()))

    def _end(self, run: SimulatedRun, ended: AttemptEnded) -> None:
        """Append an attempt's end to the journal, after all of its reports."""
        if run.is_over:
            return
        run.is_quiet = True
        if run.under_way:
            self._agenda.note(run.arrives_at, Precedence.DONE, lambda _: self._end(run, ended))
        else:
            self._send_batch()
            self._journal.end(run.claim, ended.encode())
            self._release(run)
