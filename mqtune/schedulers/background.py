"""A scheduler's decisions that take long, in a thread of their own."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping

from mqtune.core.background import Background
from mqtune.core.trial import Decision, TrialId


class BackgroundDecisions:
    """Has a model learn and decide in a thread, so that the driver's loop never waits for it.

    The thread makes the calls in their order. When there are no more it decides on all that it has heard, and then rests for as
    long as that took: it keeps a core busy for half of the time at most. After an error, which comes out of ``take``, nothing
    is called any more.

    Args:
        decide: returns the decisions that follow from the calls since it was called last.
        rests: whether it does rest; not where slots wait for what it works out.
    """

    def __init__(self, decide: Callable[[], Mapping[TrialId, Decision]], *, rests: bool = True) -> None:
        self._found: queue.SimpleQueue[Mapping[TrialId, Decision]] = queue.SimpleQueue()
        self._background = Background("mqtune-scheduler", then=lambda: self._found.put(decide()), rests=rests)

    @property
    def is_busy(self) -> bool:
        """Whether decisions may come although nothing else happens."""
        return self._background.is_behind or not self._found.empty()

    def tell(self, call: Callable[[], object]) -> None:
        """Have the thread call this; before the first ``take``, as in a replay, it is only kept."""
        self._background.tell(call)

    def take(self) -> dict[TrialId, Decision]:
        """Return the decisions since the last call, without waiting for any; the first call starts the thread.

        Raises:
            Exception: what the model has raised.
        """
        self._background.check()
        self._background.start()
        found: dict[TrialId, Decision] = {}
        while not self._found.empty():
            found |= self._found.get()
        return found

    def close(self) -> None:
        """End the thread after the call that it is in."""
        self._background.close()
