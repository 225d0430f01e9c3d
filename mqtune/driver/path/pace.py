"""The pace of the driver's loop: how long a round waits, and whether it has other work."""

from __future__ import annotations

from typing import Final

from mqtune.core.clock import Clock
from mqtune.driver.rules.checkpoints import CheckpointGC
from mqtune.driver.rules.deciders import Deciders
from mqtune.driver.rules.slots import SlotFiller
from mqtune.driver.rules.timers import DriverTimers
from mqtune.journal.base import Journal
from mqtune.results.callbacks import CallbackDispatcher

#: Interval in seconds of polls for the answer of a searcher or scheduler that works in the background. A slot or trial
#: loses no more time than that, and the driver needs little CPU time.
_MODEL_POLL_S: Final = 0.01


class LoopPace:
    """Decides how long a round of the loop waits for entries, and whether it has other work.

    A round is *steady* if it has processed nothing but reports whose trials continue, and no timer is due. Then the
    work at its end is skipped.
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
        #: Whether each report is answered, as in lockstep, or may end the experiment by a stop rule.
        self._answers_each = is_lockstep or deciders.rule is not None
        #: Whether this round has work at its end in any case.
        self._is_stirred = True
        #: The monotonic time until which this round waits.
        self._until = 0.0

    def begin(self, block_s: float, *, is_stirred: bool) -> float:
        """Begin a round, and return how long to wait for new entries, in seconds.

        The wait ends when a timer, a retry or another task is due, and after *block_s* at the latest. *is_stirred* says
        that the round has work at its end in any case, so it is not steady.
        """
        deciders, callbacks = self._deciders, self._callbacks
        waits_for_model = self._slots.is_suggestion_due or deciders.are_late
        has_free_slot = self._slots.may_stage()
        is_stirred = is_stirred or self._answers_each or waits_for_model or has_free_slot
        # A scheduler in the background may decide at any time.
        self._is_stirred = is_stirred or deciders.scheduler.background is not None
        now = self._clock.monotonic()
        until = min(now + block_s, self._timers.due, self._checkpoints.due_s)
        if has_free_slot:
            until = min(until, now + self._slots.next_retry_s())
        if waits_for_model:
            until = min(until, now + _MODEL_POLL_S)
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
        """The rest of the round's wait, in seconds."""
        return max(0.0, min(self._until, self._checkpoints.due_s) - self._clock.monotonic())

    def stir(self) -> None:
        """Mark the round as not steady, because something has changed."""
        self._is_stirred = True

    @property
    def goes_on(self) -> bool:
        """Whether the round waits for further entries. Always false in real time."""
        return not self._journal.is_live and self.is_steady

    @property
    def is_steady(self) -> bool:
        """Whether the round so far has no work except the processed reports."""
        return not (
            self._is_stirred
            or self._journal.fleet_changed
            or self._checkpoints.is_unsettled
            or self._deciders.failure is not None
            or self._clock.monotonic() >= min(self._timers.due, self._checkpoints.due_s)
        )
