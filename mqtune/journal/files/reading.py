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
#: The number of entries of the first page. It is small, because each entry may have megabytes.
FIRST_COUNT: Final = 16
#: The most entries of a page.
MOST_COUNT: Final = 10_000
#: A page has at most this many times the entries of the page before it.
_GROWTH: Final = 4


def pages(journal: Journal, after: str = START.entry) -> Iterator[list[Entry]]:
    """Yield a journal's entries after the id *after*, in pages of some megabytes.

    Raises:
        ChapterUnavailable: the entries of a chapter can't be read.
    """
    count = FIRST_COUNT
    while entries := journal.read(after, count=count):
        yield entries
        if len(entries) < count:
            # This is the end. A further read could be an error: a server refuses to read after the largest possible id.
            return
        after = entries[-1].id
        count = next_count(count, entries)


def next_count(count: int, entries: Sequence[Entry], most: int = MOST_COUNT) -> int:
    """Return how many entries to read next.

    The last read asked for *count* and returned *entries*.
    """
    size = sum(len(entry.data) for entry in entries)
    fitting = len(entries) * CHUNK_BYTES // max(size, 1)
    return max(1, min(fitting, count * _GROWTH, most))


def entries_after(journal: Journal, after: str = START.entry) -> Iterator[Entry]:
    """Yield a journal's entries after the id *after*."""
    return chain.from_iterable(pages(journal, after))


def readable_entries(journal: Journal) -> Iterator[Entry]:
    """Yield a journal's entries. If a chapter can't be read, continue after the last chapter."""
    try:
        yield from entries_after(journal)
    except ChapterUnavailable as error:
        logger.warning("entries in chapters are left out: %s", error)
        yield from entries_after(journal, journal.chapters()[-1].last)


def begins(journal: Journal) -> bool:
    """Whether the server has an experiment's first entry, readable or not."""
    first = journal.first()
    try:
        return first is not None and isinstance(decode_event(first.data), ExperimentCreated)
    except MessageVersionError:
        return True
