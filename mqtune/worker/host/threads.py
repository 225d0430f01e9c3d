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
    """Return a new thread that runs these steps one by one. The caller starts it.

    If a step raises an error, it is logged, and the next step runs. If *steps* itself raises one, or a step of a
    *vital* thread, the process exits immediately with EX_SOFTWARE: otherwise the worker would renew the leases of
    trials that it no longer serves. Its zygotes then kill their trials, which run again after their leases have
    expired.

    Args:
        steps: returns an iterator of steps, which itself waits between them. The thread ends when it is exhausted.
        vital: whether a failed step would lose data of trials.
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
                    logger.exception("a step of thread %s failed; the thread continues with the next step", name)
        except Exception:
            logger.critical("thread %s can't continue, so this worker ends; its trials run again", name, exc_info=True)
            os._exit(os.EX_SOFTWARE)

    # A daemon: it must not keep the process alive while Redis is unreachable.
    return threading.Thread(target=run, name=name, daemon=True)


def every(seconds: float, step: Step, closing: threading.Event) -> Iterator[Step]:
    """Yield *step* repeatedly, each time after *seconds*, until *closing* is set."""
    while not closing.wait(seconds):
        yield step
