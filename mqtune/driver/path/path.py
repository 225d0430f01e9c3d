"""The path of every event: fold it, notify the listeners, and carry out their actions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mqtune.backends.base import BackendSession
from mqtune.core.clock import Clock
from mqtune.core.events import Event, Told
from mqtune.core.experiment import Experiment
from mqtune.core.trial import CheckpointId, Report
from mqtune.driver.path.intake import Intake
from mqtune.driver.path.pace import LoopPace
from mqtune.driver.rules.checkpoints import CheckpointGC
from mqtune.driver.rules.deciders import Deciders
from mqtune.driver.rules.listeners import Listener
from mqtune.driver.rules.outside import Tell, why_over
from mqtune.driver.setup.settings import Settings
from mqtune.driver.writing.actions import AnswerRequest, Begin, Decide, DriverAction, Lose, Stage, Writing
from mqtune.driver.writing.ledger import Ledger
from mqtune.driver.writing.orders import AnswerQuestion, Orders, Save
from mqtune.driver.writing.publishing import Publisher
from mqtune.results.callbacks import CallbackDispatcher


class EventPath:
    """Applies events, and carries out actions.

    Every event takes the same path, whether the driver has just read it, just written it, or replays it: ``apply``
    folds it and passes it to the listeners, in their order. Listeners return actions. ``carry_out`` checks and journals
    each action, and applies the action's events.

    Args:
        ledger: the driver's ledger, which writes to the journal.
        experiment: the fold.
        backend: publishes attempts, and is notified of lost ones.
        clock: the source of the events' times.
        intake: has the driver's cursor.
        orders: remembers sent orders.
        deciders: after an error of one, only the first listener gets events.
        checkpoints: the garbage collector of checkpoints.
        callbacks: notified of checkpoints and restored entries.
        pace: each event stirs it.
        settings: have the trials' resources.
    """

    def __init__(
        self,
        ledger: Ledger,
        experiment: Experiment,
        backend: BackendSession,
        clock: Clock,
        intake: Intake,
        orders: Orders,
        deciders: Deciders,
        checkpoints: CheckpointGC,
        callbacks: CallbackDispatcher,
        pace: LoopPace,
        settings: Settings,
    ) -> None:
        #: The listeners, in order. The first one is the backend's, which gets every event.
        self.listeners: Sequence[Listener] = ()
        #: The action that journals this driver's begin. None when it is carried out.
        self.beginning: Begin | None = None
        self.publisher = Publisher(backend, clock)
        self._ledger = ledger
        self._experiment = experiment
        self._backend = backend
        self._clock = clock
        self._intake = intake
        self.orders = orders
        self._deciders = deciders
        self._checkpoints = checkpoints
        self._callbacks = callbacks
        self._pace = pace
        self._resources, self._asks = settings.expected[0], settings.asks

    def apply(self, event: Event) -> None:
        """Fold an event, pass it to the listeners, and carry out their actions."""
        self._pace.stir()
        self._experiment.apply(event)
        # After an error of a decider, only the backend needs events, to know which attempts have a slot.
        listeners = self.listeners[:1] if self._deciders.is_broken else self.listeners
        for action in [action for listener in listeners for action in listener.hear(event)]:
            self.carry_out(action)
        if isinstance(event, Told):
            self._intake.apply_told(event)

    def carry_out(self, action: DriverAction) -> None:
        """Check an action, journal it, and apply its events. After an error nothing was done.

        Raises:
            InvalidTransition: the trial's status doesn't allow the action, or the trial's end is already decided.
            ConfigurationError: a config is too large, or can't be sent.
        """
        events = self._journal_action(action)
        for event in events:
            self.apply(event)
        match action:
            case Stage():
                trial = self._experiment.trials[action.trial]
                # A listener may have ended the attempt already, because no slot offers its resources.
                if not action.outside and trial.attempt.end is None:
                    self.publisher.publish(trial)
                self.release_checkpoint(action)
            case Lose(guard="expired" | "any") if events:
                self._backend.lost(action.trial.id, action.trial.attempt)
            case AnswerQuestion() | Save():
                self.orders.note(action.order)
            case _:
                pass
        if isinstance(action, Stage | Decide | Save | Tell) and action.request:
            trial_id = action.trial if isinstance(action, Stage | Tell) else action.trial.id
            reason = why_over(self._experiment.trials[trial_id]) if isinstance(action, Tell) else ""
            self.carry_out(AnswerRequest(action.request, is_done=True, reason=reason, trial=trial_id))

    def carry_out_all(self, actions: Iterable[DriverAction]) -> None:
        """Carry out actions, each before the next one is taken from the iterable."""
        for action in actions:
            self.carry_out(action)

    def say_begun(self) -> None:
        """Journal that this driver begins. Later calls do nothing."""
        if self.beginning is not None:
            begin, self.beginning = self.beginning, None
            self.carry_out(begin)

    def take_checkpoint(self, report: Report, *, at_once: bool) -> None:
        """Notify callbacks of a report's checkpoint, and drop replaced ones, *at_once* or later."""
        trial = self._experiment.trials[report.trial]
        if self._callbacks.hears("on_checkpoint"):
            self._callbacks.tell("on_checkpoint", trial, report.checkpoint)
        self.carry_out_all(self._checkpoints.saved(trial, report.checkpoint, at_once=at_once))

    def release_checkpoint(self, stage: Stage) -> None:
        """Stop protecting the checkpoint that was kept until this action."""
        for drop in self._checkpoints.hold(stage.holder, CheckpointId("")):
            self.carry_out(drop)

    def tell_restored(self) -> None:
        """Notify callbacks of lost entries of the journal that were restored."""
        for restored in self._ledger.take_restored():
            self._callbacks.tell("on_restore", restored.entries, restored.missing)

    def _journal_action(self, action: DriverAction) -> list[Event]:
        """Journal an action and return the new events. A lost journal is restored first."""
        ledger = self._ledger
        at, cursor = self._clock.time(), self._intake.cursor
        lost, asked = ledger.lost, (self._asks, self._resources)
        to = Writing(ledger.journal, self._experiment, at, cursor, lost, *asked)
        written = ledger.surely(lambda: action.write(to))
        ledger.wrote((event.data for event in written), are_applied=True)
        return [event.event for event in written]
