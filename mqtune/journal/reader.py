"""How a driver reads its journal: what there was before it, twice and in little memory; then what comes, kept in the local copy."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

from mqtune.core.clock import Clock
from mqtune.core.errors import BrokerUnavailable, CopyIncomplete, JournalGone, MessageVersionError
from mqtune.core.events import START, Cursor, Event
from mqtune.core.replay import driver_events
from mqtune.journal.base import Entry, Journal
from mqtune.journal.file import JournalFile

__all__ = ["JournalReader"]

logger = logging.getLogger(__name__)

#: What one read takes: so many bytes, more or less, which is some 100,000 reports.
CHUNK_BYTES: Final = 8 * 1024 * 1024
#: Entries of the first read, of which one may be megabytes, and of the largest: of news, and of what there was before.
FIRST_COUNT: Final = 16
NEWS_COUNT: Final = 1_000
MOST_COUNT: Final = 10_000
#: By how much a read may ask for more entries than the one before it.
_GROWTH: Final = 4
#: How long a copy that can't be written is left alone before it is tried again: somebody has to make room.
RETRY_S: Final = 30.0


class JournalReader:
    """Reads a journal in order and once, and keeps the local copy of it.

    The journal is the truth and the copy a convenience: one that can't be written stays behind, with whole entries and
    without a gap, while the reading goes on; it is completed when there is room.

    Args:
        journal: what is read.
        copy: what has the same entries, or the first of them.
        clock: says when a copy that is behind is tried again.
    """

    def __init__(self, journal: Journal, copy: JournalFile, clock: Clock) -> None:
        #: The id of the last entry that was read.
        self.last = START.entry
        #: How many entries of news to read at once: as many as fit into memory, and let timers be looked at in between.
        self.count = FIRST_COUNT
        self._journal = journal
        self._copy = copy
        self._clock = clock
        #: The id of the last entry in the copy.
        self._kept = START.entry
        self._is_behind = False
        self._is_closed = False
        #: Whether the file is open, with what was read of this journal in it.
        self._has_begun = False
        self._retry_at = 0.0

    def catch_up(self) -> dict[Cursor, list[Event]]:
        """Read all that there is, and return the driver's events in it by their cursors; the copy has all of it then.

        What the copy has of this journal already is taken from there.

        Raises:
            JournalGone: the copy has more than the journal; nothing was changed.
        """
        if self._journal.keeps:
            try:
                return driver_events(self._behind_copy())
            except BrokerUnavailable:
                raise
            except (OSError, MessageVersionError, _AnotherJournal) as error:
                logger.debug("the copy %s is written anew: %s", self._copy.path, error)
        self.last = self._kept = START.entry
        try:
            self._begin()
        except OSError as error:
            self._fall_behind(error)
        return driver_events(self._rest())

    def read(self) -> Iterator[Entry]:
        """Yield once more what was read so far, for whoever wants to know what happened.

        Raises:
            CopyIncomplete: the copy could not be written, and the journal is not to be asked any more.
        """
        if self._is_behind and self._is_closed:
            name = self._journal.experiment
            raise CopyIncomplete(
                f"{self._copy.path} lacks the end of experiment {name!r}, as it could not be written: make room, and "
                f"`mqtune resume {name}` or the same script fills it in from Redis"
            )
        return self.again()

    def close(self) -> None:
        """Ask the journal no more; what was kept can still be read."""
        self._is_closed = True

    def again(self) -> Iterator[Entry]:
        """Yield once more what was read so far."""
        if not self._is_behind:
            yield from self._copy.read()
            return
        for entries in self._pages(START.entry):
            for entry in entries:
                yield entry
                if entry.id == self.last:
                    return

    def keep(self, entries: Sequence[Entry]) -> None:
        """Take note that these were read, behind all before, and have them in the copy.

        Raises:
            OSError: the copy can't be written, and the journal forgets what was read.
        """
        self.last = entries[-1].id
        self.count = _next_count(self.count, entries, NEWS_COUNT)
        if self._is_behind:
            if self._clock.monotonic() >= self._retry_at:
                self.complete()
            return
        try:
            self._copy.append(entries)
            self._kept = self.last
        except OSError as error:
            self._fall_behind(error)

    def finish(self) -> None:
        """Read to the journal's end, and have all of it in the copy, or say that this can't be."""
        while entries := self._journal.read(self.last, count=self.count):
            self.keep(entries)
        if not self.complete():
            name = self._journal.experiment
            logger.warning(
                "%s lacks the end of experiment %r: make room, and run the same script or `mqtune resume %s` to fill it in",
                self._copy.path,
                name,
                name,
            )

    def complete(self) -> bool:
        """Bring a copy that is behind to where the journal was read to; False when it still can't be written."""
        if not self._is_behind:
            return True
        try:
            if not self._has_begun:
                self._begin()
            for entries in self._pages(self._kept) if self._kept != self.last else ():
                known = [entry.id for entry in entries]
                upto = known.index(self.last) + 1 if self.last in known else len(entries)
                self._copy.append(entries[:upto])
                self._kept = entries[upto - 1].id
                if self._kept == self.last:
                    break
        except BrokerUnavailable:
            raise
        except OSError as error:
            self._retry_at = self._clock.monotonic() + RETRY_S
            logger.debug("%s still can't be written: %s", self._copy.path, error)
            return False
        self._is_behind = False
        logger.warning("%s could be written again, and has everything", self._copy.path)
        return True

    def _begin(self) -> None:
        self._copy.begin([])
        self._has_begun = True

    def _fall_behind(self, error: OSError) -> None:
        if not self._journal.keeps:
            raise error
        self._is_behind = True
        self._retry_at = self._clock.monotonic() + RETRY_S
        logger.warning(
            "the local copy %s can't be written (%s): the experiment goes on, as its journal in Redis has everything; "
            "make room, and what is missing is filled in",
            self._copy.path,
            error,
            extra={"action": "copy_behind", "path": str(self._copy.path)},
        )

    def _behind_copy(self) -> Iterator[Entry]:
        """Yield what the copy has and the rest of the journal, if the copy is of this journal.

        Raises:
            _AnotherJournal: it is not; nothing was changed.
            JournalGone: it is of an earlier state of this journal; nothing was changed.
        """
        first = before = last = None
        for entry in self._copy.go_on():
            yield entry
            first = first or entry
            before, last = last, entry
        if first is None or last is None:
            raise _AnotherJournal
        # Entries are only ever added: with its first and its last ones alike, and nothing between the last two, it is this one's.
        after = START.entry if before is None else before.id
        begins = self._journal.read(START.entry, count=1)
        if [first] == begins and not self._journal.holds(last.id):
            raise JournalGone(f"Redis has lost the end of experiment {self._journal.experiment!r}")
        if [first, last] != begins + self._journal.read(after, count=1):
            raise _AnotherJournal
        self._has_begun = True
        self.last = self._kept = last.id
        yield from self._rest()

    def _rest(self) -> Iterator[Entry]:
        for entries in self._pages(self.last):
            self.keep(entries)
            yield from entries

    def _pages(self, after: str) -> Iterator[list[Entry]]:
        """Yield the journal's entries behind *after*, in parts of some megabytes."""
        count = FIRST_COUNT
        while entries := self._journal.read(after, count=count):
            yield entries
            after = entries[-1].id
            count = _next_count(count, entries, MOST_COUNT)


def _next_count(count: int, entries: Sequence[Entry], most: int) -> int:
    """Return how many entries to read after these, for which *count* were asked."""
    size = sum(len(entry.data) for entry in entries)
    fitting = len(entries) * CHUNK_BYTES // max(size, 1)
    return max(1, min(fitting, count * _GROWTH, most))


class _AnotherJournal(Exception):
    """A copy has nothing of this journal."""
