"""The backend of a run on one machine: the driver's own worker runs the attempts."""

from __future__ import annotations

from mqtune.backends.local.worker import private_name
from mqtune.backends.queues import QueueBackend, Shape
from mqtune.core.crews import Register, register_of
from mqtune.core.resources import Resources, queue_name
from mqtune.core.trial import Config, TrialId
from mqtune.journal.exchange.local_queue import LocalQueue, encode_task
from mqtune.journal.redis import RedisJournal


class LocalBackend(QueueBackend):
    """A driver's session with its own worker, which runs attempts of this experiment only.

    Other experiments may use the same server. Their workers get no attempt of this one.
    """

    def _open(self) -> None:
        self._tasks = LocalQueue(self._client, patience_s=self._patience_s)
        #: The attempts that the journal has put on their queue together with staging them. ``publish`` skips them once.
        self._staged: set[tuple[TrialId, int]] = set()
        if isinstance(self.journal, RedisJournal):
            self.journal.task_of = self._task_of

    def _read_register(self) -> Register:
        return register_of(info for info in self._fleet.workers() if info.name == private_name())

    def why_no_slot(self) -> str:
        return super().why_no_slot() if self._crews else "starting the local worker"

    def _make_empty_shape(self, needs: Resources) -> Shape:
        queue = queue_name(needs, self._experiment)
        return Shape(queue, queue, needs, 0)

    def _task_of(self, name: TrialId, attempt: int) -> tuple[str, str]:
        """Return the queue and the message for a task. The journal queues the message."""
        # Forget other attempts, which were withdrawn before they were published.
        own = self._attempt_of((name, attempt))
        self._staged = {task for task in self._staged if self._attempt_of(task) == own}
        self._staged.add((name, attempt))
        return self._shape_of(self._fitting, self._resources).target, encode_task(self._task(name, attempt))

    def _send(self, trial: TrialId, attempt: int, config: Config, queue: str) -> None:
        if (trial, attempt) in self._staged:
            self._staged.remove((trial, attempt))
        else:
            self._tasks.put(queue, self._task(trial, attempt))
