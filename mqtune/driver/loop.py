"""The driver's loop: reads the journal, has the scheduler decide, journals what it decides, keeps the slots busy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from mqtune.backends.base import BackendSession
from mqtune.core.clock import Clock
from mqtune.core.codec import decode_value, encode_value
from mqtune.core.errors import (
    ConfigurationError,
    ExperimentFinished,
    MqtuneError,
    NothingResumes,
)
from mqtune.core.events import (
    START,
    Cursor,
    DecisionTaken,
    Event,
    ExperimentCreated,
    Reports,
    TrialStaged,
    decode_event,
)
from mqtune.core.experiment import Experiment
from mqtune.core.labels import Labels
from mqtune.core.status import TrialStatus
from mqtune.core.trial import CONTINUE, Action, CheckpointId, Decision, Report, Trial
from mqtune.core.version import __version__
from mqtune.driver.actions import Commands
from mqtune.driver.checkpoints import Keeping
from mqtune.driver.dispatch import Telling
from mqtune.driver.interrupts import Interrupted, Interrupts
from mqtune.driver.limits import LOOK_S, Limits
from mqtune.driver.lockstep import Lockstep
from mqtune.driver.screening import Reading, Screening
from mqtune.driver.slots import Filling
from mqtune.driver.timers import Upkeep
from mqtune.journal.base import Entry, Journal, entry_order
from mqtune.journal.file import JournalFile
from mqtune.journal.reader import JournalReader
from mqtune.journal.restoring import RestoringJournal
from mqtune.results.callbacks import CallbackDispatcher
from mqtune.schedulers.base import Scheduler
from mqtune.schedulers.stopping.rule import StopRule
from mqtune.search.base import Searcher

__all__ = ["Driver"]

#: Entries of a replay between two looks at the lock: a second's work when each is as large as a worker makes them.
_LOOK_EVERY: Final = 64
#: Trials that a message names; more would not be read.
_SHOWN: Final = 5


class Driver:
    """Drives one experiment; one thread calls it.

    Args:
        journal: the experiment's.
        backend: where its attempts run.
        experiment: the fold, empty.
        scheduler: bound to the metric.
        searcher: fresh; a replay brings it to where it was.
        limits: how far it goes.
        keeping: which checkpoints are kept.
        is_lockstep: whether trials wait until their report is decided on.
        copy: the local copy of the journal.
        callbacks: who is told.
        owner: a token that no other driver has.
        clock: what everything here goes by.
        interrupts: what may end a wait.
        reading: how reports are read.
    """

    def __init__(
        self,
        *,
        journal: Journal,
        backend: BackendSession,
        experiment: Experiment,
        scheduler: Scheduler,
        searcher: Searcher,
        limits: Limits,
        keeping: Keeping,
        is_lockstep: bool,
        copy: JournalFile,
        callbacks: CallbackDispatcher,
        owner: str,
        clock: Clock,
        interrupts: Interrupts | None = None,
        reading: Reading | None = None,
    ) -> None:
        self.experiment = experiment
        self._journal = journal
        self._scheduler = scheduler
        self._searcher = searcher
        self._limits = limits
        self._rule = limits.rule
        self._keeping = keeping
        self.backend = backend
        self._copy = copy
        self._callbacks = callbacks
        self._owner = owner
        self._clock = clock
        self._interrupts = interrupts if interrupts is not None else Interrupts()
        self._entry, self._number = START
        self._reader = JournalReader(journal, copy, clock)
        self._pending: dict[Cursor, list[Event]] = {}
        #: The entries at which something is pending.
        self._awaited: set[str] = set()
        #: How far earlier drivers had decided, as a replay finds it.
        self._decided_to = _place(START)
        #: Whether the stop rule is the one that what is read was reported under.
        self._rule_decides = True
        self._draining = self._is_closed = False
        self._say_begun: Callable[[], None] = lambda: None
        self._look_at = 0.0
        # What is called for each report is looked up once: a flood of reports is the driver's hot path.
        self._on_report: list[Callable[[Trial, Report], object]] = []
        self._searcher_hears = searcher.on_report if type(searcher).on_report is not Searcher.on_report else None
        self._screening = Screening(experiment, scheduler, limits.rule, reading if reading is not None else Reading())
        self.telling = Telling(experiment, backend, scheduler, searcher, keeping, callbacks, limits, self._screening)
        hand = RestoringJournal(journal, self._reader, copy, owner, clock, on_restore=self.telling.restored)
        self._hand = hand
        self.commands = Commands(
            hand,
            backend,
            experiment,
            clock=clock,
            cursor=lambda: self._cursor,
            on_staged=self.telling.staged,
            on_event=self.telling.apply,
        )
        self._lockstep = Lockstep(self.commands, is_on=is_lockstep)
        self.filling = Filling(
            experiment,
            backend,
            scheduler,
            searcher,
            self.commands,
            max_trials=limits.max_trials,
            max_concurrent=limits.max_concurrent,
            ttl_s=limits.ttl_s,
            may_go_on=self._may_go_on,
            hold=keeping.hold,
            asking=self.telling.asking,
        )
        self._upkeep = Upkeep(
            hand,
            backend,
            experiment,
            owner=owner,
            end=self.telling.apply,
            cursor=lambda: self._cursor,
            clock=clock,
            has_read=lambda entry: not entry or entry_order(self._reader.last) >= entry_order(entry),
        )
        keeping.bind(self.commands, journal.checkpoints)

    @property
    def is_finished(self) -> bool:
        """Whether nothing runs and nothing is left to start or to resume."""
        if self.experiment.live:
            return False
        return self._draining or not (self.filling.has_more or self.experiment.counts[TrialStatus.PAUSED])

    @property
    def failure(self) -> MqtuneError | None:
        """What the experiment has failed of, or None."""
        return self.telling.failure

    @property
    def over(self) -> str:
        """Why it ends although there is more to do, or empty."""
        return self.telling.over

    @property
    def waiting_for(self) -> str:
        """Why nothing runs, or an empty text."""
        if self.experiment.counts[TrialStatus.RUNNING] or self._draining or self.is_finished:
            return ""
        if not self.backend.slots:
            return self.backend.why_no_slot()
        return self._upkeep.held_up_by if self.experiment.live else self.filling.waits_for

    def begin(
        self,
        name: str,
        definition: dict[str, Any],
        *,
        is_new: bool,
        driver: str,
        code_changed: Sequence[str] = (),
    ) -> None:
        """Create the experiment, or bring it back to where its journal ends, and start the loop's timers."""
        if is_new:
            created = ExperimentCreated(name=name, definition=definition, at=self._clock.time())
            self._journal.record(created.encode(), definition=encode_value(definition))
        kept = self._journal.definition()
        before: dict[str, Any] = definition if kept is None else decode_value(kept)
        changes = {key: value for key, value in definition.items() if before.get(key) != value}
        # Of a rule that is another one now, nothing follows for what was reported before.
        self._rule_decides = "stop" not in changes
        self._replay()
        self._rule_decides = True
        # What ended an earlier driver need not end this one.
        self.telling.failure = self._screening.missing = None
        self.telling.is_live = self._screening.is_live = True
        if self._callbacks.hears("on_report"):
            self.hear_reports(partial(self._callbacks.tell, "on_report"))
        self._say_begun = partial(self._begin_driving, definition, changes, driver, code_changed)
        if not self.is_finished:
            self._say_begun()
        self._lockstep.clear_again(self.experiment)
        self._keeping.look_through()
        self.backend.refresh()
        # What an earlier driver staged, and died before it was published, need not wait until it is overdue.
        self._upkeep.publish_lost(older_than_s=0)
        self._callbacks.tell("on_start", self.experiment)

    def _begin_driving(
        self, definition: dict[str, Any], changes: dict[str, Any], driver: str, code_changed: Sequence[str]
    ) -> None:
        """Journal, once, that this driver drives, and does not only look at what has ended."""
        self._say_begun = lambda: None
        packed = None if self._journal.definition() == (now := encode_value(definition)) else now
        self.commands.begin(driver, __version__, definition=packed, changes=changes, code_changed=code_changed)

    def step(self, block_s: float) -> None:
        """Start what there is room for, wait up to *block_s* seconds for news, and act on all of it.

        Raises:
            ExperimentFinished: there was nothing left to do before.
            NothingResumes: all that is left are paused trials, and neither the scheduler nor a user resumes one.
            UserCodeFailed: scheduler, searcher or rule raised an error. Nothing is decided any more: later steps only take
                in what comes, until all attempts have ended.
        """
        if self.telling.is_broken:
            self._look_on(block_s)
            return
        if self.is_finished and not self._draining and self.telling.failure is None:
            raise ExperimentFinished(f"experiment {self.experiment.name!r} is finished; there is nothing left to step")
        self._say_begun()
        self._fill()
        self._check_that_something_happens()
        now = self._clock.monotonic()
        until = min(now + block_s, self._upkeep.due)
        if self._callbacks.interval_s is not None:
            until = min(until, now + self._callbacks.interval_s)
        if self._limits.is_timed:
            until = min(until, self._look_at)
        if self._rule is not None:
            at = self._clock.time()
            with self.telling.asking(self._rule, "due", "while the experiment runs"):
                until = min(until, now + self._rule.due(self.experiment, at) - at)
        entries: list[Entry] = []
        block_s = 0.0 if self.is_finished else max(0.0, until - now)
        with contextlib.suppress(Interrupted), self._interrupts.may_end_wait():
            entries = self._journal.read(self._reader.last, count=self._reader.count, block_s=block_s)
        if not self._hand.look() and entries:
            self._reader.keep(entries)
            self._hand.read_back(entries)
            for entry in entries:
                self._take(entry)
            self._keeping.look_at_best()
            self._lockstep.clear()
        if self._journal.fleet_changed:
            self._journal.fleet_changed = False
            none_fitted = not self.backend.slots
            self.backend.refresh()
            if none_fitted and self.backend.slots and self.experiment.live:
                # What a user staged before the first worker came may wait in a queue that this one doesn't serve.
                self._upkeep.publish_lost(older_than_s=0)
        self._upkeep.run_due()
        self._may_go_on()
        self._fill()
        if self._callbacks.hears("on_step"):
            self._callbacks.tell("on_step", self.waiting_for)

    def _look_on(self, block_s: float) -> None:
        """Take in what comes without telling anybody, and without coming further: the next driver decides on all of it."""
        self._upkeep.keep_lock_if_due()
        entries: list[Entry] = []
        block_s = 0.0 if self.is_finished else min(block_s, LOOK_S)
        with contextlib.suppress(Interrupted), self._interrupts.may_end_wait():
            entries = self._journal.read(self._reader.last, count=self._reader.count, block_s=block_s)
        if not self._hand.look() and entries:
            self._reader.keep(entries)
            self._hand.read_back(entries)
            for entry in entries:
                event = decode_event(entry.data, entry.id)
                if event is not None and getattr(event, "cursor", None) is None:
                    self.telling.apply(event)

    def hand_back_all(self, reason: str) -> None:
        """Start nothing more, and end all attempts so that a later driver can run their trials again."""
        self._draining = True
        for trial in list(self.experiment.trials.values()):
            if trial.is_busy and trial.attempt.end is None and trial.decision is None:
                self.commands.hand_back(trial, reason)

    def stop_all(self, reason: str, *, by: str) -> None:
        """Start nothing more, and stop whatever runs, waits or is paused."""
        self._draining = True
        self.telling.over = reason
        for trial in list(self.experiment.trials.values()):
            decided = trial.decision.action if trial.decision is not None and trial.attempt.end is None else None
            if not trial.status.is_terminal and decided in (None, Action.PAUSE):
                self.commands.decide(trial, Action.STOP, by=by, reason=reason)

    def forfeit_leases(self, *, error_type: str = "") -> None:
        """End all running attempts as lost; for when no worker can be left; UNDRIVEN says that this was no worker's fault."""
        self._upkeep.forfeit_leases(error_type=error_type)

    def end(self, outcome: str, reason: str) -> None:
        """Journal that this driver is done, and have all of the journal on the server and in the copy."""
        self.commands.end(outcome, reason)
        self._hand.look()
        self._reader.finish()

    def label(self, trial: Trial | None, labels: Labels) -> None:
        """Give a trial, or without one the experiment, these labels; the copy has that at once if nothing else can come."""
        self.commands.label(trial, labels)
        if self.is_finished:
            self._reader.finish()

    def hear_reports(self, hear: Callable[[Trial, Report], object]) -> None:
        """Have *hear* called with each report from now on, when the scheduler has seen it."""
        self._on_report.append(hear)

    def delete_checkpoints(self, trial: Trial) -> list[CheckpointId]:
        """Delete all checkpoints of a trial that nothing may still go on from, and return them."""
        return self._keeping.delete(trial)

    def read_checkpoint(self, checkpoint: CheckpointId) -> bytes | None:
        """Return the data of a checkpoint that is a dict in Redis, or None when it is gone."""
        return self._journal.checkpoint(checkpoint)

    @property
    def written(self) -> JournalReader:
        """What was read of the journal, to be read again."""
        return self._reader

    def look_at_fleet(self) -> BackendSession:
        """Return the backend, which has just looked at its slots, unless this driver is closed."""
        if not self._is_closed:
            self.backend.refresh()
        return self.backend

    def close(self) -> None:
        """Close the copy, and give the lock back, so that another driver may go on at once."""
        self._is_closed = True
        self._keeping.close()
        self._reader.close()
        self._copy.close()
        self._journal.unlock(self._owner)

    @property
    def _cursor(self) -> Cursor:
        return Cursor(self._entry, self._number)

    # Taking events in.

    def _replay(self) -> None:
        self._pending = self._hand.catch_up()
        self._decided_to = max(map(_place, self._pending), default=_place(START))
        self._awaited = {cursor.entry for cursor in self._pending}
        for number, entry in enumerate(self._reader.again()):
            self._take(entry)
            if not number % _LOOK_EVERY:
                self._upkeep.keep_lock_if_due()
        for events in list(self._pending.values()):
            for event in events:
                self._apply_written(event)
        self._pending, self._awaited = {}, set()

    def _take(self, entry: Entry) -> None:
        event = decode_event(entry.data, entry.id)
        if event is None or getattr(event, "cursor", None) is not None:
            # The driver's own events were applied when they were written, or come with their cursors.
            return
        if isinstance(event, Reports):
            self._take_reports(entry.id, event)
            return
        if not isinstance(event, ExperimentCreated):
            self._entry, self._number = entry.id, 0
        self.telling.apply(event)
        self._catch_up()

    def _take_reports(self, entry: str, reports: Reports) -> None:
        before, self._entry = self._cursor, entry
        self.experiment.unreadable += reports.unreadable
        lockstep, is_awaited = self._lockstep.is_on, entry in self._awaited
        apply, screen, decide = self.experiment.apply_report, self._screening, self._scheduler.on_report
        rule, hears = self._rule, self._searcher_hears
        for number, report in enumerate(reports, 1):
            self._number = number
            trial = apply(report)
            if trial is not None:
                decision, by = CONTINUE, "scheduler"
                asked: object = self._scheduler
                try:
                    screened = screen(trial, report)
                    if screened is None:
                        decision = decide(trial, report)
                    elif screened.is_placed and not screened.fails:
                        decision = decide(trial, screened.report)
                    if decision is not CONTINUE:
                        self._check(decision)
                    if rule is not None:
                        asked = rule
                        if (reason := rule.stops_trial(trial, report)) and self._rule_decides:
                            decision, by = Decision(Action.COMPLETE, _text(rule, reason)), "stop rule"
                    if hears is not None:
                        asked = self._searcher
                        hears(trial, report if screened is None else screened.report)
                except Exception as error:
                    # The next driver begins with this report: it is as if this one had not come so far.
                    self._entry, self._number = before if number == 1 else (entry, number - 1)
                    method = "stops_trial" if asked is rule else "on_report"
                    place = f"report {report.sequence} of trial {report.trial}, attempt {report.attempt}"
                    if (failure := self.telling.failed(asked, method, place, error)) is error:
                        raise
                    raise failure from error
                if screened is not None and screened.fails:
                    decision, by = Decision(Action.FAIL, screened.fails), "driver"
                for told in self._on_report:
                    told(trial, report)
                if decision is not CONTINUE and decision.action is not Action.CONTINUE:
                    self._obey(trial, report.sequence, decision, by)
                elif lockstep:
                    self._lockstep.passed(report)
            if report.checkpoint:
                self.telling.saved(self.experiment.trials[report.trial], report.checkpoint)
            if is_awaited:
                self._catch_up()
        if self.telling.failure is None and self.telling.is_live:
            self.telling.failure = self._screening.missing

    def _check(self, decision: object) -> None:
        """Check what the scheduler has decided, before anything is done about it.

        Raises:
            ConfigurationError: nothing can be done about it.
        """
        who = f"{type(self._scheduler).__name__}.on_report()"
        if not isinstance(decision, Decision) or not isinstance(decision.action, Action):
            raise ConfigurationError(
                f"{who} returned {decision!r:.80}; it may return mqtune.Decision(mqtune.Action.CONTINUE), or STOP, PAUSE or "
                "COMPLETE, and a reason"
            )
        if decision.action in (Action.ABANDON, Action.FAIL):
            raise ConfigurationError(
                f"{who} wants trials to {decision.action.value}, which only a user may have them do; let them stop"
            )
        if not isinstance(decision.reason, str):
            raise ConfigurationError(f"{who} returned {decision!r:.80}, whose reason is no text")
        if decision.source is not None and decision.source not in self.experiment.trials:
            raise ConfigurationError(f"{who} returned {decision!r:.80}; there is no such trial to go on from")

    def _obey(self, trial: Trial, sequence: int, decision: Decision, by: str) -> None:
        if decision.source is not None:
            self._keeping.plan(trial, self.experiment.trials[decision.source].checkpoint)
        written = self._pending.get(self._cursor, ())
        if any(isinstance(event, DecisionTaken) and event.trial == trial.id for event in written):
            return
        if not self.telling.is_live and _place(self._cursor) <= self._decided_to:
            # An earlier driver came past this report and let the trial go on, by a rule, or code, that was another one.
            return
        self.commands.decide(trial, decision.action, by=by, reason=decision.reason, sequence=sequence)

    def _catch_up(self) -> None:
        """Apply what an earlier driver wrote when it had come this far."""
        for event in self._pending.pop(self._cursor, ()):
            self._apply_written(event)

    def _apply_written(self, event: Event) -> None:
        """Apply an event of an earlier driver."""
        if isinstance(event, TrialStaged):
            self.filling.replay(event)
            self.experiment.apply(event)
            self.telling.staged(self.experiment.trials[event.trial])
            return
        self.telling.apply(event)

    # Acting.

    def _fill(self) -> None:
        if not self._draining and self.telling.failure is None:
            self.filling.fill()

    def _check_that_something_happens(self) -> None:
        """Raise when no event can ever come: nothing runs, and nothing was started although there is room."""
        experiment = self.experiment
        if (
            experiment.live
            or self._draining
            or self.telling.failure is not None
            or not self.backend.slots
            or self.is_finished
        ):
            return
        paused = [trial.id for trial in experiment.trials.values() if trial.status is TrialStatus.PAUSED]
        shown = ", ".join(paused[:_SHOWN]) + (", …" if len(paused) > _SHOWN else "")
        waiting = f"{len(paused)} trials are paused ({shown})" if paused else "no trial is paused"
        raise NothingResumes(
            f"{waiting}, nothing runs, and {type(self._scheduler).__name__} starts and "
            f"resumes nothing: {self.filling.waits_for or 'it starts new trials only'}; resume or abandon them"
        )

    def _may_go_on(self) -> bool:
        """Whether more may be started; stops everything once a budget is used up, a rule ends the experiment, or a failure does."""
        if self._draining:
            return False
        reason, by = self.over, "driver"
        if not reason and self._rule is not None:
            with self.telling.asking(self._rule, "stops_experiment", "while the experiment runs"):
                reason = self._rule.stops_experiment(self.experiment, self._clock.time())
            reason, by = reason and _text(self._rule, reason), "stop rule"
        if not reason and self._limits.is_timed and self._clock.monotonic() >= self._look_at:
            self._look_at = self._clock.monotonic() + LOOK_S
            reason, by = self._limits.spent(self.experiment, self._clock.time()), "driver"
        if reason:
            self.stop_all(reason, by=by)
        return not reason


def _text(rule: StopRule, reason: object) -> str:
    """Return a rule's reason, also where it says nothing but that there is one."""
    return reason if isinstance(reason, str) else f"{type(rule).__name__} says so"


def _place(cursor: Cursor) -> tuple[int, int, int]:
    """Return what sorts cursors by where they stand in the journal."""
    time, _, number = cursor.entry.partition("-")
    return int(time), int(number), cursor.reports
