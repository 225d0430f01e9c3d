"""The driver's part of retention.

It moves a journal's oldest entries from the server into chapters in the store.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from mqtune.checkpoints import CheckpointStore
from mqtune.checkpoints.files import sync
from mqtune.core.background import Background
from mqtune.core.errors import MqtuneError
from mqtune.driver import DriverAction
from mqtune.driver.ports import DriverHost, DriverService
from mqtune.journal import Chapter, ServerState, chapter_bytes, cut_chapters, entries_of, keep_chapter

logger = logging.getLogger(__name__)

#: Both in sizes of a chapter: how much of a journal the server keeps at least, for its readers, and how much makes the
#: driver write new chapters.
_KEPT: Final = 1
_MOST: Final = 2
#: On a full server the size of a chapter is a quarter of the journal, and no less than this: each chapter takes a file,
#: and some 150 bytes in Redis.
_LEAST_BYTES: Final = 64 * 1024
_OF_JOURNAL: Final = 4


class _Written(NamedTuple):
    """A chapter in the store, and the id of the previous chapter's last entry ("" without one)."""

    chapter: Chapter
    before: str


class Trimmer(DriverService):
    """Keeps only the newest entries of a journal on its server, if there is a shared store.

    A separate thread writes chapters from the driver's copy, which is flushed to disk before. So nothing leaves the
    server that the copy and the store do not have, or that the driver has not read. A driver that dies between a file
    and its ``trim`` changes nothing: the next one makes the same file.

    Args:
        host: the driver, whose journal has a store for chapters.
    """

    def __init__(self, host: DriverHost) -> None:
        self._host = host
        self._journal = host.ledger.journal
        self.due = host.clock.monotonic() + host.timing.keep_lock_s
        self._writing = Background("mqtune-chapters")
        self._written: SimpleQueue[_Written] = SimpleQueue()
        #: The offset in the copy after the last chapter, and the id of that chapter's last entry; None while unknown.
        self._at: tuple[int, str] | None = None
        #: Why the last chapter could not be written; empty if it was.
        self._problem = ""
        self._retry_at = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether chapters are being written."""
        return self._writing.is_behind

    def tick(self) -> Sequence[DriverAction]:
        """Remove the entries of written chapters from the server, and begin more if it has too much.

        A full server keeps less of a journal than any other.
        """
        self.due = self._host.clock.monotonic() + self._host.timing.keep_lock_s
        self._trim_and_write()
        return ()

    def _trim_and_write(self) -> None:
        store = self._journal.chapter_store
        if store is None or self.is_busy:
            return
        self._trim()
        journal_bytes, most_bytes, _ = self._host.heartbeat.room
        size = chapter_bytes(most_bytes)
        if self._host.is_full():
            size = min(size, max(_LEAST_BYTES, journal_bytes // _OF_JOURNAL))
        now = self._host.clock.monotonic()
        if journal_bytes < _MOST * size or now < self._retry_at:
            return
        self._retry_at = now + self._host.timing.trim_retry_s if self._problem else now
        # Entries that come meanwhile stay in addition.
        most = journal_bytes - _KEPT * size
        self._writing.start()
        self._writing.tell(lambda: self._write(store, size, most))

    def close(self) -> None:
        """End the thread; the next driver writes an unfinished chapter."""
        self._writing.close()

    def _trim(self) -> None:
        while True:
            try:
                chapter, before = self._written.get_nowait()
            except Empty:
                return
            left = self._host.ledger.surely(lambda: self._journal.trim(chapter, before))  # noqa: B023 - called immediately
            if left is None:
                # The journal was restored, or the server set back: it has other chapters.
                self._at = None
            else:
                self._host.heartbeat.server = ServerState(left)

    def _write(self, store: CheckpointStore, size: int, most: int) -> None:
        """Write chapters with at most *most* bytes in total. Only the writing thread calls it."""
        try:
            # Without this, the end of the copy would be lost with the machine.
            sync(str(self._host.copy))
            offset, before = self._at or self._find_end()
            for cut in cut_chapters(self._host.copy, offset, size):
                if (most := most - cut.chapter.size) < 0:
                    break
                keep_chapter(store, cut)
                self._written.put(_Written(cut.chapter, before))
                before = cut.chapter.last
                self._at = cut.end, before
        except Exception as error:  # noqa: BLE001 - a store may raise anything, and the experiment continues
            if not self._problem:
                logger.warning(
                    "the oldest entries of experiment %s stay in Redis for now: %s",
                    self._journal.experiment,
                    error,
                    extra={"action": "chapter_not_written", "experiment": self._journal.experiment},
                )
            self._problem = str(error)
        else:
            if self._problem:
                logger.warning("the oldest entries of experiment %s leave Redis again", self._journal.experiment)
            self._problem = ""

    def _find_end(self) -> tuple[int, str]:
        """Return the copy's offset after the last chapter, and the id of that chapter's last entry.

        Raises:
            MqtuneError: the copy does not have it.
        """
        chapters = self._journal.chapters()
        if not chapters:
            return 0, ""
        last = chapters[-1].last
        with self._host.copy.open("rb") as file:
            offset = next((end for entry, end in entries_of(file) if entry.id == last), None)
        if offset is None:
            raise MqtuneError(f"{self._host.copy} lacks the entry {last}, with which the last chapter ends")
        return offset, last


def for_driver(host: DriverHost) -> Sequence[DriverService]:
    """Return the service that trims the journal, if it has a store that other machines reach."""
    return (Trimmer(host),) if host.ledger.journal.chapter_store is not None else ()
