"""Journals revoked tasks, which stops their trials permanently."""

from __future__ import annotations

import logging
import queue
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from mqtune.core.clock import Clock
from mqtune.core.errors import ConfigurationError, MqtuneError
from mqtune.core.events import Requested
from mqtune.core.keys import is_name
from mqtune.core.tasks import is_task, task_in
from mqtune.core.trial import Action, TrialId
from mqtune.journal.base import Journal, revocation
from mqtune.worker.attempts.attempt import REVOKED
from mqtune.worker.host.threads import Step, guarded
from mqtune.worker.ports import WorkerHost, WorkerService

logger = logging.getLogger(__name__)

#: Longest wait for running revokes at shutdown.
_REVOKES_S: Final = 1.0


class Revokes(WorkerService):
    """Journals revokes, in a thread of its own.

    Celery's workers forget them at their end, and workers that join later never receive them.
    """

    def __init__(self, host: WorkerHost) -> None:
        self._host = host
        #: Ids of revoked tasks. None ends the thread.
        self._ids: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = guarded("mqtune-revoker", self._steps)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def add(self, task_ids: Iterable[object]) -> None:
        """Request that the trials of these revoked tasks are stopped. Returns immediately."""
        for task_id in task_ids:
            self._ids.put(str(task_id))

    def close(self) -> None:
        """Wait briefly for running revokes."""
        self._ids.put(None)
        if self._thread.is_alive():
            self._thread.join(_REVOKES_S)

    def _steps(self) -> Iterator[Step]:
        while (task_id := self._ids.get()) is not None:
            yield partial(self._carry_out, task_id)

    def _carry_out(self, task_id: str) -> None:
        experiment, trial, attempt = ["", "", *task_id.rsplit("/", 2)][-3:]
        try:
            if not (is_name(experiment) and is_task(trial) and attempt.isdecimal()):
                raise ConfigurationError("mqtune has no task with this id")
            journal = self._host.journal(experiment)
            revoke(self._host.name, self._host.clock, journal, task_in(trial)[0], int(attempt))
        except MqtuneError as error:
            logger.warning("task %.200s was revoked, which this worker can't journal: %s", task_id, error)


def revoke(worker: str, clock: Clock, journal: Journal, trial: TrialId, attempt: int) -> None:
    """Stop a trial because its task was revoked.

    Repeating it, on any worker, changes nothing: the journal has the request once. The driver, or the next one, carries
    it out. Until then no worker can begin the attempt.

    Raises:
        JournalGone: the experiment does not exist.
    """
    journal.request(
        Requested(
            id=revocation(trial, attempt),
            action=Action.STOP.value,
            trial=trial,
            arguments={"reason": REVOKED},
            by=f"an operator through Celery, told by worker {worker}",
            at=clock.time(),
        )
    )
