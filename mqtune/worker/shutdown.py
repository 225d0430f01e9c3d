"""How a worker that is told to end goes: its trials are handed back, and it is gone within a known time."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from signal import SIGINT
from typing import Final

from mqtune.worker.attempt import stop_s

__all__ = ["KILL_GRACE_S", "THREADS_END_S", "Shutdown", "end_with_owner", "shutdown_s"]

logger = logging.getLogger(__name__)

#: How long killed trials may take to be gone, and their ends to be journaled.
KILL_GRACE_S: Final = 5.0
#: How long the slots' threads may take to end when their trials have.
THREADS_END_S: Final = 5.0


def shutdown_s(grace_s: float) -> float:
    """Return the longest that a worker takes to go: the stop ladder, the kill, the threads, and as much as they for Celery."""
    return stop_s(grace_s) + KILL_GRACE_S + 2 * THREADS_END_S


class Shutdown:
    """Handles the signals that end a worker; the second Ctrl-C, and SIGQUIT, end it at once.

    Args:
        leave: has the main loop end; safe in a signal handler.
        hand_back: hands all trials back.
        within_s: how long all of it may take.
    """

    def __init__(self, leave: Callable[[], None], hand_back: Callable[[], None], within_s: float) -> None:
        self._leave = leave
        self._hand_back = hand_back
        self._within_s = within_s
        self._begun = False
        self._interrupted = False

    def begin(self, number: int, _frame: object) -> None:
        """Begin to end, on SIGTERM or Ctrl-C."""
        if number == SIGINT:
            if self._interrupted:
                self.end_at_once()
            self._interrupted = True
            # Not by print, whose lock the interrupted code may hold.
            with contextlib.suppress(OSError):
                os.write(2, b"\nmqtune: handing the trials back; Ctrl-C again ends at once\n")
        if not self._begun:
            self._begun = True
            self._leave()
            threading.Thread(target=self._see_to_it, name="mqtune-leaving", daemon=True).start()

    def _see_to_it(self) -> None:
        """Hand back, and be gone in time, also when the main thread waits for a broker that is cut off."""
        self._hand_back()
        time.sleep(self._within_s)
        logger.error("not ended after %.0f s; ending at once", self._within_s)
        self.end_at_once()

    def end_at_once(self, *_: object) -> None:
        """End: the zygotes kill their trials, and the driver runs those again when their leases run out."""
        os._exit(1)


def end_with_owner(fd: int) -> None:
    """End this process at once when the driver that started it is gone; its zygotes then kill their trials."""

    def watch() -> None:
        while os.read(fd, 1):
            pass
        logger.warning("the driver that started this worker is gone; the worker ends")
        os._exit(1)

    threading.Thread(target=watch, name="mqtune-owner", daemon=True).start()
