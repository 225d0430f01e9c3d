"""The worker's part of logs: answers requests for output of attempts."""

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

#: Maximum number of experiments waiting for an answer. More are an attack; real clients retry.
_MOST_WAITING: Final = 1_000
#: Number of questions answered for one experiment before the next experiment's turn.
_MOST_AT_ONCE: Final = 100


class LogServer(WorkerService):
    """Answers requests for output of attempts. A hanging disk blocks only its own thread.

    It sends only output of attempts that ran on this worker: begun since its start, or claimed by a worker of its name,
    according to Redis. Requests never contain paths.

    Args:
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
        """Stop answering, without waiting for a running answer."""
        with contextlib.suppress(queue.Full):
            self._woken.put_nowait("")

    def hinted(self, experiment: str, hint: str) -> None:
        """Queue the questions about an experiment. Returns immediately."""
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
            exchange.answer(question, self._answer_to(exchange, experiment, question))
        self._wake(experiment)

    def _answer_to(self, exchange: LogExchange, experiment: str, question: LogQuestion) -> LogChunk | str:
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
    """Return the service that answers requests for output."""
    return (LogServer(host.name, host.logs, lambda experiment: LogExchange(host.client, experiment)),)
