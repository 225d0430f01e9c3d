"""The backend of a run on one machine: attempts go to the worker that the driver has started, without Celery."""

from __future__ import annotations

from mqtune.backends.queues import QueueBackend
from mqtune.core.trial import Config, TrialId
from mqtune.journal.local_queue import LocalQueue, encode_task
from mqtune.journal.redis import RedisJournal


class LocalBackend(QueueBackend):
    """A driver's session with the one worker of a server of its own, whose queue nobody else looks at."""

    def _open(self) -> None:
        self._tasks = LocalQueue(self._client, patience_s=self._patience_s)
        #: The attempt that was put on its queue when it was staged, and is published next.
        self._staged: tuple[TrialId, int] | None = None
        if isinstance(self.journal, RedisJournal):
            self.journal.task_of = self._task_of

    def _task_of(self, trial: TrialId, attempt: int) -> tuple[str, str]:
        self._staged = trial, attempt
        return self._queue_of(self._fitting), encode_task((self._experiment, trial, attempt, self._digest))

    def _send(self, trial: TrialId, attempt: int, config: Config, queue: str) -> None:
        staged, self._staged = self._staged, None
        if staged != (trial, attempt):
            self._tasks.put(queue, (self._experiment, trial, attempt, self._digest))
