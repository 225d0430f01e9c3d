"""Follows an experiment from another process, by live messages and by reads of its journal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Final

from mqtune.core.errors import BrokerUnavailable, ConfigurationError
from mqtune.core.events import START, Event, ExperimentEnded, decode_event
from mqtune.core.text import there_are
from mqtune.core.timing import Timing
from mqtune.journal.base import Entry, entry_order
from mqtune.journal.published import PublishedEntries
from mqtune.journal.redis import RedisJournal, experiments_on
from mqtune.journal.server.connection import connect, redact

#: The most entries of one read of the journal: enough to catch up fast, and few enough for memory.
PAGE_COUNT: Final = 1_000
#: How long a follower tries to reach a missing server, in seconds. A restart takes less. The server of a run on one
#: machine ends with its driver and doesn't return.
PATIENCE_S: Final = 10.0


class Follower:
    """Reads an experiment's journal entries as they are written: in order, each exactly once.

    Entries arrive as pub/sub messages, which may get lost without an error. Each message has the id of its entry and of
    the one before, so the follower notices missing entries and reads them from the journal. Only one thread may use it.

    Args:
        from_start: whether to begin with the journal's first entry. Otherwise it begins with the next new one.
        patience_s: how long it tries to reach a missing server.

    Raises:
        BrokerUnavailable: no Redis answers at the URL, it refuses the password, or it is too old.
        ConfigurationError: the server has no such experiment, or the URL is malformed.
    """

    def __init__(
        self,
        url: str,
        experiment: str,
        *,
        from_start: bool = True,
        patience_s: float = PATIENCE_S,
        timing: Timing = Timing(),
    ) -> None:
        #: After this many seconds without a message, the journal is read.
        self.silence_s = timing.follow_silence_s
        self._client = connect(url, timing=timing, role="follower")
        self._published = PublishedEntries(self._client, experiment)
        self.journal = RedisJournal(self._client, experiment, patience_s=patience_s)
        self._heard_at = time.monotonic()
        #: Whether the journal may have entries that did not arrive as messages.
        self._is_behind = True
        try:
            newest = self.newest()
            if newest is None:
                names = experiments_on(self._client, patience_s=patience_s)
                raise ConfigurationError(f"there is no experiment {experiment!r} on {redact(url)}; {there_are(names)}")
        except BaseException:
            self._client.close()
            raise
        self._last = START.entry if from_start else newest.id

    def read(self, timeout_s: float) -> list[Entry]:
        """Return the next entries, at most a page, waiting up to *timeout_s* seconds for the first.

        If it returns none, the follower had reached the journal's end at some moment of the call.

        Raises:
            BrokerUnavailable: the server was missing for too long.
            ChapterUnavailable: the entries are in a chapter that can't be read from here.
        """
        deadline = time.monotonic() + timeout_s
        self._is_behind = self._is_behind or timeout_s <= 0
        while True:
            entries = self._read_page() if self._is_behind else self._listen(max(0.0, deadline - time.monotonic()))
            if entries or (not self._is_behind and time.monotonic() >= deadline):
                return entries

    def newest(self) -> Entry | None:
        """Return the journal's newest entry, or None."""
        return next(iter(self.journal.newest()), None)

    def close(self) -> None:
        """Close the connections."""
        self._published.close()
        self._client.close()

    def _read_page(self) -> list[Entry]:
        """Return the next page of the journal."""
        entries = self.journal.read(self._last, count=PAGE_COUNT)
        self._is_behind = len(entries) == PAGE_COUNT
        self._heard_at = time.monotonic()
        if entries:
            self._last = entries[-1].id
        return entries

    def _listen(self, timeout_s: float) -> list[Entry]:
        """Return the entry in the next message. Return nothing if entries before it are missing."""
        message = self._published.next(min(timeout_s, self.silence_s), patience_s=self.journal.patience_s)
        if message is None:
            self._is_behind = time.monotonic() - self._heard_at >= self.silence_s
            return []
        entry, before = message
        if entry is None:
            self._is_behind = True
            return []
        self._heard_at = time.monotonic()
        if entry_order(entry.id) <= entry_order(self._last):
            return []
        if before != self._last:
            self._is_behind = True
            return []
        self._last = entry.id
        return [entry]


def follow(url: str, experiment: str, *, from_start: bool = True) -> Iterator[Event]:
    """Yield an experiment's events as they happen, in order, each exactly once, until its end.

    Args:
        from_start: whether to begin with its first event. Otherwise it begins with the next new one.

    Raises:
        BrokerUnavailable: the broker can't be reached, or was missing for too long.
        ConfigurationError: the broker has no such experiment.
        ChapterUnavailable: its oldest events are in chapters that can't be read from here.
        MessageVersionError: a later version of mqtune writes the journal.
    """
    with contextlib.closing(Follower(url, experiment, from_start=from_start)) as follower:
        newest = None if from_start else follower.newest()
        has_ended = newest is not None and isinstance(decode_event(newest.data), ExperimentEnded)
        # An ended experiment may have been continued. Only the journal shows it.
        wait_s = follower.silence_s
        while (entries := _after_the_end(follower) if has_ended else follower.read(wait_s)) or not has_ended:
            for entry in entries:
                event = decode_event(entry.data, entry.id)
                has_ended = isinstance(event, ExperimentEnded)
                if event is not None:
                    yield event


def _after_the_end(follower: Follower) -> list[Entry]:
    """Return the entries after an experiment's end, if any. Its server may have ended with it."""
    follower.journal.patience_s = 0.0
    try:
        return follower.read(0)
    except BrokerUnavailable:
        return []
    finally:
        follower.journal.patience_s = PATIENCE_S
