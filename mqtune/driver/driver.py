"""The driver of an experiment: makes the parts of the loop, and begins and ends the run."""

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
from mqtune.core.labels import Labels
from mqtune.core.machine import DICTS, replace_file
from mqtune.core.trial import UNDRIVEN, CheckpointId, Report, Trial, is_in_memory
from mqtune.driver.hooks import DriverHooks
from mqtune.driver.loop.loop import Loop
from mqtune.driver.loop.news import News
from mqtune.driver.loop.requests import Requests
from mqtune.driver.path.intake import Intake
from mqtune.driver.path.pace import LoopPace
from mqtune.driver.path.path import EventPath
from mqtune.driver.ports import Appetite, DriverHost, MakeServices, no_services
from mqtune.driver.rules.checkpoints import CheckpointGC
from mqtune.driver.rules.deciders import Deciders
from mqtune.driver.rules.listeners import BackendListener, CallbackListener, FailureWatch, OfferWatch
from mqtune.driver.rules.outside import waits_outside
from mqtune.driver.rules.slots import SlotFiller
from mqtune.driver.rules.timers import DriverTimers
from mqtune.driver.setup.connect import DriverContext, unless_away
from mqtune.driver.setup.interrupts import Interrupts
from mqtune.driver.setup.options import LEARNT
from mqtune.driver.setup.settings import Settings
from mqtune.driver.writing.actions import Begin, Drop, Finish, Label
from mqtune.driver.writing.heartbeat import Heartbeat
from mqtune.driver.writing.ledger import Ledger
from mqtune.driver.writing.orders import Orders
from mqtune.journal.files.copy import JournalReader
from mqtune.results.callbacks import CallbackDispatcher, ErrorLog
from mqtune.results.progress import deciders_of
from mqtune.results.warm_start import teach
from mqtune.search.background import BackgroundSearcher
from mqtune.search.base import Searcher

logger = logging.getLogger(__name__)

#: Longest wait of a step if nothing happens, in seconds. Events and timers end it sooner.
STEP_S: Final = 4.0
#: Time for trials to end after Ctrl-C, in seconds. The worker's stop ladder takes 15 s.
_HAND_BACK_S: Final = 20.0
_NO_CHECKPOINT: Final = CheckpointId("")


class Driver(Loop):
    """Runs one experiment. Only one thread may call it.

    Args:
        settings: the user's settings.
        place: the connected journal, slots and store.
        services: makes the driver's services.
    """

    def __init__(self, settings: Settings, place: DriverContext, services: MakeServices = no_services) -> None:
        experiment = settings.experiment()
        timing, scheduler = settings.run.timing, settings.scheduler
        journal, backend, clock = place.journal, place.backend, place.clock
        in_lockstep = settings.process.sync == "lockstep"
        self.settings, self.place, self.backend = settings, place, backend
        #: Reads the journal into the local copy, and can read the copy again.
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
        self._heartbeat = heartbeat = Heartbeat(
            ledger, place.holder, settings.on_loss, self._why_nothing_starts, journal_mb, timing
        )
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
        # A replay restores only the state of these listeners. The others get only new events.
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
            pace=pace,
            on_round=self._notify_of_round,
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
        """Return the user's callbacks, with the progress display in front if the user wants it."""
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
        """Create the experiment or replay its journal, and journal that this driver begins."""
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
        # Earlier reports were judged by the earlier stop rule, and not by a new one.
        self._deciders.rule_decides = "stop" not in changes
        self._replay(past)
        # Before an attempt begins, workers must know the policy for a lost driver.
        self._heartbeat.beat()
        # The replay has set the limits of the earlier driver.
        self.requests.change_limits(changes)
        self._path.beginning = Begin(
            driver=place.driver,
            definition=None if kept == (now := encode_value(definition)) else now,
            changes=changes,
            code_changed=place.changed,
        )
        if not self.is_finished or self.requests.open():
            self._path.say_begun()
        self._path.orders.take_over()
        self._path.carry_out_all(self.checkpoints.check_all(place.journal, place.folder))
        self.backend.refresh()
        # Publish now the attempts that an earlier driver staged and did not publish before it died.
        self._timers.publish_lost(older_than_s=0)
        self._callbacks.tell("on_start", self.experiment)
        self.requests.carry_out()
        if place.changed:
            self._warn_of_changed_code()
        self.label(None, self.experiment.labels.changed(self.settings.run.tags, self.settings.run.notes))
        if place.is_private:
            # The earlier run's worker has ended with that run's server.
            self.lose_all(error_type=UNDRIVEN)

    def _replay(self, past: Mapping[Cursor, list[Event]]) -> None:
        """Apply the whole journal, with each event of an earlier driver at its cursor.

        In an open experiment, the reports after the last driver's last event are left for ``next_report``.
        """
        self._intake.replay(self.reader.read(), past, leaves_new=self.settings.is_open)
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
                "experiment %s has ended, and its code has changed since (%s): nothing runs now, and the results are "
                "of the earlier code. To run the new code, use another name, run=RunOptions(overwrite=True), or "
                "`mqtune delete %s`",
                name,
                changed,
                name,
            )
            return
        logger.warning(
            "the code of experiment %s has changed since its first %d trials (%s): later trials run the new code. For "
            "results of one code, use another name, or run=RunOptions(overwrite=True). With code='strict' such an "
            "experiment does not continue",
            name,
            len(self.experiment.trials),
            changed,
        )

    # Its state, for people and for services.

    @property
    def cursor(self) -> Cursor:
        """The driver's position in the journal."""
        return self._intake.cursor

    @property
    def max_trials(self) -> int | None:
        """Total number of trials that the searcher proposes. None: no limit."""
        return self._slots.max_trials

    @property
    def waiting_for(self) -> str:
        """Why no trial runs, or no further one, in words. Empty if nothing holds the experiment up."""
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

    def _why_nothing_starts(self) -> str:
        """Return why no further trial starts, for people elsewhere. Empty if one may."""
        waiting_for = self.waiting_for
        if self.over:
            return f"it ends: {self.over}" + (waiting_for and f"; it waits for {waiting_for}")
        return waiting_for or self._slots.why_no_more

    def _measure_appetite(self) -> Appetite:
        appetite = self._slots.appetite()
        return appetite._replace(has_more=False) if self._draining else appetite

    def _notify_of_round(self) -> None:
        if self._callbacks.hears("on_step"):
            self._callbacks.tell("on_step", self.waiting_for)

    # Commands from this process, between rounds.

    def steer(
        self, action: str, trial: str, arguments: dict[str, object], brought: CheckpointId = _NO_CHECKPOINT
    ) -> None:
        """Carry out an action of the user immediately, without a request in the journal.

        The actions ``add``, ``set`` and ``end`` are exceptions: they become a request, which the next steps carry out.
        After an error nothing was done.

        Args:
            action: the action's name, see ``Steering.steer``.
            trial: the trial's id; empty for an action on the experiment.
            arguments: the action's arguments, by name.
            brought: the checkpoint to start from, if a folder of this machine was copied into the store for that.

        Raises:
            InvalidTransition: the trial's status doesn't allow the action.
            ConfigurationError: there is no such action, trial or checkpoint, or an argument is invalid.
        """
        report = None if self._in_hand is None else self._in_hand[0]
        self.requests.steer(action, trial, arguments, brought, in_hand=report)

    def label(self, trial: Trial | None, labels: Labels) -> None:
        """Replace the labels of a trial or, if *trial* is None, of the experiment."""
        self.carry_out(Label(trial, labels))
        if self.is_finished:
            # No later step writes the event into the copy.
            self._ledger.finish()

    def delete_checkpoints(self, trial: Trial) -> list[CheckpointId]:
        """Delete the checkpoints of a trial from which nothing may start, and return their ids."""
        if unnamed := self.checkpoints.unnamed(trial):
            self.carry_out(Drop(unnamed))
        return unnamed

    def listen_to_reports(self, listener: Callable[[Trial, Report], object]) -> None:
        """Call *listener* with each report from now on, after the scheduler."""
        self._intake.listeners.append(listener)

    def read_checkpoint(self, checkpoint: CheckpointId) -> bytes | None:
        """Return the encoded data of a dict checkpoint, or None if Redis no longer has it."""
        return self.place.journal.checkpoint(checkpoint)

    def look_at_fleet(self) -> BackendSession:
        """Return the backend, with refreshed slots unless this driver is closed."""
        if not self.reader.is_closed:
            self.backend.refresh()
        return self.backend

    # Ending.

    def lose_all(self, *, error_type: str = "") -> None:
        """End all running attempts as lost, after their reports: no worker can run them any more.

        *error_type* is the error type of the lost attempts. UNDRIVEN means that neither trials nor workers are to
        blame.
        """
        self._timers.lose_all(error_type)
        if self._intake.is_done:
            self._path.carry_out_all(self._timers.run_due())

    def hand_back(self, reason: str) -> None:
        """Requeue all trials, and wait for their ends: at most 20 s, or until a second Ctrl-C."""
        self.requeue_all(reason)
        interrupts, deadline = self.place.interrupts, time.monotonic() + _HAND_BACK_S
        while not self.is_finished and time.monotonic() < deadline and not (interrupts and interrupts.is_urgent):
            self.step(max(0.0, deadline - time.monotonic()))

    def end(self, outcome: str, reason: str) -> None:
        """Journal that this driver ends, and complete the journal on the server and in the copy."""
        if not self._deciders.is_broken:
            # After an error of a decider, the next driver does this, when it has passed the report of the error.
            self._path.carry_out_all(self.checkpoints.gathered())
            self._path.carry_out_all(self.checkpoints.find_orphans(self.place.journal))
        self.carry_out(Finish(outcome, reason))
        # If somebody has emptied the server, there was no outage, and only the heartbeat notices the loss.
        self._heartbeat.beat()
        self._ledger.check()
        self._ledger.finish()
        if lost := self._ledger.lost:
            # The restored journal has an entry about the lost checkpoints, but no later step applies it.
            self.experiment.apply(CheckpointsDropped(checkpoints=[*lost], at=self.place.clock.time()))
        self._path.tell_restored()

    def keep_best_dict(self) -> None:
        """Write the best trials' dict checkpoints into the folder: their Redis may end with the run."""
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
