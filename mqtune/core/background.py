"""Runs slow calls in a thread of their own."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Final

#: How long ``close`` waits for the call in progress. The thread is a daemon, so it ends with the process at the latest.
CLOSE_S: Final = 0.5


class Background:
    """Makes calls in a thread, in order, so that the caller does not wait.

    After an error no further call is made; ``check`` raises the error.

    Args:
        then: called in the thread after each batch of calls, when the queue is empty.
        rests: whether the thread sleeps after a batch for as long as the batch took, to use at most half a core.
    """

    def __init__(self, name: str, *, then: Callable[[], object] = lambda: None, rests: bool = False) -> None:
        self._name = name
        self._then = then
        self._rests = rests
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._queued = self._finished = 0
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        self._is_closing = threading.Event()

    @property
    def is_live(self) -> bool:
        """Whether the thread was started."""
        return self._thread is not None

    @property
    def is_behind(self) -> bool:
        """Whether a queued call, or the ``then`` call after it, has not finished."""
        return self._finished < self._queued

    def start(self) -> None:
        """Start the thread. Do nothing if it was started."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def tell(self, call: Callable[[], object]) -> None:
        """Queue a call for the thread. The thread runs it after ``start``."""
        self._queued += 1
        self._calls.put(call)

    def check(self) -> None:
        """Raise the error that ended the thread, if there is one."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the thread after the current call. Waiting calls are discarded."""
        self._is_closing.set()
        self._calls.put(None)
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        try:
            while (call := self._calls.get()) is not None:
                begin = time.monotonic()
                calls = self._run_queued(call)
                self._then()
                self._finished += calls
                if self._is_closing.wait(time.monotonic() - begin if self._rests else 0.0):
                    return
        except Exception as error:  # noqa: BLE001 - a user's code; the driver raises it
            self._error = error

    def _run_queued(self, call: Callable[[], object]) -> int:
        """Make a call and all calls queued behind it. Return the number of calls."""
        call()
        calls = 1
        while not self._is_closing.is_set() and not self._calls.empty():
            if (following := self._calls.get()) is not None:
                following()
                calls += 1
        return calls
