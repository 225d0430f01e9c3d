"""The driver's loop: reads the journal, dispatches its events, carries out what is decided, keeps the slots busy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

from mqtune.backends.base import BackendSession
from mqtune.core.clock import Clock
from mqtune.core.codec import decode_value, encode_value
from mqtune.core.errors import ConfigurationError, ExperimentFinished, ImpossibleEvent, InvalidTransition, MqtuneError
from mqtune.core.events import CheckpointsDropped, Cursor, ExperimentCreated
from mqtune.core.experiment import Experiment
from mqtune.core.owner import NOBODY, Owner
from mqtune.core.trial import CheckpointId, Labels, Report, Trial, TrialStatus
from mqtune.driver.actions import (
    AnswerRequest,
    Begin,
    Decide,
    DriverAction,
    Drop,
    Finish,
    Label,
    Orders,
    Stage,
    requeues,
    stops,
)
from mqtune.driver.checkpoints import CheckpointGC
from mqtune.driver.deciders import GO_ON, Deciders, Verdict
from mqtune.driver.heartbeat import Heartbeat
from mqtune.driver.intake import Intake
from mqtune.driver.interrupts import Interrupts
from mqtune.driver.listeners import BackendListener, CallbackListener, FailureWatch, OfferWatch
from mqtune.driver.outside import waits_outside
from mqtune.driver.pace import Pace
from mqtune.driver.path import EventPath
from mqtune.driver.ports import Appetite, DriverHooks, DriverHost, MakeServices, no_services
from mqtune.driver.requests import Requests
from mqtune.driver.screening import Screening
from mqtune.driver.settings import Settings
from mqtune.driver.slots import SlotFiller
from mqtune.driver.timers import DriverTimers
from mqtune.journal.base import Entry, Journal
from mqtune.journal.copy import JournalFile, JournalReader
from mqtune.journal.restore import Restorer
from mqtune.results.callbacks import CallbackDispatcher
from mqtune.results.experiments import with_entry
from mqtune.search.base import Searcher

#: How often a driver that decides nothing more reads the journal.
_LOOK_S: Final = 1.0
_NO_CHECKPOINT: Final = CheckpointId("")


class Driver:
    """Drives one experiment; one thread calls it.

    Entries that were read wait in the ``Intake``, and each event takes the ``EventPath``. All work comes as actions:
    from the listeners, the slot filler, the timers and services, and from the loop itself for a scheduler's decision.
    """

    def __init__(
        self,
        *,
        journal: Journal,
        backend: BackendSession,
        experiment: Experiment,
        settings: Settings,
        searcher: Searcher,
        may_wait: bool = True,
        checkpoints: CheckpointGC,
        copy: JournalFile,
        callbacks: CallbackDispatcher,
        holder: str,
        clock: Clock,
        interrupts: Interrupts | None = None,
        services: MakeServices = no_services,
    ) -> None:
        scheduler, rule, timing = settings.scheduler, settings.stop, settings.run.timing
        is_lockstep, resources = settings.process.sync == "lockstep", settings.expected[0]
        self.experiment = experiment
        self.backend = backend
        #: Why it ends although there is more to do, or empty.
        self.over = ""
        self._journal = journal
        self._is_open = settings.is_open
        self._checkpoints = checkpoints
        self._callbacks = callbacks
        self._holder = holder
        self._clock = clock
        self._timing = timing
        self._interrupts = interrupts if interrupts is not None else Interrupts()
        #: The part of the journal that was read, to be read again.
        self.reader = JournalReader(journal, copy)
        self._draining = False
        #: Whether it leaves what there is to another driver.
        self._hands_over = False
        #: To be journaled before this driver does anything else.
        self._beginning: Begin | None = None
        #: The report that was handed out, at which the driver stands, and the verdict on it.
        self._in_hand: tuple[Report, Verdict] | None = None
        self._failures = FailureWatch(experiment, settings.failures.fail_fast)
        self._offers = OfferWatch(backend, experiment, may_wait=settings.run.queue_trials and may_wait)
        screening = Screening(experiment, scheduler, rule, settings.failures)
        self._deciders = Deciders(experiment, scheduler, searcher, rule, screening)
        self._restorer = Restorer(journal, self.reader, copy, clock)
        self._heartbeat = Heartbeat(
            self._restorer, holder, settings.on_loss, self._waits, settings.run.journal_mb, timing
        )
        self._orders = Orders(self._restorer, experiment, in_lockstep=is_lockstep)
        self._timers = DriverTimers(
            self._restorer,
            backend,
            experiment,
            heartbeat=self._heartbeat,
            clock=clock,
            reader=self.reader,
            timing=timing,
        )
        host = DriverHost(
            experiment=experiment,
            backend=backend,
            restorer=self._restorer,
            heartbeat=self._heartbeat,
            copy=copy.path,
            resources=resources,
            options=lambda: self.requests.options,
            appetite=self._appetite,
            is_full=lambda: self._timers.is_server_full,
            clock=clock,
            timing=timing,
        )
        self._hooks = DriverHooks(services(host), clock)
        self._timers.serve(self._hooks)
        self._slots = SlotFiller(experiment, backend, self._deciders, settings, clock, self._heartbeat, self._hooks)
        self._pace = Pace(
            journal, clock, self._timers, self._deciders, self._slots, checkpoints, callbacks, is_lockstep=is_lockstep
        )
        self._intake = Intake(experiment, self._deciders, look=self._timers.keep_lock_if_due, act=self._act_on)
        self._path = EventPath(
            self._restorer,
            experiment,
            backend,
            clock,
            intake=self._intake,
            orders=self._orders,
            deciders=self._deciders,
            checkpoints=checkpoints,
            callbacks=callbacks,
            pace=self._pace,
            resources=resources,
            asks=settings.asks,
        )
        self.requests = Requests(
            experiment,
            self._slots,
            settings.space,
            path=self._path,
            checkpoints=checkpoints,
            restorer=self._restorer,
            heartbeat=self._heartbeat,
            options=settings.run,
            clock=clock,
            time_attr=scheduler.time_attr,
        )
        # A replay brings back what scheduler, searcher and rule know; all else is told only what is new.
        self._path.listeners = (BackendListener(backend), self._deciders, self._slots, self.requests)

    @property
    def is_finished(self) -> bool:
        """Whether nothing runs and nothing is left to start or to resume."""
        if self.experiment.live:
            return False
        if self._draining:
            # Trials outside continue without a driver.
            return self._hands_over or not self.experiment.outside
        if self._slots.has_more:
            return False
        if self._is_open:
            return self.experiment.outcome == "finished"
        return not (self.experiment.counts[TrialStatus.PAUSED] or self.experiment.outside)

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
        outside = "" if self.experiment.live or self.is_finished else waits_outside(self.experiment)
        if self._draining:
            return outside
        if self.experiment.running or self.is_finished:
            return self._timers.why_full or self._hooks.reason
        if outside and not self._slots.has_more:
            return outside
        if not self.backend.slots:
            return self.backend.why_no_slot()
        if self.experiment.live:
            return self._timers.held_up_by or self._hooks.reason
        return "a request to resume what a request has paused" if self.requests.has_paused else self._slots.why_no_more

    def _appetite(self) -> Appetite:
        appetite = self._slots.appetite()
        return appetite._replace(has_more=False) if self._draining else appetite

    def _waits(self) -> str:
        """Why nothing more starts, for people elsewhere."""
        waiting_for = self.waiting_for
        if self.over:
            return f"it ends: {self.over}" + (waiting_for and f"; it waits for {waiting_for}")
        return waiting_for or self._slots.why_no_more

    def begin(
        self,
        name: str,
        definition: dict[str, Any],
        *,
        is_new: bool,
        driver: str,
        owner: Owner = NOBODY,
        code_changed: Sequence[str] = (),
    ) -> None:
        """Create the experiment, or bring it back to where its journal ends, and start the loop's timers."""
        if is_new:
            at = self._clock.time()
            self._restorer.create(ExperimentCreated(name=name, definition=definition, at=at, **owner._asdict()))
        kept = self._journal.definition()
        before: dict[str, Any] = definition if kept is None else decode_value(kept)
        changes = {key: value for key, value in definition.items() if before.get(key) != value}
        # A rule that has changed says nothing about what was reported before.
        self._deciders.rule_decides = "stop" not in changes
        self._replay()
        # Before an attempt begins, workers know what they are to do without a driver.
        self._heartbeat.beat()
        # A replay ends with the limits of the driver before.
        self.requests.change_limits(changes)
        self._beginning = Begin(
            driver=driver,
            definition=None if kept == (now := encode_value(definition)) else now,
            changes=changes,
            code_changed=code_changed,
        )
        if not self.is_finished or self.requests.open():
            self._say_begun()
        self._orders.take_over()
        self._path.carry_out_all(self._checkpoints.look_through(self._restorer))
        self.backend.refresh()
        # An attempt that an earlier driver staged and did not live to publish need not wait until it is overdue.
        self._timers.publish_lost(older_than_s=0)
        self._callbacks.tell("on_start", self.experiment)
        self.requests.carry_out()

    def _replay(self) -> None:
        """Take the whole journal in, each event of an earlier driver at the place where it was written.

        From then on events are new. In an open experiment, all events behind the last driver's last action are new.
        """
        past = self._restorer.catch_up()
        self._intake.replay(self.reader.read(), past, keeps_new=self._is_open)
        self._take_in()
        self._intake.go_live()
        self._deciders.go_live()
        backend, deciders, _, requests = self._path.listeners
        new = self._checkpoints, self._failures, self._offers, CallbackListener(self.experiment, self._callbacks)
        self._path.listeners = (backend, deciders, requests, *new, self._hooks)
        if self._callbacks.hears("on_report"):
            self.listen_to_reports(partial(self._callbacks.tell, "on_report"))

    def _say_begun(self) -> None:
        """Journal, once, that this driver drives; a look at an ended experiment writes nothing."""
        if self._beginning is not None:
            begin, self._beginning = self._beginning, None
            self._path.carry_out(begin)

    # One round of the loop.

    def step(self, block_s: float) -> None:
        """Start what there is room for, wait up to *block_s* seconds for news, and act on all of it.

        A round that handed a report out is only brought to its end, without handing out any more.

        Raises:
            ExperimentFinished: there was nothing left to do before.
            NothingResumes: only paused trials are left, and neither the scheduler nor a user resumes one.
            UserCodeFailed: scheduler, searcher or rule raised an error. Nothing is decided any more: later steps only
                apply events, until all attempts have ended.
        """
        self._go_on(block_s, hands_out=False)

    def next_report(self, block_s: float) -> Report | None:
        """Go on as ``step`` does, but only to the next report that counts, and return that.

        It is None at the end of the round. Until the next call the loop stands at that report: actions are journaled
        there.

        Raises:
            as ``step``.
        """
        self._timers.keep_lock_if_due()
        return self._go_on(block_s, hands_out=True)

    def reports_ahead(self, count: int) -> list[Report]:
        """Return up to *count* reports that ``next_report`` returns next.

        A decision on their trials in between changes that.
        """
        return [] if self._in_hand is None else self._intake.ahead(count)

    def _go_on(self, block_s: float, *, hands_out: bool) -> Report | None:
        """Make a round of the loop, or the rest of one, and return the next report that it hands out."""
        in_hand, self._in_hand = self._in_hand, None
        if self._deciders.is_broken:
            self._look_on(block_s)
            return None
        if in_hand is None:
            self._begin_round(block_s, hands_out=hands_out)
        else:
            report, verdict = in_hand
            # The caller may have decided on the report meanwhile.
            is_decided = self.experiment.trials[report.trial].decision is not None
            self._act_on(report, None if is_decided else verdict, at_once=hands_out)
        if (next_ := self._take_in(hands_out=hands_out)) is None:
            self._end_round()
        return next_

    def _begin_round(self, block_s: float, *, hands_out: bool) -> None:
        """Fill the slots, and wait for news, unless the intake still has entries."""
        if self.is_finished and not self._draining and self.failure is None:
            raise ExperimentFinished(f"experiment {self.experiment.name!r} is finished; there is nothing left to step")
        self._say_begun()
        if hands_out:
            # Later it could only be done at a report in hand, which would then count as acted on.
            self._path.carry_out_all(self._checkpoints.gathered())
        self._fill_slots()
        self._check_that_something_happens()
        if self._intake.is_done:
            has_requests = bool(self.requests.open())
            block_s = 0.0 if self.is_finished or has_requests else block_s
            is_stirred = hands_out or self._draining or has_requests
            if (entries := self._news(self._pace.begin(block_s, is_stirred=is_stirred))) is not None:
                self._intake.put(chain(entries, self._more()))

    def _take_in(self, *, hands_out: bool = False) -> Report | None:
        """Apply the entries of the intake, and carry out each verdict before the next report.

        Return the first report that is handed out.
        """
        is_plain = not (hands_out or self._orders.in_lockstep)
        with self._naming_entry():
            while (found := self._intake.next(is_plain=is_plain)) is not None:
                if not isinstance(found, Report):
                    self._path.apply(found)
                    continue
                verdict = self._intake.judge(found)
                if hands_out and verdict is not None:
                    self._in_hand = found, verdict
                    return found
                self._act_on(found, verdict, at_once=hands_out)
        return None

    def _act_on(self, report: Report, verdict: Verdict | None, *, at_once: bool = False) -> None:
        """Do what comes of a report, with the verdict if it counts.

        With *at_once*, also do the work that could wait until the end of the round.
        """
        trial = self.experiment.trials[report.trial]
        if verdict is GO_ON:
            if self._orders.in_lockstep:
                self._orders.go_on(report)
                if at_once:
                    self._orders.give()
        elif verdict is not None:
            action, reason, source = verdict.decision
            if source is not None:
                self._checkpoints.plan(trial, self.experiment.trials[source].checkpoint)
            # An earlier driver that came as far has decided so, or has let the trial go on, by a rule, or code, that
            # was another one.
            if not self._intake.has_past:
                self.carry_out(
                    Decide(trial=trial, action=action, by=verdict.by, reason=reason, sequence=report.sequence)
                )
        if report.checkpoint and not self._intake.is_replaying:
            self._path.take_checkpoint(report, at_once=at_once)

    def _end_round(self) -> None:
        """Carry out the work that is due, or that follows from the events of the round."""
        if not self._pace.is_steady:
            # Not where they stand: of a driver that was away, a trial may have reported, or ended, behind a request.
            self.requests.carry_out()
            self._path.carry_out_all(self._deciders.late())
            self._path.carry_out_all(self._checkpoints.settled(self._clock.monotonic()))
            self._orders.give()
            self._path.carry_out_all(self._timers.run_due())
            self._timers.look_at_fleet_if_changed()
            self._end_if_over()
            self._fill_slots()
        self._path.tell_restored()
        if self._callbacks.hears("on_step"):
            self._callbacks.tell("on_step", self.waiting_for)

    def _look_on(self, block_s: float) -> None:
        """Apply new events without a decision, and without moving the cursor.

        The next driver decides on all of it.
        """
        self._timers.keep_lock_if_due()
        if self._intake.is_done:
            self._intake.put(self._news(0.0 if self.is_finished else min(block_s, _LOOK_S)) or ())
        with self._naming_entry():
            for found in self._intake.leave():
                if isinstance(found, Report):
                    self.experiment.apply_report(found)
                else:
                    self._path.apply(found)
        self._path.tell_restored()

    @contextlib.contextmanager
    def _naming_entry(self) -> Iterator[None]:
        """Name the journal's entry in the error of an event that was read and can't follow what came before."""
        try:
            yield
        except ImpossibleEvent as error:
            raise with_entry(error, self.experiment.name, self.reader.read()) from None

    # Reading.

    def _news(self, block_s: float) -> list[Entry] | None:
        """Wait for new entries, keep them in the copy, and return those that the driver has not applied.

        Return None if no entries came.

        After an outage, restore the journal, give all orders again, and check all attempts again.
        """
        reader = self.reader
        entries: list[Entry] = self._interrupts.wait(
            lambda: self._journal.read(reader.last, count=reader.count, block_s=block_s), interrupted=[]
        )
        if self._restorer.was_away:
            is_put_back = self._restorer.look()
            self._orders.give_again()
            self._timers.look_anew()
            if is_put_back:
                # The entries that were read are no longer those that follow.
                return None
        if not entries:
            return None
        reader.keep(entries)
        return self._restorer.read_back(entries)

    def _more(self) -> Iterator[Entry]:
        """In virtual time, go on waiting for entries as long as the round is steady, and yield them."""
        while self._pace.goes_on and (entries := self._restorer.more(self._pace.left_s)) is not None:
            yield from entries
        self.reader.write()

    @property
    def cursor(self) -> Cursor:
        """Where it stands in the journal."""
        return self._intake.cursor

    # Acting.

    def carry_out(self, action: DriverAction) -> None:
        """Check an action, journal it, and apply the events that this wrote.

        Raises:
            InvalidTransition: a trial's status doesn't allow it, or its end is decided already; nothing was done.
            ConfigurationError: a config is too large, or can't be sent; nothing was done.
        """
        self._path.carry_out(action)

    def steer(
        self, action: str, trial: str, arguments: dict[str, object], brought: CheckpointId = _NO_CHECKPOINT
    ) -> None:
        """Carry out a request with these arguments immediately.

        Actions without an event of their own (``add`` when a slot is free, ``set``, ``end``) become requests in the
        journal, carried out in the next step. A checkpoint that was *brought* was copied into the store, to start from.

        Raises:
            InvalidTransition: a trial's status doesn't allow it; nothing was done.
            ConfigurationError: there is no such action, trial or checkpoint, or an argument is invalid; nothing was
                done.
        """
        report = None if self._in_hand is None else self._in_hand[0]
        self.requests.steer(action, trial, arguments, brought, in_hand=report)

    def requeue_all(self, reason: str) -> None:
        """Start nothing more, and end all attempts so that a later driver can run their trials again."""
        self._draining = self._hands_over = True
        self._pace.stir()
        self._path.carry_out_all(requeues(self.experiment, reason))

    def stop_all(self, reason: str, *, by: str, spare_running: bool = False) -> None:
        """Start nothing more, and stop whatever waits, is paused, or runs, unless that may go on to its end."""
        self._draining, self.over = True, reason
        self.requests.over = reason
        self._pace.stir()
        self._path.carry_out_all(stops(self.experiment, by=by, reason=reason, spare_running=spare_running))

    def lose_all(self, *, error_type: str = "") -> None:
        """End all running attempts as lost, behind their reports: no worker can be left.

        UNDRIVEN: it was nobody's fault.
        """
        self._timers.lose_all(error_type)
        if self._intake.is_done:
            self._path.carry_out_all(self._timers.run_due())

    def end(self, outcome: str, reason: str) -> None:
        """Journal that this driver is done, and have all of the journal on the server and in the copy."""
        if not self._deciders.is_broken:
            # Else the next driver does, once it has come past what they failed at.
            self._path.carry_out_all(self._checkpoints.gathered())
            self._path.carry_out_all(self._checkpoints.left_over(self._restorer.journal))
        self.carry_out(Finish(outcome, reason))
        # A server that was emptied by hand has not been away.
        self._heartbeat.beat()
        self._restorer.look()
        self._restorer.finish()
        if lost := self._restorer.lost_dicts:
            # An entry says so where the journal was restored at the end; nobody applies that entry any more.
            self.experiment.apply(CheckpointsDropped(checkpoints=[*lost], at=self._clock.time()))
        self._path.tell_restored()

    def label(self, trial: Trial | None, labels: Labels) -> None:
        """Give a trial, or without one the experiment, these labels.

        The copy has it immediately if the experiment has finished.
        """
        self.carry_out(Label(trial, labels))
        if self.is_finished:
            self._restorer.finish()

    def delete_checkpoints(self, trial: Trial) -> list[CheckpointId]:
        """Delete all checkpoints of a trial that nothing may still go on from, and return them."""
        if unnamed := self._checkpoints.unnamed(trial):
            self.carry_out(Drop(unnamed))
        return unnamed

    def _fill_slots(self) -> None:
        """Stage attempts until each slot has one, and perhaps another that waits for it."""
        with self._path.publisher:
            while not self._draining and self._slots.has_room and self.failure is None:
                self._end_if_over()
                if self._draining or (action := self._slots.next()) is None:
                    return
                if isinstance(action, Stage) and action.key in self.experiment.keys:
                    # Another one with this key came first while it waited.
                    self.carry_out(AnswerRequest(action.request, is_done=True, trial=self.experiment.keys[action.key]))
                    self._path.let_go(action)
                    continue
                try:
                    self.carry_out(action)
                except (InvalidTransition, ConfigurationError) as error:
                    if not isinstance(action, Stage) or not action.request:
                        raise
                    self.requests.refuse(action.request, error)
                    self._path.let_go(action)

    def _end_if_over(self) -> None:
        """Stop everything once a rule ends the experiment, or a failure or a request does."""
        if (ending := self.requests.ending) is not None:
            # Each time: a trial that was spared may have paused since, and a later request may stop all now.
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
        can_happen = (
            experiment.live
            or experiment.outside
            or self._draining
            or self.failure is not None
            or not self._slots.has_slots
        )
        is_expected = self._is_open or self._slots.is_expecting or self.requests.has_paused
        if not (can_happen or is_expected or self.is_finished):
            raise self._slots.nothing_resumes()

    # For those who drive it.

    def listen_to_reports(self, listener: Callable[[Trial, Report], object]) -> None:
        """Have *listener* called with each report from now on, after the scheduler has seen it."""
        self._intake.listeners.append(listener)

    def read_checkpoint(self, checkpoint: CheckpointId) -> bytes | None:
        """Return the data of a checkpoint that is a dict in Redis, or None when it is gone."""
        return self._journal.checkpoint(checkpoint)

    def look_at_fleet(self) -> BackendSession:
        """Return the backend, which has just looked at its slots, unless this driver is closed."""
        if not self.reader.is_closed:
            self.backend.refresh()
        return self.backend

    def close(self) -> None:
        """Close the copy and release the lock, so that another driver may take it immediately."""
        self.reader.close()
        self._hooks.close()
        self._checkpoints.close()
        self._journal.unlock(self._holder)
