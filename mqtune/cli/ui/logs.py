"""What a trial prints, for a page that follows it."""

from __future__ import annotations

import codecs
import contextlib
import re
from typing import Final

from mqtune.cli.place import live_broker
from mqtune.cli.ui.feed import Feed
from mqtune.core.errors import ConfigurationError, LogUnavailable, MqtuneError
from mqtune.core.seats import is_seat, seat_in, seat_name
from mqtune.core.text import printable
from mqtune.core.trial import Attempt
from mqtune.journal.logs import CHUNK_BYTES, LogExchange, LogStream
from mqtune.results.logs import Ask, AttemptOutput, attempt_of, with_seat

#: How much of what was printed before is shown.
_BEFORE_BYTES: Final = 64 * 1024
#: Colours, as terminals have them.
_COLORS: Final = re.compile(r"\x1b\[[0-9;]*m")


class Log:
    """The output of one attempt: read from its file, asked of its worker, or else its end from the journal.

    Args:
        feed: the experiment's.
        trial: the trial's id, or the name of one of the attempt's seats.
        stream: which output.
        number: of the attempt; 0 for the last.

    Raises:
        ConfigurationError: there is no such trial, attempt or seat.
    """

    def __init__(self, feed: Feed, trial: str, stream: LogStream, number: int) -> None:
        self._feed = feed
        self._stream: LogStream = stream
        if not is_seat(trial) or seat_in(trial)[0] not in feed.experiment.trials:
            raise ConfigurationError(f"there is no trial {trial!r}")
        self._trial, self._seat = seat_in(trial)
        self._number = number or len(feed.experiment.trials[self._trial].attempts)
        self._offset = -_BEFORE_BYTES
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._open = contextlib.ExitStack()
        self._attempt()
        self._ask = self._asking()

    def read(self) -> tuple[str, bool]:
        """Return what was printed since the last call, and whether that is all there will be."""
        attempt = self._attempt()
        name, seat = self._feed.experiment.name, seat_name(self._trial, self._seat)
        output = AttemptOutput(name, seat, attempt, self._stream, self._ask)
        try:
            chunk = output.chunk(self._offset)
        except MqtuneError as error:
            why = str(error) if isinstance(error, LogUnavailable) else f"it can't be asked for: {error}"
            tail = f"{output.tail.decode()}\n" if output.tail else ""
            return _shown(f"{tail}… {why}\n"), True
        self._offset = chunk.offset + len(chunk.data)
        if not chunk.data and chunk.size < chunk.offset:
            self._offset = max(0, chunk.size - CHUNK_BYTES)
            return "\n… output was cut out of the file before it was read here …\n", False
        # What was read before the end may lack the last bytes.
        is_over = not chunk.data and attempt.end is not None and not chunk.is_open
        return _shown(self._decoder.decode(chunk.data)), is_over

    def close(self) -> None:
        """Close the connection."""
        self._open.close()

    def _attempt(self) -> Attempt:
        attempts = self._feed.experiment.trials[self._trial].attempts
        return with_seat(attempt_of(attempts, self._trial, self._number), self._trial, self._seat)

    def _asking(self) -> Ask | None:
        from mqtune.journal.connection import connect  # noqa: PLC0415 - only this needs redis

        url = live_broker(self._feed.place)
        if url is None:
            return None
        client = self._open.enter_context(contextlib.closing(connect(url, role="driver")))
        return LogExchange(client, self._feed.place.name).ask


def _shown(text: str) -> str:
    """Return output without its colours; a progress bar, which is written over itself, has a line each time."""
    return printable(_COLORS.sub("", text).replace("\r\n", "\n").replace("\r", "\n"))
