"""The threads of a worker: an error in one of them is never silent."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator

from mqtune.core.errors import BrokerUnavailable

logger = logging.getLogger(__name__)

Step = Callable[[], object]


def guarded(name: str, steps: Callable[[], Iterable[Step]], *, vital: bool = False) -> threading.Thread:
    """Return a thread, not started yet, that takes these steps one by one.

    A step that fails is logged, and the next one is taken. If that can't be done, since *steps* itself fails or the
    thread is *vital*, this process ends at once with an error: a worker without the thread would renew the leases of
    trials that it no longer serves. Its zygotes then kill their trials, which run again when their leases have expired.

    Args:
        name: the thread's name.
        steps: yields the steps, and waits between them; the thread ends when there are no more.
        vital: whether a step that fails leaves data of trials half read.
    """

    def run() -> None:
        try:
            for step in steps():
                try:
                    step()
                except BrokerUnavailable:
                    # Raised only when the worker is shutting down: until then the journal tries again.
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
    """Yield a step again and again, each time after a pause, until *closing* is set."""
    while not closing.wait(seconds):
        yield step
