"""Shuts a worker down within a known time. Its trials are requeued."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from signal import SIGINT
from typing import Final

from mqtune.core.timing import Timing
from mqtune.worker.attempts.attempt import stop_s
from mqtune.worker.host.threads import guarded

logger = logging.getLogger(__name__)

#: Time for killed trials to end, and for journaling their ends.
KILL_GRACE_S: Final = 5.0
#: Time for the slots' threads to end after their trials.
THREADS_END_S: Final = 5.0


def shutdown_s(grace_s: float, timing: Timing = Timing()) -> float:
    """Return the maximum duration of a shutdown.

    It includes stopping trials, killing them, ending the threads, and Celery's own part.
    """
    return stop_s(grace_s, timing) + KILL_GRACE_S + 2 * THREADS_END_S


class Shutdown:
    """Handles the signals that end a worker. A second Ctrl-C, or SIGQUIT, ends it immediately.

    *stop*, which ends the main loop, must be safe in a signal handler. The whole shutdown takes at most *within_s*
    seconds.
    """

    def __init__(self, stop: Callable[[], None], requeue: Callable[[], None], within_s: float) -> None:
        self._stop = stop
        self._requeue = requeue
        self._within_s = within_s
        self._begun = False
        self._interrupted = False

    def begin(self, number: int, _frame: object) -> None:
        """Start the shutdown, on SIGTERM or Ctrl-C."""
        if number == SIGINT:
            if self._interrupted:
                self.end_at_once()
            self._interrupted = True
            # Not print(), whose lock the interrupted code may hold.
            with contextlib.suppress(OSError):
                os.write(2, b"\nmqtune: requeueing the trials; press Ctrl-C again to end immediately\n")
        if not self._begun:
            self._begun = True
            self._stop()
            guarded("mqtune-leaving", lambda: [self._requeue, self._end_in_time]).start()

    def _end_in_time(self) -> None:
        time.sleep(self._within_s)
        logger.error("the shutdown takes longer than %.0f s; ending now", self._within_s)
        self.end_at_once()

    def end_at_once(self, *_: object) -> None:
        """End the process immediately. Its zygotes kill their trials, whose leases then expire."""
        os._exit(1)


def end_with_owner(fd: int) -> None:
    """End this process when its driver dies. Its zygotes then kill their trials."""

    def watch() -> None:
        while os.read(fd, 1):
            pass
        logger.warning("the driver that started this worker has ended, so the worker ends")
        os._exit(1)

    threading.Thread(target=watch, name="mqtune-owner", daemon=True).start()
