"""Reconnects or restarts a worker whose Celery consumer has stopped receiving tasks."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from mqtune.core.resources import queues_of
from mqtune.core.timing import Timing
from mqtune.worker.attempts.attempt import stop_s
from mqtune.worker.host.threads import Step
from mqtune.worker.loop.runtime import WorkerRuntime
from mqtune.worker.ports import WorkerService

logger = logging.getLogger(__name__)


class ConsumerWatch(WorkerService):
    """Checks in each round that the worker receives waiting tasks.

    If it has received none in ``rounds`` rounds in a row, although a task waited and a slot was free, it reconnects.
    After as many more such rounds, its process restarts.

    Args:
        worker: Celery's worker object, with mqtune's pool and app.
        restart: replaces the process; only tests give another one.
        timing: the worker's intervals.
        close_unused: closes unused connections; a step of each round.
        is_leaving: returns whether the worker is shutting down anyway.
    """

    def __init__(
        self,
        worker: Any,
        restart: Callable[[], object] | None = None,
        timing: Timing = Timing(),
        *,
        close_unused: Step = lambda: None,
        is_leaving: Callable[[], bool] = lambda: False,
    ) -> None:
        self._timing = timing
        #: The consumer counts as stuck after this many rounds. Rounds count, not seconds: no time has passed for a
        #: frozen worker.
        self.rounds = round(timing.stuck_s / timing.round_s)
        self._worker = worker
        self._restart_process = restart or _restart_process
        self._close_unused = close_unused
        self._is_leaving = is_leaving
        self._taken = worker.pool.taken
        self._in_a_row = 0

    @property
    def _runtime(self) -> WorkerRuntime:
        # The runtime is made after the services, of which this is one.
        runtime: WorkerRuntime = self._worker.app.runtime
        return runtime

    def tick(self) -> Sequence[Step]:
        """Return the check, and the closing of unused connections."""
        return self.check_consumer, self._close_unused

    def check_consumer(self) -> None:
        """Check whether the consumer is stuck. If so, reconnect or restart."""
        pool = self._worker.pool
        is_stuck = self._should_take() and self._runtime.waiting() > 0 and pool.taken == self._taken
        self._taken = pool.taken
        self._in_a_row = self._in_a_row + 1 if is_stuck else 0
        if self._in_a_row == self.rounds:
            text = "trials wait, a slot is free, and nothing was taken for %.0f s: reconnecting"
            logger.error(text, self._timing.stuck_s)
            # An error in the consumer's own loop makes it reconnect. Running trials continue.
            self._worker.consumer.hub.call_soon(_lose_connection)
        elif self._in_a_row == 2 * self.rounds:
            logger.error("nothing was taken for %.0f s more: this worker restarts", self._timing.stuck_s)
            self._restart()

    def _should_take(self) -> bool:
        """Return whether tasks should come: a slot is free, and the consumer is not cancelled."""
        # By the tasks in the pool, not by Celery's own count, which may be wrong.
        has_room = len(self._worker.pool.tasks) < self._worker.pool.num_processes
        consumed = self._worker.app.amqp.queues.consume_from
        return has_room and all(queue in consumed for queue in queues_of(self._runtime.parts.queue))

    def _restart(self) -> None:
        self._runtime.requeue_all("its worker received no more tasks and was restarted")
        self._runtime.close(grace_s=stop_s(self._runtime.parts.grace_s, self._runtime.parts.timing))
        if not self._is_leaving():
            self._restart_process()


def _lose_connection() -> NoReturn:
    raise ConnectionError("no task was received")


def _restart_process() -> NoReturn:
    """Replace this process by a new one with the same command line, pid and open files.

    If that fails, exit with a code that tells the supervisor to try again.
    """
    with contextlib.suppress(ChildProcessError):
        # Nobody else would reap dead children.
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    try:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - it is its own command line
    except OSError as error:
        logger.critical("this worker can't restart (%s) and ends", error)
        os._exit(os.EX_TEMPFAIL)
