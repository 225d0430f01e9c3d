"""The driver of an experiment.

Its parts are made from settings and a place.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from mqtune.backends.base import BackendSession
from mqtune.core.callback import Callback
from mqtune.core.codec import encode_value
from mqtune.core.definition import decode_definition
from mqtune.core.events import CheckpointsDropped, Cursor, Event, ExperimentCreated
from mqtune.core.machine import DICTS, replace_file
from mqtune.core.trial import UNDRIVEN, CheckpointId, Labels, Report, Trial, is_in_memory
from mqtune.driver.actions import Begin, Drop, Finish, Label, Orders
from mqtune.driver.checkpoints import CheckpointGC
from mqtune.driver.connect import DriverContext, unless_away
from mqtune.driver.deciders import Deciders
from mqtune.driver.heartbeat import Heartbeat
from mqtune.driver.intake import Intake
from mqtune.driver.interrupts import Interrupts
from mqtune.driver.ledger import Ledger
from mqtune.driver.listeners import BackendListener, CallbackListener, FailureWatch, OfferWatch
from mqtune.driver.loop import Loop
from mqtune.driver.news import News
from mqtune.driver.options import LEARNT
from mqtune.driver.outside import waits_outside
from mqtune.driver.pace import LoopPace
from mqtune.driver.path import EventPath
from mqtune.driver.ports import Appetite, DriverHooks, DriverHost, MakeServices, no_services
from mqtune.driver.requests import Requests
from mqtune.driver.settings import Settings
from mqtune.driver.slots import SlotFiller
from mqtune.driver.timers import DriverTimers
from mqtune.journal.copy import JournalReader
from mqtune.results.callbacks import CallbackDispatcher, ErrorLog
from mqtune.results.progress import deciders_of
from mqtune.results.warm_start import teach
from mqtune.search.background import BackgroundSearcher
from mqtune.search.base import Searcher

logger = logging.getLogger(__name__)

#: The longest that a step waits when nothing happens. Events and timers end it sooner.
STEP_S: Final = 4.0
#: The time that trials have to end after Ctrl-C. The worker's stop ladder takes 15 s.
_HAND_BACK_S: Final = 20.0
_NO_CHECKPOINT: Final = CheckpointId("")


class Driver(Loop):
    """Drives one experiment: makes the parts of its loop, begins, and ends. One thread calls it.

    Args:
        settings: the user's.
        place: has the journal and the slots.
        services: makes the driver's services.
    """

    def __init__(self, settings: Settings, place: DriverContext, services: MakeServices = no_services) -> None:
        experiment = settings.experiment()
        timing, scheduler = settings.run.timing, settings.scheduler
        journal, backend, clock = place.journal, place.backend, place.clock
        in_lockstep = settings.process.sync == "lockstep"
        self.settings, self.place, self.backend = settings, place, backend
        #: The part of the journal that was read, to be read again.
        self.reader = reader = JournalReader(journal, place.copy)
        self.checkpoints = checkpoints = CheckpointGC(
            experiment, settings.checkpoints, place.store, keeps_dicts=settings.is_open
        )
        self._closing = ExitStack()
        searcher = self._new_searcher()
        if scheduler.background is not None:
            self._closing.callback(scheduler.background.close)
        self._ledger = ledger = Ledger(journal, reader)
        journal_mb = settings.run.journal_mb
        self._heartbeat = heartbeat = Heartbeat(ledger, place.holder, settings.on_loss, self._waits, journal_mb, timing)
        host = DriverHost(
            experiment=experiment,
            backend=backend,
            ledger=ledger,
            heartbeat=heartbeat,
            copy=place.copy.path,
            resources=settings.expected[0],
            options=lambda: self.requests.options,
            appetite=self._measure_appetite,
            is_full=lambda: self._timers.is_server_full,
            clock=clock,
            timing=timing,
        )
        self._hooks = hooks = DriverHooks(services(host), clock)
        ledger.restore = hooks.journal_lost
        timers = DriverTimers(
            ledger, backend, experiment, heartbeat=heartbeat, hooks=hooks, clock=clock, reader=reader, timing=timing
        )
        deciders = Deciders(experiment, searcher, settings, clock)
        slots = SlotFiller(experiment, backend, deciders, settings, clock, heartbeat, hooks)
        self._given_callbacks = self._add_progress()
        self._callbacks = CallbackDispatcher([*self._given_callbacks, ErrorLog(place.folder)])
        pace = LoopPace(journal, clock, timers, deciders, slots, checkpoints, self._callbacks, is_lockstep=in_lockstep)
        orders = Orders(ledger, experiment, in_lockstep=in_lockstep)
        intake = Intake(experiment, deciders, look=timers.keep_lock_if_due, act=self._act_on)
        path = EventPath(
            ledger, experiment, backend, clock, intake, orders, deciders, checkpoints, self._callbacks, pace, settings
        )
        requests = Requests(experiment, slots, settings, path, checkpoints, ledger, heartbeat, clock)
        # A replay brings back the states of scheduler, searcher and rule. All others hear new events alone.
        path.listeners = (BackendListener(backend), deciders, slots, requests)
        interrupts = place.interrupts or Interrupts()
        super().__init__(
            experiment,
            news=News(journal, reader, ledger, interrupts, orders, timers, pace),
            intake=intake,
            path=path,
            deciders=deciders,
            failures=FailureWatch(experiment, settings.failures.fail_fast),
            slots=slots,
            requests=requests,
            checkpoints=checkpoints,
            timers=timers,
            orders=orders,
            pace=pace,
            on_round=self._tell_round,
        )
        self._closing.callback(unless_away, self._end_parts)
        self._closing.callback(self._callbacks.close)
        self._closing.callback(self._callbacks.tell, "on_end")

    def _new_searcher(self) -> Searcher:
        settings, place = self.settings, self.place
        searcher = settings.new_searcher(place.definition["seed"], place.definition.get("searcher"))
        teach(searcher, place.definition.get(LEARNT, ()))
        if place.waits:
            settings.scheduler.decide_in_background()
            if searcher.is_slow:
                searcher = BackgroundSearcher(searcher, settings.run.timing)
                self._closing.callback(searcher.close)
        return searcher

    def _add_progress(self) -> list[Callback]:
        """Return the user's callbacks, behind the display of the progress."""
        settings, place = self.settings, self.place
        callbacks = list(settings.run.callbacks)
        if settings.run.progress:
            from mqtune.results.display import ProgressDisplay  # noqa: PLC0415 - rich is slow to import

            deciders = deciders_of(place.definition).in_words(settings.why_random)
            interrupts = place.interrupts or Interrupts()
            display = ProgressDisplay(
                total=lambda: self.max_trials,
                folder=place.folder,
                said=lambda: interrupts.said,
                deciders=deciders,
                undisturbed=interrupts.deferred,
            )
            callbacks.insert(0, display)
        return callbacks

    # Beginning.

    def begin(self) -> None:
        """Create the experiment, or bring it back to where its journal ends, and start the loop's timers."""
        place, definition = self.place, self.place.definition
        for callback in self._given_callbacks:
            callback.setup(place.folder)
        if place.is_new:
            at, owner = place.clock.time(), place.owner._asdict()
            self._ledger.create(ExperimentCreated(name=self.settings.name, definition=definition, at=at, **owner))
        past = self._ledger.catch_up()
        kept = place.journal.definition()
        before: dict[str, Any] = definition if kept is None else decode_definition(self.settings.name, kept)
        changes = {key: value for key, value in definition.items() if before.get(key) != value}
        # A rule that has changed says nothing about earlier reports.
        self._deciders.rule_decides = "stop" not in changes
        self._replay(past)
        # Before an attempt begins, workers know what they are to do without a driver.
        self._heartbeat.beat()
        # A replay ends with the limits of the driver before.
        self.requests.change_limits(changes)
        self._path.beginning = Begin(
            driver=place.driver,
            definition=None if kept == (now := encode_value(definition)) else now,
            changes=changes,
            code_changed=place.changed,
        )
        if not self.is_finished or self.requests.open():
            self._path.say_begun()
        self._orders.take_over()
        self._path.carry_out_all(self.checkpoints.check_all(place.journal, place.folder))
        self.backend.refresh()
        # An attempt that an earlier driver staged and did not live to publish need not wait until it is overdue.
        self._timers.publish_lost(older_than_s=0)
        self._callbacks.tell("on_start", self.experiment)
        self.requests.carry_out()
        if place.changed:
            self._warn_of_changed_code()
        self.label(None, self.experiment.labels.changed(self.settings.run.tags, self.settings.run.notes))
        if place.is_private:
            # The worker of an earlier run has ended with its server.
            self.lose_all(error_type=UNDRIVEN)

    def _replay(self, past: Mapping[Cursor, list[Event]]) -> None:
        """Apply the whole journal, each event of an earlier driver at the place where it was written.

        From then on events are new. In an open experiment, all events behind the last driver's last action are new.
        """
        self._intake.replay(self.reader.read(), past, keeps_new=self.settings.is_open)
        self._take_in()
        self._intake.go_live()
        self._deciders.go_live()
        backend, deciders, _, requests = self._path.listeners
        may_wait = self.settings.run.queue_trials and self.place.may_grow
        self._path.listeners = (
            backend,
            deciders,
            requests,
            self.checkpoints,
            self._failures,
            OfferWatch(self.backend, self.experiment, may_wait=may_wait),
            CallbackListener(self.experiment, self._callbacks),
            self._hooks,
        )
        if self._callbacks.hears("on_report"):
            self.listen_to_reports(partial(self._callbacks.tell, "on_report"))

    def _warn_of_changed_code(self) -> None:
        name, changed = self.settings.name, ", ".join(self.place.changed)
        if self.is_finished:
            logger.warning(
                "experiment %s had ended, and its code has changed since (%s): the results below are of the earlier "
                "code, and nothing ran. Use another name, or run=RunOptions(overwrite=True), to run the code as it is "
                "now",
                name,
                changed,
            )
            return
        logger.warning(
            "the code of experiment %s has changed since its first %d trials (%s): what runs from now on runs the code "
            "as it is now. Use another name, or run=RunOptions(overwrite=True), for results of one code; code='strict' "
            "refuses to go on",
            name,
            len(self.experiment.trials),
            changed,
        )

    # Its state, for people and for services.

    @property
    def cursor(self) -> Cursor:
        """Where it stands in the journal."""
        return self._intake.cursor

    @property
    def max_trials(self) -> int | None:
        """The number of trials that the searcher is asked for, by the script or a later request.

        It is None for no limit.
        """
        return self._slots.max_trials

    @property
    def waiting_for(self) -> str:
        """Why nothing runs, or no more than its share of a fleet; else an empty text."""
        outside = "" if self.experiment.live or self.is_finished else waits_outside(self.experiment)
        if self._draining:
            return outside
        if self.experiment.running or self.is_finished:
            return self._timers.why_full or self._hooks.reason()
        if outside and not self._slots.has_more:
            return outside
        if not self.backend.slots:
            return self.backend.why_no_slot()
        if self.experiment.live:
            return self._timers.why_held_up() or self._hooks.reason()
        return "a request to resume what a request has paused" if self.requests.has_paused else self._slots.why_no_more

    def _waits(self) -> str:
        """Return why nothing more starts, for people elsewhere."""
        waiting_for = self.waiting_for
        if self.over:
            return f"it ends: {self.over}" + (waiting_for and f"; it waits for {waiting_for}")
        return waiting_for or self._slots.why_no_more

    def _measure_appetite(self) -> Appetite:
        appetite = self._slots.appetite()
        return appetite._replace(has_more=False) if self._draining else appetite

    def _tell_round(self) -> None:
        if self._callbacks.hears("on_step"):
            self._callbacks.tell("on_step", self.waiting_for)

    # Commands of its own process, between rounds.

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

    def label(self, trial: Trial | None, labels: Labels) -> None:
        """Give a trial, or without one the experiment, these labels.

        The copy has it immediately if the experiment has finished.
        """
        self.carry_out(Label(trial, labels))
        if self.is_finished:
            self._ledger.finish()

    def delete_checkpoints(self, trial: Trial) -> list[CheckpointId]:
        """Delete all checkpoints of a trial from which nothing may still continue, and return them."""
        if unnamed := self.checkpoints.unnamed(trial):
            self.carry_out(Drop(unnamed))
        return unnamed

    def listen_to_reports(self, listener: Callable[[Trial, Report], object]) -> None:
        """Have *listener* called with each report from now on, after the scheduler has seen it."""
        self._intake.listeners.append(listener)

    def read_checkpoint(self, checkpoint: CheckpointId) -> bytes | None:
        """Return the data of a checkpoint that is a dict in Redis, or None when it is gone."""
        return self.place.journal.checkpoint(checkpoint)

    def look_at_fleet(self) -> BackendSession:
        """Return the backend, which has just looked at its slots, unless this driver is closed."""
        if not self.reader.is_closed:
            self.backend.refresh()
        return self.backend

    # Ending.

    def lose_all(self, *, error_type: str = "") -> None:
        """End all running attempts as lost, behind their reports: no worker can be left.

        UNDRIVEN: it was nobody's fault.
        """
        self._timers.lose_all(error_type)
        if self._intake.is_done:
            self._path.carry_out_all(self._timers.run_due())

    def hand_back(self, reason: str) -> None:
        """Requeue all trials, and wait up to 20 s for their ends, or until a second Ctrl-C."""
        self.requeue_all(reason)
        interrupts, deadline = self.place.interrupts, time.monotonic() + _HAND_BACK_S
        while not self.is_finished and time.monotonic() < deadline and not (interrupts and interrupts.is_urgent):
            self.step(max(0.0, deadline - time.monotonic()))

    def end(self, outcome: str, reason: str) -> None:
        """Journal that this driver is done, and have all of the journal on the server and in the copy."""
        if not self._deciders.is_broken:
            # Else the next driver does, once it has passed the report at which they failed.
            self._path.carry_out_all(self.checkpoints.gathered())
            self._path.carry_out_all(self.checkpoints.find_orphans(self.place.journal))
        self.carry_out(Finish(outcome, reason))
        # A server that was emptied by hand has not been away.
        self._heartbeat.beat()
        self._ledger.check()
        self._ledger.finish()
        if lost := self._ledger.lost:
            # An entry says so where the journal was restored at the end. Nobody applies that entry any more.
            self.experiment.apply(CheckpointsDropped(checkpoints=[*lost], at=self.place.clock.time()))
        self._path.tell_restored()

    def keep_best_dict(self) -> None:
        """Keep the best trials' checkpoints in the folder if they are dicts.

        The Redis that has them may end with the run.
        """
        folder = self.place.folder / DICTS
        for best in self.experiment.leaders.values():
            is_dict = best.checkpoint and is_in_memory(best.checkpoint)
            if is_dict and (data := self.read_checkpoint(best.checkpoint)) is not None:
                folder.mkdir(exist_ok=True)
                replace_file(folder / best.checkpoint, [data])

    def close(self) -> None:
        """Close the copy and release the lock, so that another driver may take it immediately."""
        self._closing.close()

    def _end_parts(self) -> None:
        self.reader.close()
        self._hooks.close()
        self.checkpoints.close()
        self.place.journal.unlock(self.place.holder)
