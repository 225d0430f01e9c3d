"""The queue between a driver and the worker that it has started. It needs no Celery."""

from __future__ import annotations

import json
import logging
import reprlib

from mqtune.core.keys import TASK_NAME
from mqtune.core.trial import TrialId
from mqtune.journal.server.retry import RetryingCaller

logger = logging.getLogger(__name__)

#: The task of an attempt: experiment, trial, number of the attempt, and a digest of the experiment's definition. If the
#: resources depend on the config, the last element is the GPU memory that it asks for, in bytes.
Task = tuple[str, TrialId, int, str] | tuple[str, TrialId, int, str, int]


def encode_task(task: Task) -> str:
    """Encode a task as a message with Celery's headers."""
    headers = {"task": TASK_NAME, "id": "/".join(map(str, task[:3]))}
    return json.dumps({"headers": headers, "task": task})


class LocalQueue(RetryingCaller):
    """Queues of tasks for one worker.

    Its messages have Celery's headers, so all readers understand them.
    """

    def put(self, queue: str, task: Task) -> None:
        """Add a task. Workers run a task once, even if it is added twice.

        Raises:
            BrokerUnavailable: no server answers.
        """
        message = encode_task(task)
        self._retrying(lambda: self._client.execute_command("LPUSH", queue, message))

    def take(self, queue: str) -> Task | None:
        """Wait for the next task, and remove it from the queue.

        Return None if none came for some seconds, or if it was malformed.

        Raises:
            BrokerUnavailable: *closing* was set while no server answered.
        """
        timeout_s = self._client.timing.blocking_read_s
        message = self._retrying(lambda: self._client.execute_command("BRPOP", queue, timeout_s))
        if message is None:
            return None
        try:
            experiment, trial, attempt, digest, *asked = json.loads(message[1].decode())["task"]
        except (ValueError, TypeError, KeyError, RecursionError):
            logger.warning("a malformed message in a queue was dropped: %s", reprlib.repr(message[1]))
            return None
        task = experiment, TrialId(trial), attempt, digest
        return (*task, asked[0]) if asked else task
