"""The pace of the driver's loop.

It sets how long the loop waits for news, and whether a round has work to do.
"""

from __future__ import annotations

from typing import Final

from mqtune.core.clock import Clock
from mqtune.driver.rules.checkpoints import CheckpointGC
from mqtune.driver.rules.deciders import Deciders
from mqtune.driver.rules.slots import SlotFiller
from mqtune.driver.rules.timers import DriverTimers
from mqtune.journal.base import Journal
from mqtune.results.callbacks import CallbackDispatcher

#: How often it is looked whether a model has answered that a slot, or a trial, waits for: they lose no more, a driver
#: hardly works.
_MODEL_LOOK_S: Final = 0.01


class LoopPace:
    """Knows what the rounds of a driver's loop depend on besides news.

    A round is *steady* while it has processed only reports whose trials continue. The rest of it then only looks at
    times that have come.
    """

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        timers: DriverTimers,
        deciders: Deciders,
        slots: SlotFiller,
        checkpoints: CheckpointGC,
        callbacks: CallbackDispatcher,
        *,
        is_lockstep: bool,
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._timers = timers
        self._deciders = deciders
        self._slots = slots
        self._checkpoints = checkpoints
        self._callbacks = callbacks
        #: Whether each report is answered, or may end the experiment.
        self._answers_each = is_lockstep or deciders.rule is not None
        self._is_stirred = True
        self._until = 0.0

    def begin(self, block_s: float, *, is_stirred: bool) -> float:
        """Begin to wait for the news of a round, and return for how long.

        It waits until something else is due, and *block_s* at most. A round that *is_stirred* has more to do in any
        case.
        """
        deciders, callbacks = self._deciders, self._callbacks
        looks_for_model = self._slots.is_suggestion_due or deciders.are_late
        has_room = self._slots.may_stage()
        is_stirred = is_stirred or self._answers_each or looks_for_model or has_room
        # A decision of the background may come at any time.
        self._is_stirred = is_stirred or deciders.scheduler.background is not None
        now = self._clock.monotonic()
        until = min(now + block_s, self._timers.due, self._checkpoints.due_s)
        if has_room:
            until = min(until, now + self._slots.next_retry_s())
        if looks_for_model:
            until = min(until, now + _MODEL_LOOK_S)
        if callbacks.interval_s is not None:
            until = min(until, now + callbacks.interval_s)
        if deciders.rule is not None:
            until = min(until, now + deciders.due_s())
        self._until = until
        return max(0.0, until - now)

    @property
    def now_s(self) -> float:
        """The monotonic time, in seconds."""
        return self._clock.monotonic()

    @property
    def left_s(self) -> float:
        """How much is left of the time that the round was to wait."""
        return max(0.0, min(self._until, self._checkpoints.due_s) - self._clock.monotonic())

    def stir(self) -> None:
        """Have the round done to its end: something has changed."""
        self._is_stirred = True

    @property
    def goes_on(self) -> bool:
        """Whether the round waits again immediately.

        It never does in real time, as the driver may have other work between two steps.
        """
        return not self._journal.is_live and self.is_steady

    @property
    def is_steady(self) -> bool:
        """Whether the round has nothing else to do, as far as it has come."""
        return not (
            self._is_stirred
            or self._journal.fleet_changed
            or self._checkpoints.is_unsettled
            or self._deciders.failure is not None
            or self._clock.monotonic() >= min(self._timers.due, self._checkpoints.due_s)
        )
