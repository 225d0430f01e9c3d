"""The worker's part of logs: answers questions for the output of attempts."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from mqtune.core.errors import MqtuneError
from mqtune.core.submission import DRIVER
from mqtune.journal import LOGS, Claim, LogChunk, LogExchange, LogQuestion
from mqtune.worker import Logs, WorkerSettings, guarded
from mqtune.worker.ports import WorkerHost, WorkerService

#: How many experiments may wait for an answer; more are an attack, and a real client asks again.
_MOST_WAITING: Final = 1_000
#: How many questions about one experiment are answered before the next experiment's turn.
_MOST_AT_ONCE: Final = 100


class LogServer(WorkerService):
    """Answers requests for the output of attempts, in a thread of its own: a disk that hangs holds up nothing else.

    It sends only output of attempts that ran on this worker: that it has begun since its start, or that a worker of its
    name has claimed, according to Redis. Requests never contain paths.

    Args:
        worker: the worker's name.
        logs: returns its output files.
        exchange: returns the channel for an experiment's questions and answers.
    """

    def __init__(self, worker: str, logs: Callable[[], Logs], exchange: Callable[[str], LogExchange]) -> None:
        self._worker = worker
        self._logs = logs
        self._exchange = exchange
        self._woken: queue.Queue[str] = queue.Queue(_MOST_WAITING)
        self._waiting: set[str] = set()
        self._thread = guarded("mqtune-log-server", self._steps)

    def start(self) -> None:
        """Start answering."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering, without waiting for an answer that is under way."""
        with contextlib.suppress(queue.Full):
            self._woken.put_nowait("")

    def hinted(self, experiment: str, hint: str) -> None:
        """Have the questions about an experiment answered, without waiting for that."""
        if hint == LOGS:
            self._wake(experiment)

    def _wake(self, experiment: str) -> None:
        if experiment not in self._waiting:
            try:
                self._waiting.add(experiment)
                self._woken.put_nowait(experiment)
            except queue.Full:
                self._waiting.discard(experiment)

    def _steps(self) -> Iterator[Callable[[], object]]:
        while experiment := self._woken.get():
            self._waiting.discard(experiment)
            yield partial(self._serve, experiment)

    def _serve(self, experiment: str) -> None:
        exchange = self._exchange(experiment)
        for _ in range(_MOST_AT_ONCE):
            question = exchange.take(self._worker)
            if question is None:
                return
            exchange.answer(question, self._found(exchange, experiment, question))
        self._wake(experiment)

    def _found(self, exchange: LogExchange, experiment: str, question: LogQuestion) -> LogChunk | str:
        _, trial, attempt, stream, offset = question
        run = f"run {attempt} of script" if trial == DRIVER else f"trial {trial} attempt {attempt} of experiment"
        named = f"{run} {experiment}"
        logs = self._logs()
        path = logs.files(experiment, Claim(trial, attempt, ""))[stream == "stderr"]
        try:
            if not logs.has_begun(path) and exchange.last_attempt(trial) != (attempt, self._worker):
                return f"{named} did not run here, or too long ago"
            return logs.read(path, offset)
        except FileNotFoundError:
            why = f", {problem}" if (problem := logs.problem) else ": it did not start here, or its file was deleted"
            return f"{named} has no output here{why}"
        except (OSError, MqtuneError) as error:
            return f"the output of {named} can't be read: {error}"


def for_worker(host: WorkerHost, _: WorkerSettings) -> tuple[WorkerService]:
    """Return what answers questions for output."""
    return (LogServer(host.name, host.logs, lambda experiment: LogExchange(host.client, experiment)),)
