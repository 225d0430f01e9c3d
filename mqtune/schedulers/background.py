"""Runs a scheduler's slow decisions in a thread."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping

from mqtune.core.background import Background
from mqtune.core.trial import Decision, TrialId


class BackgroundDecisions:
    """Lets a model learn and decide in a thread, so that the driver's loop never waits for it.

    The thread makes the queued calls in order. When the queue is empty, it calls *decide*, and then rests for as long
    as that took. After an error the thread makes no further calls, and ``take`` raises the error.

    Args:
        decide: returns the decisions, by trial, that follow from the calls since it last ran.
        rests: whether the thread rests. Give False if slots wait for the decisions.
    """

    def __init__(self, decide: Callable[[], Mapping[TrialId, Decision]], *, rests: bool = True) -> None:
        self._decided: queue.SimpleQueue[Mapping[TrialId, Decision]] = queue.SimpleQueue()
        self._background = Background("mqtune-scheduler", then=lambda: self._decided.put(decide()), rests=rests)

    @property
    def is_busy(self) -> bool:
        """Whether the thread has work, or decisions that were not taken yet."""
        return self._background.is_behind or not self._decided.empty()

    def tell(self, call: Callable[[], object]) -> None:
        """Queue a call for the thread. The first ``take`` starts the thread."""
        self._background.tell(call)

    def take(self) -> dict[TrialId, Decision]:
        """Return the decisions since the last call, by trial, without waiting.

        The first call starts the thread.

        Raises:
            Exception: the error of a queued call or of *decide*.
        """
        self._background.check()
        self._background.start()
        decisions: dict[TrialId, Decision] = {}
        while not self._decided.empty():
            decisions |= self._decided.get()
        return decisions

    def close(self) -> None:
        self._background.close()
