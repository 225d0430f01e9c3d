"""The output of a trial, for the live page."""

from __future__ import annotations

import codecs
import contextlib
import re
from typing import Final

from mqtune.cli.place import live_broker
from mqtune.cli.ui.feed import Feed
from mqtune.core.errors import ConfigurationError, LogUnavailable, MqtuneError
from mqtune.core.tasks import is_task, task_in, task_name
from mqtune.core.text import printable
from mqtune.core.trial import Attempt
from mqtune.journal.exchange.logs import CHUNK_BYTES, LogExchange, LogStream
from mqtune.results.logs import Ask, AttemptOutput, attempt_of, with_task

#: The bytes of earlier output that are shown first.
_BEFORE_BYTES: Final = 64 * 1024
_COLORS: Final = re.compile(r"\x1b\[[0-9;]*m")


class Log:
    """Reads the output of an attempt: from its file, its worker, or a part from the journal.

    Args:
        feed: the experiment's feed.
        trial: the id of a trial, or the name of a task.
        number: the attempt's number, or 0 for the last attempt.

    Raises:
        ConfigurationError: the trial, attempt or task does not exist.
    """

    def __init__(self, feed: Feed, trial: str, stream: LogStream, number: int) -> None:
        self._feed = feed
        self._stream: LogStream = stream
        if not is_task(trial) or task_in(trial)[0] not in feed.experiment.trials:
            raise ConfigurationError(f"there is no trial {trial!r}")
        self._trial, self._task = task_in(trial)
        self._number = number or len(feed.experiment.trials[self._trial].attempts)
        self._offset = -_BEFORE_BYTES
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._open = contextlib.ExitStack()
        # Raises an error if the attempt or the task does not exist.
        self._attempt()
        self._ask = self._open_exchange()

    def read(self) -> tuple[str, bool]:
        """Return new output, and whether no more will follow."""
        attempt = self._attempt()
        name, task = self._feed.experiment.name, task_name(self._trial, self._task)
        output = AttemptOutput(name, task, attempt, self._stream, self._ask)
        try:
            chunk = output.chunk(self._offset)
        except MqtuneError as error:
            why = str(error) if isinstance(error, LogUnavailable) else f"the output can't be read: {error}"
            tail = f"{output.tail.decode()}\n" if output.tail else ""
            return _shown(f"{tail}… {why}\n"), True
        self._offset = chunk.offset + len(chunk.data)
        if not chunk.data and chunk.size < chunk.offset:
            self._offset = max(0, chunk.size - CHUNK_BYTES)
            return "\n… output was cut out of the file before it was read here …\n", False
        # The last bytes may have been written after this read, so one more read must be empty.
        is_over = not chunk.data and attempt.end is not None and not chunk.is_open
        return _shown(self._decoder.decode(chunk.data)), is_over

    def close(self) -> None:
        self._open.close()

    def _attempt(self) -> Attempt:
        attempts = self._feed.experiment.trials[self._trial].attempts
        return with_task(attempt_of(attempts, self._trial, self._number), self._trial, self._task)

    def _open_exchange(self) -> Ask | None:
        """Return a function that asks the attempt's worker for output, or None without a server."""
        from mqtune.journal.server.connection import connect  # noqa: PLC0415 - only this needs redis

        url = live_broker(self._feed.place)
        if url is None:
            return None
        client = self._open.enter_context(contextlib.closing(connect(url, role="driver")))
        return LogExchange(client, self._feed.place.name).ask


def _shown(text: str) -> str:
    """Return output without colours. Each update of a progress bar gets its own line."""
    return printable(_COLORS.sub("", text).replace("\r\n", "\n").replace("\r", "\n"))
