"""A scheduler's decisions that take long, in a thread of their own."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping

from mqtune.core.trial import Decision, TrialId
from mqtune.search.background import CLOSE_S


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
        self._decide = decide
        self._rests = rests
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._found: queue.SimpleQueue[Mapping[TrialId, Decision]] = queue.SimpleQueue()
        self._told = self._heard = 0
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        self._is_closing = threading.Event()

    @property
    def is_busy(self) -> bool:
        """Whether decisions may come although nothing else happens."""
        return self._heard < self._told or not self._found.empty()

    def tell(self, call: Callable[[], object]) -> None:
        """Have the thread call this; before the first ``take``, as in a replay, it is only kept."""
        self._told += 1
        self._calls.put(call)

    def take(self) -> dict[TrialId, Decision]:
        """Return the decisions since the last call, without waiting for any; the first call starts the thread.

        Raises:
            Exception: what the model has raised.
        """
        if self._error is not None:
            raise self._error
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="mqtune-scheduler", daemon=True)
            self._thread.start()
        found: dict[TrialId, Decision] = {}
        while not self._found.empty():
            found |= self._found.get()
        return found

    def close(self) -> None:
        """End the thread after the call that it is in."""
        self._is_closing.set()
        self._calls.put(None)
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        try:
            while (call := self._calls.get()) is not None:
                begin = time.monotonic()
                heard = self._hear(call)
                self._found.put(self._decide())
                self._heard += heard
                if self._is_closing.wait(time.monotonic() - begin if self._rests else 0.0):
                    return
        except Exception as error:  # noqa: BLE001 - a user's code; the driver raises it
            self._error = error

    def _hear(self, call: Callable[[], object]) -> int:
        """Make a call, and all that wait behind it; return how many."""
        call()
        heard = 1
        while not self._is_closing.is_set() and not self._calls.empty():
            if (following := self._calls.get()) is not None:
                following()
                heard += 1
        return heard
