"""The driver's loop: reads the journal, dispatches its events, carries out what is decided, keeps the slots busy."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Final

from mqtune.backends.base import BackendSession
from mqtune.core.clock import Clock
from mqtune.core.codec import decode_value, encode_value
from mqtune.core.errors import ConfigurationError, ExperimentFinished, InvalidTransition, JournalGone, MqtuneError
from mqtune.core.events import Cursor, Event, ExperimentCreated, Reports, Requested, decode_event, is_of_driver
from mqtune.core.experiment import Experiment
from mqtune.core.trial import CheckpointId, Labels, Report, Trial, TrialStatus
from mqtune.driver.actions import (
    AnswerQuestion,
    AnswerRequest,
    Begin,
    Decide,
    DriverAction,
    Drop,
    Finish,
    Label,
    Lose,
    Orders,
    Save,
    Stage,
    Writing,
    next_trial_id,
    requeues,
    stops,
)
from mqtune.driver.ahead import LookAhead
from mqtune.driver.checkpoints import CheckpointGC
from mqtune.driver.deciders import GO_ON, Deciders, Verdict
from mqtune.driver.interrupts import Interrupts
from mqtune.driver.listeners import BackendListener, CallbackListener, FailureWatch, Listener
from mqtune.driver.pace import Pace
from mqtune.driver.past import Past
from mqtune.driver.plain import PlainReports
from mqtune.driver.publishing import Publisher
from mqtune.driver.requests import Requests
from mqtune.driver.screening import Reading, Screening
from mqtune.driver.settings import Limits
from mqtune.driver.slots import Addition, SlotFiller
from mqtune.driver.timers import DriverTimers
from mqtune.journal.base import Entry, Journal
from mqtune.journal.copy import JournalFile, JournalReader
from mqtune.journal.restore import Restorer
from mqtune.results.callbacks import CallbackDispatcher
from mqtune.schedulers.base import Scheduler
from mqtune.search.base import Searcher
from mqtune.search.space import Space

#: How often a driver that only looks on reads the journal.
_LOOK_S: Final = 1.0
_NO_CHECKPOINT: Final = CheckpointId("")


class Driver:
    """Drives one experiment; one thread calls it.

    An event takes one path, whether it was just written or is replayed: ``_apply`` folds it and tells the listeners, in their
    order. Who wants something done returns it as an action: the listeners, the slot filler, the timers,
    and the loop itself for a scheduler's decision. ``carry_out`` checks and journals each, and applies what it wrote.
    """

    def __init__(
        self,
        *,
        journal: Journal,
        backend: BackendSession,
        experiment: Experiment,
        scheduler: Scheduler,
        searcher: Searcher,
        space: Space,
        limits: Limits,
        checkpoints: CheckpointGC,
        is_lockstep: bool,
        copy: JournalFile,
        callbacks: CallbackDispatcher,
        owner: str,
        clock: Clock,
        interrupts: Interrupts | None = None,
        reading: Reading | None = None,
    ) -> None:
        self.experiment = experiment
        self.backend = backend
        #: Why it ends although there is more to do, or empty.
        self.over = ""
        self._journal = journal
        self._limits = limits
        self._checkpoints = checkpoints
        self._copy = copy
        self._callbacks = callbacks
        self._owner = owner
        self._clock = clock
        self._interrupts = interrupts if interrupts is not None else Interrupts()
        #: The part of the journal that was read, to be read again.
        self.reader = JournalReader(journal, copy, clock)
        self._past = Past({}, is_open=False)
        self._is_replaying = True
        self._draining = self._is_closed = self._hands_out = False
        #: To be journaled before this driver does anything else.
        self._beginning: Begin | None = None
        screening = Screening(experiment, scheduler, limits.rule, reading if reading is not None else Reading())
        self._deciders = Deciders(experiment, scheduler, searcher, limits.rule, screening)
        self._slots = SlotFiller(experiment, backend, self._deciders, limits, clock, journal)
        self._requests = Requests(experiment, self._slots, space)
        self._failures = FailureWatch(experiment, limits.fail_fast)
        self._callback_listener = CallbackListener(experiment, callbacks)
        self._backend_listener = BackendListener(backend)
        # A replay brings back what scheduler, searcher and rule know; all else is told only what is new.
        self._listeners: Sequence[Listener] = (self._backend_listener, self._deciders, self._slots, self._requests)
        #: A round of the loop that was left where it handed a report out, and that report.
        self._round: Iterator[Report | None] | None = None
        self._in_hand: Report | None = None
        self._ahead = LookAhead(experiment)
        #: The rest of a replay, from the first report on that nobody has acted on.
        self._held: Iterator[Report | None] | None = None
        self._report_listeners: list[Callable[[Trial, Report], object]] = []
        self._restorer = Restorer(journal, self.reader, copy, clock)
        journal.waits = lambda: f"it ends: {self.over}" if self.over else self.waiting_for or self._slots.why_no_more
        self._orders = Orders(self._restorer, experiment, in_lockstep=is_lockstep)
        self._publisher = Publisher(backend, clock)
        self._timers = DriverTimers(self._restorer, backend, experiment, owner=owner, clock=clock, reader=self.reader)
        self._plain = PlainReports(
            experiment, self._deciders, self._report_listeners, look=self._timers.keep_lock_if_due, act=self._act_on
        )
        self._timers.share(lambda: self._slots.share(is_over=self._draining))
        self._pace = Pace(
            journal, clock, self._timers, self._deciders, self._slots, checkpoints, callbacks, is_lockstep=is_lockstep
        )

    @property
    def is_finished(self) -> bool:
        """Whether nothing runs and nothing is left to start or to resume."""
        if self.experiment.live:
            return False
        if self._draining or self._slots.has_more:
            return self._draining
        if self._limits.is_open:
            return self.experiment.outcome == "finished"
        return not self.experiment.counts[TrialStatus.PAUSED]

    @property
    def failure(self) -> MqtuneError | None:
        """The error that the experiment has failed with, or None."""
        return self._deciders.failure or self._failures.failure

    @property
    def max_trials(self) -> int | None:
        """The number of trials that the searcher is asked for, by the script or a later request; None for no limit."""
        return self._slots.max_trials

    @property
    def waiting_for(self) -> str:
        """Why nothing runs, or no more than its share of a fleet; else an empty text."""
        if self.experiment.counts[TrialStatus.RUNNING] or self._draining or self.is_finished:
            return "" if self._draining else self._timers.why_full or self._slots.sharing.why
        if not self.backend.slots:
            return self.backend.why_no_slot()
        if self.experiment.live:
            return self._timers.held_up_by or self._slots.sharing.why
        return "a request to resume what a request has paused" if self._requests.has_paused else self._slots.why_no_more

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
            self._restorer.create(ExperimentCreated(name=name, definition=definition, at=self._clock.time()))
        kept = self._journal.definition()
        before: dict[str, Any] = definition if kept is None else decode_value(kept)
        changes = {key: value for key, value in definition.items() if before.get(key) != value}
        # A rule that has changed says nothing about what was reported before.
        self._deciders.rule_decides = "stop" not in changes
        self._replay()
        # A replay ends with the limits of the driver before.
        self._requests.change_limits(changes)
        self._go_live()
        self._beginning = Begin(
            driver=driver,
            definition=None if kept == (now := encode_value(definition)) else now,
            changes=changes,
            code_changed=code_changed,
        )
        if not self.is_finished:
            self._say_begun()
        self._orders.take_over()
        self._carry_out_all(self._checkpoints.look_through(self._journal))
        self.backend.refresh()
        # An attempt that an earlier driver staged and did not live to publish need not wait until it is overdue.
        self._timers.publish_lost(older_than_s=0)
        self._callbacks.tell("on_start", self.experiment)
        self._carry_out_requests()

    def _say_begun(self) -> None:
        """Journal, once, that this driver drives, and does not only look at what has ended."""
        if self._beginning is not None:
            begin, self._beginning = self._beginning, None
            self.carry_out(begin)

    # One round of the loop.

    def step(self, block_s: float) -> None:
        """Start what there is room for, wait up to *block_s* seconds for news, and act on all of it.

        A round that handed a report out is only brought to its end, without handing out any more.

        Raises:
            ExperimentFinished: there was nothing left to do before.
            NothingResumes: all that is left are paused trials, and neither the scheduler nor a user resumes one.
            UserCodeFailed: scheduler, searcher or rule raised an error. Nothing is decided any more: later steps only take
                in what comes, until all attempts have ended.
        """
        round_, self._round, self._in_hand, self._hands_out = self._round or self._go_round(block_s), None, None, False
        next(round_, None)

    def next_report(self, block_s: float) -> Report | None:
        """Go on as ``step`` does, but only to the next report that counts, and return that; None at the end of the round.

        Until the next call the loop stands at that report: what is done meanwhile is journaled there.

        Raises:
            as ``step``.
        """
        round_, self._round, self._hands_out = self._round or self._go_round(block_s), None, True
        self._timers.keep_lock_if_due()
        self._in_hand = next(round_, None)
        if self._in_hand is not None:
            self._round = round_
        return self._in_hand

    def reports_ahead(self, count: int) -> list[Report]:
        """Return up to *count* reports that ``next_report`` returns next unless their trials are told something before."""
        return [] if self._in_hand is None else self._ahead.behind(self.cursor, count)

    def _go_round(self, block_s: float) -> Iterator[Report | None]:
        """Make one round of the loop, and yield each report that is handed out."""
        if self._deciders.is_broken:
            self._look_on(block_s)
            return
        if self.is_finished and not self._draining and self.failure is None:
            raise ExperimentFinished(f"experiment {self.experiment.name!r} is finished; there is nothing left to step")
        self._say_begun()
        if self._hands_out:
            # Later it could only be done at a report in hand, which would then count as acted on.
            self._drop_gathered()
        self._fill_slots()
        self._check_that_something_happens()
        held, self._held = self._held, None
        if held is not None:
            yield from held
        else:
            yield from self._take_each(self._entries(block_s))
        if held is not None or not self._pace.is_steady:
            self._act()
        if self._callbacks.hears("on_step"):
            self._callbacks.tell("on_step", self.waiting_for)

    def _act(self) -> None:
        """Carry out what is due, or has come of what a round has taken in."""
        # Not where they stand: of a driver that was away, a trial may have reported, or ended, behind a request.
        self._carry_out_requests()
        self._carry_out_all(self._deciders.late())
        self._carry_out_all(self._checkpoints.settled(self._journal, self._clock.monotonic()))
        self._orders.give()
        self._timers.look_at_fleet_if_changed()
        self._carry_out_all(self._timers.run_due())
        self._repair()
        self._end_if_over()
        self._fill_slots()

    def _entries(self, block_s: float) -> Iterator[Entry]:
        """Wait for new entries and yield them; in virtual time, on and on as long as the round is steady."""
        is_stirred = self._hands_out or self._draining
        entries = self._news(self._pace.begin(0.0 if self.is_finished else block_s, is_stirred=is_stirred))
        self._ahead.come_to(entries if self._hands_out else ())
        while entries:
            yield from entries
            entries = self._restorer.more(self._pace.left_s) if self._pace.goes_on else []
        self.reader.write()

    def _news(self, block_s: float) -> list[Entry]:
        """Wait for new entries, keep them in the copy, and return them."""
        reader = self.reader
        entries: list[Entry] = self._interrupts.wait(
            lambda: self._journal.read(reader.last, count=reader.count, block_s=block_s), interrupted=[]
        )
        if self._restorer.was_away and self._recover():
            # The entries that were read are no longer those that follow.
            return []
        if entries:
            reader.keep(entries)
            self._restorer.read_back(entries)
        return entries

    def _recover(self) -> bool:
        """After an outage put the journal back, give all orders again, and look anew; return whether entries were put back."""
        is_put_back = self._restorer.look()
        if is_put_back:
            self._repair()
        self._orders.give_again()
        self._timers.look_anew()
        return is_put_back

    def _look_on(self, block_s: float) -> None:
        """Take in what comes without telling anybody, and without coming further: the next driver decides on all of it."""
        self._timers.keep_lock_if_due()
        for entry in self._news(0.0 if self.is_finished else min(block_s, _LOOK_S)):
            event = decode_event(entry.data, entry.id)
            if event is not None and not is_of_driver(event):
                self._apply(event)
        self._repair()

    # The path of an event.

    def _replay(self) -> None:
        """Take the whole journal in, each event of an earlier driver at the place where it was written.

        Of an open experiment only up to where the last driver acted: what came after it is new to who drives it.
        """
        self._past = Past(self._restorer.catch_up(), is_open=self._limits.is_open)
        taking = self._take_each(self.reader.read())
        for _ in taking:
            self._held = taking
            break
        for event in self._past.take_rest():
            self._apply(event)

    def _go_live(self) -> None:
        """From here on events are new: checkpoints are collected, and failures and callbacks count."""
        self._is_replaying = False
        self._deciders.rule_decides = True
        self._deciders.go_live()
        new: Sequence[Listener] = (self._checkpoints, self._failures, self._callback_listener)
        self._listeners = (self._backend_listener, self._deciders, self._requests, *new)
        if self._callbacks.hears("on_report"):
            self.listen_to_reports(partial(self._callbacks.tell, "on_report"))
        self._repair()

    def _take_each(self, entries: Iterable[Entry]) -> Iterator[Report | None]:
        """Take entries of the journal in; the driver's own events were applied when they were written, or are pending."""
        numbered, past, orders = enumerate(entries), self._past, self._orders
        while entry := self._plain.take(
            numbered, past.entries, is_plain=not (self._hands_out or orders.in_lockstep or past.is_open)
        ):
            event = decode_event(entry.data, entry.id)
            if isinstance(event, Reports):
                yield from self._take_reports(entry.id, event)
            elif event is not None and not is_of_driver(event):
                self._take(entry.id, event)

    def _take(self, entry: str, event: Event) -> None:
        if not isinstance(event, ExperimentCreated):
            self._plain.place = entry, 0
        self._apply(event)
        self._catch_up()

    def _take_reports(self, entry: str, reports: Reports) -> Iterator[Report | None]:
        """Dispatch a batch of reports one by one, and carry out each verdict before the next report.

        Yield those that are handed out; in the replay of an open experiment, None before the first that nobody has acted on.
        """
        before = self._plain.place
        self.experiment.unreadable += reports.unreadable
        known = self._past.known_of(entry)
        for number, report in enumerate(reports, 1):
            if known is not None and number > known and self._is_replaying:
                yield None
            self._plain.place = entry, number
            try:
                # None for a report that came after a decision.
                verdict = None
                if (trial := self.experiment.apply_report(report)) is not None:
                    verdict = self._deciders.on_report(trial, report)
                    for listener in self._report_listeners:
                        listener(trial, report)
            except Exception:
                # The next driver begins with this report: it is as if this one had not come so far.
                self._plain.place = before if number == 1 else (entry, number - 1)
                raise
            if self._hands_out and verdict is not None:
                yield report
                if self.experiment.trials[report.trial].decision is not None:
                    verdict = None  # who has it in hand has the first word
            self._act_on(report, verdict)
            self._catch_up()

    def _act_on(self, report: Report, verdict: Verdict | None) -> None:
        """Do what comes of a report, with the verdict if it counts."""
        if verdict is GO_ON:
            if self._orders.in_lockstep:
                self._orders.go_on(report)
                if self._hands_out:
                    self._orders.give()
        elif verdict is not None:
            self._obey(report, verdict)
        if report.checkpoint and not self._is_replaying:
            self._callback_listener.saved(report.trial, report.checkpoint)
            saved = self.experiment.trials[report.trial]
            if drops := self._checkpoints.saved(saved, report.checkpoint, at_once=self._hands_out):
                self._carry_out_all(drops)

    def _obey(self, report: Report, verdict: Verdict) -> None:
        """Carry out the verdict on a report, unless an earlier driver has, or has let the trial go on."""
        decision, trial = verdict.decision, self.experiment.trials[report.trial]
        if decision.source is not None:
            self._checkpoints.plan(trial, self.experiment.trials[decision.source].checkpoint)
        if self._past.concerns(self.cursor, trial.id):
            return
        if self._is_replaying and self._past.came_past(self.cursor):
            # An earlier driver came past this report and let the trial go on, by a rule, or code, that was another one.
            return
        action, reason = decision.action, decision.reason
        self.carry_out(Decide(trial=trial, action=action, by=verdict.by, reason=reason, sequence=report.sequence))

    def _catch_up(self) -> None:
        """Apply what an earlier driver wrote when it had come this far."""
        for event in self._past.take(self.cursor):
            self._apply(event)

    def _apply(self, event: Event) -> None:
        """Fold an event, tell the listeners, and carry out what they want; the same for new, written and replayed events."""
        self._pace.stir()
        self.experiment.apply(event)
        # Once the deciders have failed, only the backend still needs to know which attempts have a slot.
        listeners = (self._backend_listener,) if self._deciders.is_broken else self._listeners
        for action in [action for listener in listeners for action in listener.hear(event)]:
            self._perform(action)

    @property
    def cursor(self) -> Cursor:
        """Where it stands in the journal."""
        return Cursor(*self._plain.place)

    # Acting.

    def carry_out(self, action: DriverAction) -> None:
        """Check an action, journal it, and apply the events that this wrote.

        Raises:
            InvalidTransition: a trial's status doesn't allow it, or its end is decided already; nothing was done.
            ConfigurationError: a config is too large, or can't be sent; nothing was done.
        """
        self._perform(action)
        self._repair()

    def _carry_out_all(self, actions: Iterable[DriverAction]) -> None:
        for action in actions:
            self.carry_out(action)

    def _perform(self, action: DriverAction) -> None:
        events = self._write(action)
        for event in events:
            self._apply(event)
        match action:
            case Stage():
                self._publisher.publish(self.experiment.trials[action.trial])
                self._let_go(action)
            case Lose(guard="expired" | "any") if events:
                self.backend.lost(action.trial.id, action.trial.attempt)
            case AnswerQuestion() | Save():
                self._orders.note(action.order)
            case _:
                pass
        if isinstance(action, Stage | Decide | Save) and action.request:
            trial_id = action.trial if isinstance(action, Stage) else action.trial.id
            self._perform(AnswerRequest(action.request, is_done=True, trial=trial_id))

    def _write(self, action: DriverAction) -> list[Event]:
        """Journal an action, after restoring the journal if the server has lost it, and return the new events."""
        while True:
            try:
                written = action.write(Writing(self._journal, self.experiment, self._clock.time(), self.cursor))
            except JournalGone:
                self._restorer.put_back()
                if isinstance(action, Stage):
                    # Once the fold knows which checkpoints are lost, the trial starts from an older one.
                    self._repair()
            else:
                self._restorer.wrote(each.data for each in written)
                return [each.event for each in written]

    def _let_go(self, stage: Stage) -> None:
        """Keep its checkpoint no longer for who has waited to start from it."""
        for drop in self._checkpoints.hold(stage.holder, CheckpointId("")):
            self._perform(drop)

    def _carry_out_requests(self) -> None:
        """Carry out, or refuse, each request that no driver has answered, in the order of the journal."""
        for request in self._requests.open():
            self._say_begun()
            if (trial := self.experiment.carried_out.get(request.id)) is not None:
                # An earlier driver has carried it out and died before it answered.
                self.carry_out(AnswerRequest(request.id, is_done=True, trial=trial))
                continue
            try:
                action = self._requests.action_for(request)
                if isinstance(action, Addition):
                    self._requests.queue(request)
                    self.add(action)
                else:
                    self.carry_out(action)
            except (InvalidTransition, ConfigurationError) as error:
                self._refuse(request.id, error)
        if self._requests.ending is not None:
            for queued in self._requests.queued():
                self._refuse(queued.id, ExperimentFinished(f"the experiment ends: {self._requests.ending.reason}"))

    def _refuse(self, request: str, error: MqtuneError) -> None:
        trial = self.experiment.requests[request].trial
        self.carry_out(AnswerRequest(request, is_done=False, reason=str(error), trial=trial))

    def _repair(self) -> None:
        """After lost entries of the journal were put back, drop the checkpoints that Redis has lost with them."""
        while restored := self._restorer.take_restored():
            for drop in self._checkpoints.lost(self._journal):
                self._perform(drop)
            for each in restored:
                self._callbacks.tell("on_restore", *each)

    def steer(
        self, action: str, trial: str, arguments: dict[str, object], brought: CheckpointId = _NO_CHECKPOINT
    ) -> None:
        """Do at once what a request with these arguments asks for.

        Actions without an event of their own (``add`` when a slot is free, ``set``, ``end``) become requests in the journal,
        carried out in the next step. A checkpoint that was *brought* was copied into the store, to start from.

        Raises:
            InvalidTransition: a trial's status doesn't allow it; nothing was done.
            ConfigurationError: there is no such action, trial or checkpoint, or an argument is invalid; nothing was done.
        """
        request = self._request(action, trial, arguments)
        wanted = self._requests.action_for(request, brought)
        if isinstance(wanted, Addition | AnswerRequest):
            request = replace(request, id=secrets.token_hex(16))
            self._restorer.surely(lambda: self._journal.request(request))
            self._restorer.wrote([request.encode()])
            return
        report = self._in_hand
        if isinstance(wanted, Decide) and report is not None and report.trial == wanted.trial.id:
            wanted = replace(wanted, sequence=report.sequence)
        self.carry_out(wanted)

    def check(self, action: str, trial: str, arguments: dict[str, object]) -> None:
        """Check what ``steer`` would do, and do nothing.

        Raises:
            as ``steer``.
        """
        self._requests.action_for(self._request(action, trial, arguments))

    def start(self, arguments: dict[str, object], brought: CheckpointId = _NO_CHECKPOINT) -> Trial:
        """Stage the trial that the arguments of "add" describe now, whether or not a slot is free, and return it.

        Raises:
            as ``steer``.
        """
        new = next_trial_id(self.experiment)
        # What the config leaves out is sampled, the same for the same trial.
        added = self._requests.action_for(self._request("add", "", arguments, id_=new), brought)
        assert isinstance(added, Addition)  # noqa: S101 - that is what "add" asks for
        stage = self._slots.staging(replace(added, request=""))
        self.carry_out(stage)
        return self.experiment.trials[stage.trial]

    def _request(self, action: str, trial: str, arguments: dict[str, object], *, id_: str = "") -> Requested:
        return Requested(id=id_, action=action, trial=trial, arguments=arguments, by="", at=self._clock.time())

    def add(self, addition: Addition) -> None:
        """Have a trial tried next, before the searcher's; its checkpoint is kept until then."""
        self._slots.add(addition)
        self._carry_out_all(self._checkpoints.hold(addition, addition.checkpoint))

    def requeue_all(self, reason: str) -> None:
        """Start nothing more, and end all attempts so that a later driver can run their trials again."""
        self._draining = True
        self._pace.stir()
        self._carry_out_all(requeues(self.experiment, reason))

    def stop_all(self, reason: str, *, by: str, spare_running: bool = False) -> None:
        """Start nothing more, and stop whatever waits, is paused, or runs, unless that may go on to its end."""
        self._draining, self.over = True, reason
        self._pace.stir()
        self._carry_out_all(stops(self.experiment, by=by, reason=reason, spare_running=spare_running))

    def lose_all(self, *, error_type: str = "") -> None:
        """End all running attempts as lost, behind their reports: no worker can be left. UNDRIVEN: it was nobody's fault."""
        losses = self._carry_out_each(self._timers.lose_all(error_type))
        if self._held is None:
            next(losses, None)
        else:
            self._held = chain(self._held, losses)

    def _carry_out_each(self, actions: Iterable[DriverAction]) -> Iterator[Report | None]:
        self._carry_out_all(actions)
        yield from ()

    def end(self, outcome: str, reason: str) -> None:
        """Journal that this driver is done, and have all of the journal on the server and in the copy."""
        self._drop_gathered()
        self.carry_out(Finish(outcome, reason))
        self._restorer.look()
        self._restorer.finish()

    def label(self, trial: Trial | None, labels: Labels) -> None:
        """Give a trial, or without one the experiment, these labels; the copy has that at once if nothing else can come."""
        self.carry_out(Label(trial, labels))
        if self.is_finished:
            self._restorer.finish()

    def _drop_gathered(self) -> None:
        """Drop what waits for it; where deciders have failed, the next driver does, once it has come past what they failed at."""
        if not self._deciders.is_broken:
            self._carry_out_all(self._checkpoints.gathered())

    def delete_checkpoints(self, trial: Trial) -> list[CheckpointId]:
        """Delete all checkpoints of a trial that nothing may still go on from, and return them."""
        if unnamed := self._checkpoints.unnamed(trial):
            self.carry_out(Drop(unnamed))
        return unnamed

    def _fill_slots(self) -> None:
        """Stage attempts until each slot has one, and perhaps another that waits for it."""
        with self._publisher:
            while not self._draining and self._slots.has_room and self.failure is None:
                self._end_if_over()
                if self._draining or (action := self._slots.next()) is None:
                    return
                if isinstance(action, Stage) and action.key in self.experiment.keys:
                    # Another one with this key came first while it waited.
                    self.carry_out(AnswerRequest(action.request, is_done=True, trial=self.experiment.keys[action.key]))
                    self._let_go(action)
                    continue
                try:
                    self.carry_out(action)
                except (InvalidTransition, ConfigurationError) as error:
                    if not isinstance(action, Stage) or not action.request:
                        raise
                    self._refuse(action.request, error)
                    self._let_go(action)

    def _end_if_over(self) -> None:
        """Stop everything once a rule ends the experiment, or a failure or a request does."""
        if (ending := self._requests.ending) is not None:
            # Each time: what it let run on may have been paused since, and a later request may want all to stop now.
            self.stop_all(ending.reason, by="user", spare_running=not ending.now)
        if self._draining:
            return
        reason, by = self._failures.stops, "driver"
        if not reason:
            reason, by = self._deciders.stops_experiment(self._clock.time()), "stop rule"
        if reason:
            self.stop_all(reason, by=by)

    def _check_that_something_happens(self) -> None:
        """Raise when no event can ever come: nothing runs, and nothing was started although there is room."""
        experiment = self.experiment
        can_happen = experiment.live or self._draining or self.failure is not None or not self._slots.has_slots
        is_expected = self._limits.is_open or self._slots.is_expecting or self._requests.has_paused
        if not (can_happen or is_expected or self.is_finished):
            raise self._slots.nothing_resumes()

    # For those who drive it.

    def listen_to_reports(self, listener: Callable[[Trial, Report], object]) -> None:
        """Have *listener* called with each report from now on, after the scheduler has seen it."""
        self._report_listeners.append(listener)

    def read_checkpoint(self, checkpoint: CheckpointId) -> bytes | None:
        """Return the data of a checkpoint that is a dict in Redis, or None when it is gone."""
        return self._journal.checkpoint(checkpoint)

    def look_at_fleet(self) -> BackendSession:
        """Return the backend, which has just looked at its slots, unless this driver is closed."""
        if not self._is_closed:
            self.backend.refresh()
        return self.backend

    def close(self) -> None:
        """Close the copy and release the lock, so that another driver may go on at once."""
        self._is_closed = True
        self._slots.sharing.close()
        self._checkpoints.close()
        self.reader.close()
        self._copy.close()
        self._journal.unlock(self._owner)
