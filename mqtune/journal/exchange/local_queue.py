"""The queue between a driver and the worker that it has started. It needs no Celery."""

from __future__ import annotations

import json
import logging
import reprlib
import threading

from mqtune.core.keys import TASK_NAME
from mqtune.core.trial import TrialId
from mqtune.journal.server.connection import RedisClient
from mqtune.journal.server.retry import retrying

logger = logging.getLogger(__name__)

#: The task of an attempt: experiment, trial, number of the attempt, and a digest of the experiment's definition. If the
#: resources depend on the config, the last element is the GPU memory that it asks for, in bytes.
Task = tuple[str, TrialId, int, str] | tuple[str, TrialId, int, str, int]


def encode_task(task: Task) -> str:
    """Encode a task as a message with Celery's headers."""
    headers = {"task": TASK_NAME, "id": "/".join(map(str, task[:3]))}
    return json.dumps({"headers": headers, "task": task})


class LocalQueue:
    """Queues of tasks for one worker.

    Its messages have Celery's headers, so all readers understand them.

    Args:
        patience_s: how long calls are retried while the server is missing.
        closing: once set, calls are not retried.
    """

    def __init__(self, client: RedisClient, *, patience_s: float, closing: threading.Event | None = None) -> None:
        self._client = client
        self._patience_s = patience_s
        self._closing = closing

    def put(self, queue: str, task: Task) -> None:
        """Add a task. Workers run a task once, even if it is added twice.

        Raises:
            BrokerUnavailable: no server answers.
        """
        message = encode_task(task)
        retrying(
            lambda: self._client.execute_command("LPUSH", queue, message),
            patience_s=self._patience_s,
            closing=self._closing,
        )

    def take(self, queue: str) -> Task | None:
        """Wait for the next task, and remove it from the queue.

        Return None if none came for some seconds, or if it was malformed.

        Raises:
            BrokerUnavailable: *closing* was set while no server answered.
        """
        message = retrying(
            lambda: self._client.execute_command("BRPOP", queue, self._client.timing.blocking_read_s),
            patience_s=self._patience_s,
            closing=self._closing,
        )
        if message is None:
            return None
        try:
            experiment, trial, attempt, digest, *asked = json.loads(message[1].decode())["task"]
        except (ValueError, TypeError, KeyError, RecursionError):
            logger.warning("a malformed message in a queue was dropped: %s", reprlib.repr(message[1]))
            return None
        task = experiment, TrialId(trial), attempt, digest
        return (*task, asked[0]) if asked else task
