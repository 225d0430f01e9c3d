"""Answers who asks for the output of attempts that ran on this worker."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from typing import Final

from mqtune.core.errors import MqtuneError
from mqtune.journal.base import Claim
from mqtune.journal.logs import LogChunk, LogExchange, LogQuestion
from mqtune.worker.logs import Logs

__all__ = ["LogServer"]

logger = logging.getLogger(__name__)

#: How many experiments may wait to be looked at; more wake-ups are somebody's who does harm, and who really asks wakes again.
_MOST_WAITING: Final = 1_000
#: How many questions about one experiment are answered before it is another's turn.
_MOST_AT_ONCE: Final = 100


class LogServer:
    """Reads what is asked for in a thread of its own: a disk that hangs holds up nobody else.

    Only the output of attempts that this worker ran for that experiment is read: those that it has begun since it was
    started, and those that Redis says a worker of its name has claimed. No path comes from outside.

    Args:
        worker: the worker's name.
        logs: the files.
        exchange: returns an experiment's questions and answers.
    """

    def __init__(self, worker: str, logs: Logs, exchange: Callable[[str], LogExchange]) -> None:
        self._worker = worker
        self._logs = logs
        self._exchange = exchange
        self._woken: queue.Queue[str] = queue.Queue(_MOST_WAITING)
        self._waiting: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="mqtune-log-server", daemon=True)

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def close(self) -> None:
        """Answer no more; an answer that is under way is not waited for."""
        with contextlib.suppress(queue.Full):
            self._woken.put_nowait("")

    def wake(self, experiment: str) -> None:
        """Have the questions about an experiment answered; returns at once."""
        if experiment not in self._waiting:
            try:
                self._waiting.add(experiment)
                self._woken.put_nowait(experiment)
            except queue.Full:
                self._waiting.discard(experiment)

    def _run(self) -> None:
        while experiment := self._woken.get():
            self._waiting.discard(experiment)
            try:
                self._serve(self._exchange(experiment), experiment)
            except Exception as error:  # noqa: BLE001 - one experiment's broken keys must not end the answers to all others
                logger.warning("experiment %s: a question for output could not be answered: %s", experiment, error)

    def _serve(self, exchange: LogExchange, experiment: str) -> None:
        for _ in range(_MOST_AT_ONCE):
            question = exchange.take(self._worker)
            if question is None:
                return
            exchange.answer(question, self._found(exchange, experiment, question))
        self.wake(experiment)

    def _found(self, exchange: LogExchange, experiment: str, question: LogQuestion) -> LogChunk | str:
        _, trial, attempt, stream, offset = question
        what = f"trial {trial} attempt {attempt}"
        path = self._logs.files(experiment, Claim(trial, attempt, ""))[stream == "stderr"]
        try:
            if not self._logs.has_begun(path) and exchange.last_attempt(trial) != (attempt, self._worker):
                return f"{what} of experiment {experiment} did not run here, or too long ago"
            return self._logs.read(path, offset)
        except FileNotFoundError:
            return f"what {what} printed is not here: nothing was, or it was deleted"
        except (OSError, MqtuneError) as error:
            return f"what {what} printed can't be read: {error}"
