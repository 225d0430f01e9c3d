"""Ctrl-C: the first ends a run in good order, the second at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

__all__ = ["Interrupted", "Interrupts"]

_SAID: Final = b"\nStopping: running trials are handed back. Ctrl-C again ends at once.\n"
_STDERR: Final = 2


class Interrupted(BaseException):
    """Ends a wait, and only a wait; nothing was read."""


class Interrupts:
    """Counts SIGINT and SIGTERM; the first only ends a wait, a later one raises KeyboardInterrupt wherever it comes."""

    def __init__(self) -> None:
        self.count = 0
        self._waiting = False
        self._raised = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle the signals; only the main thread can, elsewhere nothing changes."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def may_end_wait(self) -> Iterator[None]:
        """Let the first signal, also one that has just come, raise Interrupted once; the block may do nothing but wait."""
        self._waiting = True
        try:
            if self.count:
                self._end_wait()
            yield
        finally:
            self._waiting = False

    def sleep(self, seconds: float) -> None:
        """Wait so long; a signal, also one that has come before, ends the wait as KeyboardInterrupt."""
        with suppress(Interrupted), self.may_end_wait():
            time.sleep(seconds)
        if self.count:
            raise KeyboardInterrupt

    def _end_wait(self) -> None:
        if not self._raised:
            self._raised = True
            raise Interrupted

    def _handle(self, *_: object) -> None:
        self.count += 1
        if self.count > 1:
            raise KeyboardInterrupt
        # Not print: the signal may have come in the middle of one.
        os.write(_STDERR, _SAID)
        if self._waiting:
            self._end_wait()
