"""The backend of a run on one machine: attempts go to the worker that the driver has started, without Celery."""

from __future__ import annotations

from mqtune.backends.queues import QueueBackend
from mqtune.core.trial import Config, TrialId
from mqtune.journal.local_queue import LocalQueue


class LocalBackend(QueueBackend):
    """A driver's session with the one worker of a server of its own, whose queue nobody else looks at."""

    def _open(self) -> None:
        self._tasks = LocalQueue(self._client, patience_s=self._patience_s)

    def _send(self, trial: TrialId, attempt: int, config: Config, queue: str) -> None:
        self._tasks.put(queue, (self._experiment, trial, attempt, self._digest))
