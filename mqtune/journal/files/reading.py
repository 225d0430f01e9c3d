"""Reads a journal from one entry to its end, a page at a time."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from mqtune.core.errors import ChapterUnavailable, MessageVersionError
from mqtune.core.events import START, ExperimentCreated, decode_event
from mqtune.journal.base import Entry, Journal

logger = logging.getLogger(__name__)

#: The approximate size of a page: some 100,000 reports.
CHUNK_BYTES: Final = 8 * 1024 * 1024
#: The entries of the first page, any of which may have megabytes, and of the largest one.
FIRST_COUNT: Final = 16
MOST_COUNT: Final = 10_000
#: A page may have this many times the entries of the page before it.
_GROWTH: Final = 4


def pages(journal: Journal, after: str = START.entry) -> Iterator[list[Entry]]:
    """Yield a journal's entries after an entry, in pages of some megabytes.

    Raises:
        ChapterUnavailable: a chapter with some of them can't be read.
    """
    count = FIRST_COUNT
    while entries := journal.read(after, count=count):
        yield entries
        if len(entries) < count:
            # Nothing follows. A server refuses to read behind the last possible id.
            return
        after = entries[-1].id
        count = next_count(count, entries)


def next_count(count: int, entries: Sequence[Entry], most: int = MOST_COUNT) -> int:
    """Return the number of entries to read next, after a read of *count* has returned these."""
    size = sum(len(entry.data) for entry in entries)
    fitting = len(entries) * CHUNK_BYTES // max(size, 1)
    return max(1, min(fitting, count * _GROWTH, most))


def entries_after(journal: Journal, after: str = START.entry) -> Iterator[Entry]:
    """Yield a journal's entries after an entry."""
    return chain.from_iterable(pages(journal, after))


def readable_entries(journal: Journal) -> Iterator[Entry]:
    """Yield a journal's entries without those in unreadable chapters, for deletions."""
    try:
        yield from entries_after(journal)
    except ChapterUnavailable as error:
        logger.warning("what is in chapters is left out: %s", error)
        yield from entries_after(journal, journal.chapters()[-1].last)


def begins(journal: Journal) -> bool:
    """Return whether the server has an experiment's first entry, or an unreadable one there."""
    first = journal.first()
    try:
        return first is not None and isinstance(decode_event(first.data), ExperimentCreated)
    except MessageVersionError:
        return True
