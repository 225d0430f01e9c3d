"""Calls of slow code in a thread of their own."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Final

#: How long ``close`` waits for the call that the thread is in; it is a daemon, and ends with the process at the latest.
CLOSE_S: Final = 0.5


class Background:
    """Makes calls in a thread, in their order, so that nobody waits for them.

    After an error, which comes out of ``check``, nothing is called any more.

    Args:
        name: the thread's.
        then: called when no more calls wait, after those that were made.
        rests: whether it rests after that for as long as all of it took: it keeps a core busy for half of the time at
            most.
    """

    def __init__(self, name: str, *, then: Callable[[], object] = lambda: None, rests: bool = False) -> None:
        self._name = name
        self._then = then
        self._rests = rests
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._told = self._heard = 0
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        self._is_closing = threading.Event()

    @property
    def is_live(self) -> bool:
        """Whether the thread was started."""
        return self._thread is not None

    @property
    def is_behind(self) -> bool:
        """Whether calls, or what follows them, have not been made yet."""
        return self._heard < self._told

    def start(self) -> None:
        """Start the thread, unless it was."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def tell(self, call: Callable[[], object]) -> None:
        """Have the thread call this; before ``start`` it is only kept."""
        self._told += 1
        self._calls.put(call)

    def check(self) -> None:
        """Raise the error that has ended the thread, if one has."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the thread after the call that it is in; what waits behind that is not done any more."""
        self._is_closing.set()
        self._calls.put(None)
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        try:
            while (call := self._calls.get()) is not None:
                begin = time.monotonic()
                heard = self._hear(call)
                self._then()
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
