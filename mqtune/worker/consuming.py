"""Notices that a worker takes nothing although trials wait and it has room, and has it connect anew, or start anew.

Celery's consumer has stopped silently after a lost connection in several of its versions; whoever looks at such a worker
sees it alive, with a heartbeat, and idle.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, NoReturn, Protocol

from mqtune.core.errors import BrokerUnavailable
from mqtune.worker.attempt import stop_s
from mqtune.worker.runtime import WorkerRuntime

__all__ = ["Consumer", "ConsumingWatch", "watch_consuming"]

logger = logging.getLogger(__name__)

#: How often it is looked whether trials wait; one short command each time.
LOOK_S: Final = 10.0
#: So many looks in a row, a minute, at which trials waited and nothing was taken since the first. A worker in order takes
#: what waits within milliseconds, and after an outage of Redis within half a minute. They are looks and no time, because
#: no time has passed for a worker that was frozen.
LOOKS: Final = 6


class Consumer(Protocol):
    """What brings a worker its tasks."""

    @property
    def taken(self) -> int:
        """How many tasks it has brought so far."""

    @property
    def should_take(self) -> bool:
        """Whether a slot is free, and nobody has said that nothing is to be taken for it."""

    def waiting(self) -> int:
        """Return how many tasks wait, when Redis says so; meanwhile it waits.

        Raises:
            BrokerUnavailable: the worker is closing.
        """

    def reconnect(self) -> None:
        """Have it close its connection and make another; running trials go on."""

    def restart(self) -> None:
        """Hand the running trials back and begin the whole process anew."""


class ConsumingWatch:
    """Counts the looks in a row at which trials waited and nothing was taken; one thread uses it."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._taken = consumer.taken
        self._in_a_row = 0

    def look(self) -> None:
        """Look whether the consumer does its work; after ``LOOKS`` in a row have it reconnect, after as many more restart.

        Raises:
            BrokerUnavailable: the worker is closing.
        """
        consumer = self._consumer
        is_stuck = consumer.should_take and consumer.waiting() > 0 and consumer.taken == self._taken
        self._taken = consumer.taken
        self._in_a_row = self._in_a_row + 1 if is_stuck else 0
        if self._in_a_row == LOOKS:
            logger.error("trials wait, a slot is free, and nothing was taken for %.0f s: reconnecting", LOOKS * LOOK_S)
            consumer.reconnect()
        elif self._in_a_row == 2 * LOOKS:
            logger.error("nothing was taken for %.0f s more: this worker starts anew", LOOKS * LOOK_S)
            consumer.restart()


class _CelerysConsumer:
    """The consumer of a Celery worker.

    Args:
        worker: Celery's own.
        runtime: the worker behind it.
        is_leaving: whether an operator has told it to end.
    """

    def __init__(self, worker: Any, runtime: WorkerRuntime, is_leaving: Callable[[], bool]) -> None:
        self._worker = worker
        self._runtime = runtime
        self._is_leaving = is_leaving

    @property
    def taken(self) -> int:
        return int(self._worker.pool.taken)

    @property
    def should_take(self) -> bool:
        # By the tasks that are here, and not by what Celery believes of them, in which the fault may be.
        has_room = len(self._worker.pool.tasks) < self._worker.pool.num_processes
        # It is left out once somebody has said ``celery control cancel_consumer``.
        return has_room and self._runtime.queue in self._worker.app.amqp.queues.consume_from

    def waiting(self) -> int:
        return self._runtime.waiting()

    def reconnect(self) -> None:
        # In the consumer's own loop it is as if the connection had failed, whatever is wrong with it.
        self._worker.consumer.hub.call_soon(_lose_connection)

    def restart(self) -> None:
        self._runtime.hand_back_all("its worker took nothing any more and started anew")
        self._runtime.close(grace_s=stop_s(self._runtime.grace_s))
        if not self._is_leaving():
            _begin_anew()


def _lose_connection() -> NoReturn:
    raise ConnectionError("nothing comes through it")


def _begin_anew() -> NoReturn:
    """Run this process's command line in its place; its number and its open files stay, so that its supervisor sees nothing.

    Where that can't be done the process ends, and says that trying again may help.
    """
    with contextlib.suppress(ChildProcessError):
        # Nobody else would wait for those that are dead.
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    try:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - it is its own command line
    except OSError as error:
        logger.critical("this worker can't start anew (%s) and ends", error)
        os._exit(os.EX_TEMPFAIL)


def watch_consuming(worker: Any, runtime: WorkerRuntime, *, is_leaving: Callable[[], bool]) -> None:
    """Look now and then, in a thread of its own, whether a worker takes trials, until it closes.

    Args:
        worker: Celery's own, with mqtune's pool.
        runtime: the worker behind it.
        is_leaving: whether an operator has told it to end.
    """
    watch = ConsumingWatch(_CelerysConsumer(worker, runtime, is_leaving))

    def look_now_and_then() -> None:
        while not runtime.closing.wait(LOOK_S):
            try:
                watch.look()
            except BrokerUnavailable:
                return
            except Exception:
                logger.exception("whether this worker takes trials could not be found out; the next look follows")

    threading.Thread(target=look_now_and_then, name="mqtune-consuming", daemon=True).start()
