"""Threads of a worker, in which no error is silent."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator

from mqtune.core.errors import BrokerUnavailable

logger = logging.getLogger(__name__)

Step = Callable[[], object]


def guarded(name: str, steps: Callable[[], Iterable[Step]], *, vital: bool = False) -> threading.Thread:
    """Return a thread, not started yet, that runs these steps one by one.

    A failed step is logged, and the next one runs. If *steps* itself fails, or a step of a *vital* thread, the process
    ends immediately with an error. Otherwise the worker would renew the leases of trials that it no longer serves. Its
    zygotes then kill their trials, which run again after their leases have expired.

    Args:
        steps: yields the steps and waits between them. The thread ends with them.
        vital: whether a failed step leaves data of trials half read.
    """

    def run() -> None:
        try:
            for step in steps():
                try:
                    step()
                except BrokerUnavailable:
                    # Raised only at shutdown: until then the journal retries.
                    logger.debug("%s: the worker is shutting down", name, exc_info=True)
                except Exception:
                    if vital:
                        raise
                    logger.exception("a step of the thread %s failed; it goes on with the next one", name)
        except Exception:
            logger.critical("the thread %s can't go on, so this worker ends; its trials run again", name, exc_info=True)
            os._exit(os.EX_SOFTWARE)

    # A daemon: it must not keep the process alive while Redis is unreachable.
    return threading.Thread(target=run, name=name, daemon=True)


def every(seconds: float, step: Step, closing: threading.Event) -> Iterator[Step]:
    """Yield a step repeatedly, each time after a pause, until *closing* is set."""
    while not closing.wait(seconds):
        yield step
