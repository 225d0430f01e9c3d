"""The single path of events.

It folds them, notifies the listeners, and carries out their actions.
"""

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
from mqtune.driver.writing.actions import (
    AnswerQuestion,
    AnswerRequest,
    Begin,
    Decide,
    DriverAction,
    Lose,
    Orders,
    Save,
    Stage,
    Writing,
)
from mqtune.driver.writing.ledger import Ledger
from mqtune.driver.writing.publishing import Publisher
from mqtune.results.callbacks import CallbackDispatcher


class EventPath:
    """Applies events, and carries out actions.

    An event takes one path, whether it was just read, just written, or is replayed: ``apply`` folds it and passes it to
    the listeners, in their order. They return actions. ``carry_out`` checks and journals each action, and applies its
    events.

    Args:
        ledger: the driver's, with the journal.
        experiment: the fold.
        backend: publishes attempts, and is notified of lost ones.
        clock: for the times of events.
        intake: knows the cursor of written events.
        orders: remember those that were given.
        deciders: once they have failed, only the first listener hears.
        checkpoints: keeps and drops checkpoints.
        callbacks: are notified of checkpoints and restored entries.
        pace: is stirred by each event.
        settings: say what resources trials ask for.
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
        #: The listeners, in order. The first one is the backend's, which is notified in any case.
        self.listeners: Sequence[Listener] = ()
        #: To be journaled before this driver does anything else.
        self.beginning: Begin | None = None
        self.publisher = Publisher(backend, clock)
        self._ledger = ledger
        self._experiment = experiment
        self._backend = backend
        self._clock = clock
        self._intake = intake
        self._orders = orders
        self._deciders = deciders
        self._checkpoints = checkpoints
        self._callbacks = callbacks
        self._pace = pace
        self._resources, self._asks = settings.expected[0], settings.asks

    def apply(self, event: Event) -> None:
        """Fold an event, pass it to the listeners, and carry out their actions."""
        self._pace.stir()
        self._experiment.apply(event)
        # Once the deciders have failed, only the backend still needs to know which attempts have a slot.
        listeners = self.listeners[:1] if self._deciders.is_broken else self.listeners
        for action in [action for listener in listeners for action in listener.hear(event)]:
            self.carry_out(action)
        if isinstance(event, Told):
            self._intake.take_told(event)

    def carry_out(self, action: DriverAction) -> None:
        """Check an action, journal it, and apply the events that this wrote.

        Raises:
            InvalidTransition: a trial's status doesn't allow it, or its end is decided already; nothing was done.
            ConfigurationError: a config is too large, or can't be sent; nothing was done.
        """
        events = self._write(action)
        for event in events:
            self.apply(event)
        match action:
            case Stage():
                trial = self._experiment.trials[action.trial]
                # Where no slot offers what it asks for, it may have ended already.
                if not action.outside and trial.attempt.end is None:
                    self.publisher.publish(trial)
                self.let_go(action)
            case Lose(guard="expired" | "any") if events:
                self._backend.lost(action.trial.id, action.trial.attempt)
            case AnswerQuestion() | Save():
                self._orders.note(action.order)
            case _:
                pass
        if isinstance(action, Stage | Decide | Save | Tell) and action.request:
            trial_id = action.trial if isinstance(action, Stage | Tell) else action.trial.id
            reason = why_over(self._experiment.trials[trial_id]) if isinstance(action, Tell) else ""
            self.carry_out(AnswerRequest(action.request, is_done=True, reason=reason, trial=trial_id))

    def carry_out_all(self, actions: Iterable[DriverAction]) -> None:
        """Carry out each action before the next one is asked for."""
        for action in actions:
            self.carry_out(action)

    def say_begun(self) -> None:
        """Journal, once, that this driver drives. A look at an ended experiment writes nothing."""
        if self.beginning is not None:
            begin, self.beginning = self.beginning, None
            self.carry_out(begin)

    def take_checkpoint(self, report: Report, *, at_once: bool) -> None:
        """Notify callbacks of a report's checkpoint, and drop replaced checkpoints.

        They are dropped *at_once*, or when there are many.
        """
        trial = self._experiment.trials[report.trial]
        if self._callbacks.hears("on_checkpoint"):
            self._callbacks.tell("on_checkpoint", trial, report.checkpoint)
        self.carry_out_all(self._checkpoints.saved(trial, report.checkpoint, at_once=at_once))

    def let_go(self, stage: Stage) -> None:
        """Keep its checkpoint no longer for the trial that has waited to start from it."""
        for drop in self._checkpoints.hold(stage.holder, CheckpointId("")):
            self.carry_out(drop)

    def tell_restored(self) -> None:
        """Notify callbacks of lost entries of the journal that were restored."""
        for restored in self._ledger.take_restored():
            self._callbacks.tell("on_restore", restored.entries, restored.missing)

    def _write(self, action: DriverAction) -> list[Event]:
        """Journal an action, on a server that may have lost the journal, and return the new events."""
        ledger = self._ledger
        at, cursor = self._clock.time(), self._intake.cursor
        lost, asked = ledger.lost, (self._asks, self._resources)
        to = Writing(ledger.journal, self._experiment, at, cursor, lost, *asked)
        written = ledger.surely(lambda: action.write(to))
        ledger.wrote((event.data for event in written), are_applied=True)
        return [event.event for event in written]
