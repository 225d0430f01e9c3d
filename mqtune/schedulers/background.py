"""A scheduler's slow decisions, in a thread."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping

from mqtune.core.background import Background
from mqtune.core.trial import Decision, TrialId


class BackgroundDecisions:
    """Has a model learn and decide in a thread, so that the driver's loop never waits for it.

    The thread makes the calls in order. When none is left it decides, then rests for as long as that took. After an
    error, which ``take`` raises, no further calls are made.

    Args:
        decide: returns the decisions that follow from the calls since its last run.
        rests: whether the thread rests. Give False if slots wait for its decisions.
    """

    def __init__(self, decide: Callable[[], Mapping[TrialId, Decision]], *, rests: bool = True) -> None:
        self._found: queue.SimpleQueue[Mapping[TrialId, Decision]] = queue.SimpleQueue()
        self._background = Background("mqtune-scheduler", then=lambda: self._found.put(decide()), rests=rests)

    @property
    def is_busy(self) -> bool:
        """Whether decisions may come although nothing else happens."""
        return self._background.is_behind or not self._found.empty()

    def tell(self, call: Callable[[], object]) -> None:
        """Queue a call for the thread, which starts with the first ``take``."""
        self._background.tell(call)

    def take(self) -> dict[TrialId, Decision]:
        """Return the decisions since the last call, without waiting. Start the thread if needed.

        Raises:
            Exception: the model's error.
        """
        self._background.check()
        self._background.start()
        decisions: dict[TrialId, Decision] = {}
        while not self._found.empty():
            decisions |= self._found.get()
        return decisions

    def close(self) -> None:
        self._background.close()
