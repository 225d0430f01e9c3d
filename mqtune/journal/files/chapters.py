"""Chapters: files in the experiment's store with the oldest entries of its journal."""

from __future__ import annotations

import hashlib
import tempfile
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple, TypeVar, cast

from mqtune.checkpoints import CheckpointStore, open_store
from mqtune.checkpoints.files import remove_tree
from mqtune.checkpoints.store import is_id, without_secrets
from mqtune.core.definition import decode_definition
from mqtune.core.errors import ChapterUnavailable, MessageVersionError, MqtuneError, StoreUnavailable
from mqtune.core.trial import CheckpointId
from mqtune.journal.base import Chapter, Entry, Journal, entry_order
from mqtune.journal.files.copy import JOURNAL_FILE, entries_of

#: The bytes of a chapter's entries. Redis needs about 950 MB for a hundred experiments with twice as many bytes of
#: single reports.
CHAPTER_BYTES: Final = 4 * 2**20
#: If the journal's budget is small, a chapter is this part of it. So a chapter can be moved before reports have to
#: wait.
_BUDGET_DIVISOR: Final = 4
#: The prefix of a chapter's id. No checkpoint of a trial has it.
_PREFIX: Final = "journal."
#: Reads entries from the server. The arguments are the id to read after, the most entries, and whether to wait for the
#: first. It returns the entries and the id of the last entry in a chapter, or an empty text.
_ReadServer = Callable[[str, int, bool], tuple[list[Entry], str]]
T = TypeVar("T")


def chapter_bytes(budget: int) -> int:
    """Return the size of a chapter in bytes.

    *budget* is the journal's limit in bytes; 0 for no limit.
    """
    return min(CHAPTER_BYTES, max(1, budget // _BUDGET_DIVISOR)) if budget else CHAPTER_BYTES


def checkpoints_in(store: CheckpointStore) -> list[CheckpointId]:
    """Return the ids in a store without those of chapters."""
    return [id_ for id_ in store.ids() if not id_.startswith(_PREFIX)]


def encode_chapters(chapters: Sequence[Chapter]) -> bytes:
    """Encode the list of chapters for Redis, one line for each."""
    return "".join(f"{' '.join(map(str, chapter))}\n" for chapter in chapters).encode()


def decode_chapters(data: bytes | None) -> list[Chapter]:
    """Decode the list of chapters.

    Raises:
        MessageVersionError: a line is malformed.
    """
    chapters = []
    for line in (data or b"").splitlines():
        try:
            id_, first, last, entries, size = line.decode().split(" ")
            chapter = Chapter(CheckpointId(id_), first, last, int(entries), int(size))
            is_sound = is_id(id_) and id_.startswith(_PREFIX) and entry_order(first) <= entry_order(last)
        except ValueError:
            is_sound = False
        if not is_sound:
            raise MessageVersionError(
                f"the journal's list of chapters has the line {line[:100]!r}, which mqtune did not write"
            )
        chapters.append(chapter)
    return chapters


class PackedChapter(NamedTuple):
    """A chapter cut from a journal's copy. ``end`` is the offset in the copy where it ends."""

    chapter: Chapter
    data: bytes
    end: int


def cut_chapters(copy: Path, offset: int, size: int) -> Iterator[PackedChapter]:
    """Yield the chapters of a copy from the byte *offset* on.

    Each has *size* bytes or a little more. The remaining entries, which are too few for a chapter, are not yielded.
    Different drivers make equal files from equal entries.

    Raises:
        OSError, MessageVersionError: the copy can't be read.
    """
    with copy.open("rb") as file, copy.open("rb") as raw:
        file.seek(offset)
        first, count, filled = "", 0, 0
        for entry, end in entries_of(file):
            first, count, filled = first or entry.id, count + 1, filled + len(entry.data)
            if filled >= size:
                raw.seek(offset)
                data = raw.read(end - offset)
                yield PackedChapter(Chapter(_chapter_id(entry.id, data), first, entry.id, count, filled), data, end)
                offset, first, count, filled = end, "", 0, 0


def _chapter_id(last: str, data: bytes) -> CheckpointId:
    # The id has no dash, so no trial can be read from it.
    return CheckpointId(f"{_PREFIX}{last.replace('-', '.')}.{hashlib.sha256(data).hexdigest()}")


def keep_chapter(store: CheckpointStore, cut: PackedChapter) -> None:
    """Save a chapter in a store. Do nothing if the store has it.

    Raises:
        StoreUnavailable: the store can't be reached, or is full.
    """
    if store.exists(cut.chapter.id):
        return
    folder = store.staging()
    try:
        (folder / JOURNAL_FILE).write_bytes(cut.data)
        store.save(cut.chapter.id, folder, {})
    finally:
        remove_tree(folder)


#: The reads in progress of this process: the time of their start, by the store's URL.
_reading: Final[dict[str, float]] = {}
_reading_changed: Final = threading.Condition()


def _read_with_timeout(url: str, read: Callable[[], T], answer_s: float) -> T:
    """Call *read*, which reads from the store *url*, and return its result.

    One thread at a time reads a store. A file system that hangs never answers, and a thread that reads it can't be
    ended. So at most one thread hangs for each store, and the process can end without it.

    Raises:
        StoreUnavailable: the store does not answer within *answer_s* seconds.
    """
    outcome: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def work() -> None:
        try:
            outcome.put((read(), None))
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            outcome.put((None, error))
        finally:
            with _reading_changed:
                del _reading[url]
                _reading_changed.notify_all()

    with _reading_changed:
        while (since := _reading.get(url)) is not None:
            left_s = since + answer_s - time.monotonic()
            if left_s <= 0:
                raise StoreUnavailable(f"its store has not answered for {answer_s - left_s:.0f} s")
            _reading_changed.wait(left_s)
        _reading[url] = time.monotonic()
    threading.Thread(target=work, name="mqtune-chapter", daemon=True).start()
    try:
        content, error = outcome.get(timeout=answer_s)
    except Empty:
        raise StoreUnavailable(f"its store has not answered for {answer_s:.0f} s") from None
    if error is not None:
        raise error
    return cast("T", content)


class ChapterReader:
    """Reads a journal's entries from its chapters and from its server. Any thread may use it.

    The entries of one chapter stay in memory while reads continue in it.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._store: CheckpointStore | None = None
        #: The URL of the journal's store; empty until it is needed.
        self._url = ""
        #: The open chapter, and its entries.
        self._open: tuple[CheckpointId, list[Entry]] | None = None

    def read(self, after: str, count: int, read_server: _ReadServer) -> list[Entry]:
        """Return up to *count* entries after an id. It returns fewer only at the journal's end.

        Raises:
            ChapterUnavailable: a chapter can't be read.
        """
        entries: list[Entry] = []
        while len(entries) < count:
            part = self._read_open(after, count - len(entries))
            if not part:
                on_server, head = read_server(after, count - len(entries), not entries)
                # The head was read together with the entries, so none can have moved into a chapter in between.
                if not head or entry_order(after) >= entry_order(head):
                    return entries + on_server if entries else on_server
                part = self._open_at(after)[: count - len(entries)]
            entries += part
            after = part[-1].id
        return entries

    def has(self, entry: str) -> bool:
        """Return whether a chapter has an entry.

        Raises:
            ChapterUnavailable: the chapter that would have the entry can't be read.
        """
        order = entry_order(entry)
        chapters = self._journal.chapters()
        at = bisect_left(chapters, order, key=lambda chapter: entry_order(chapter.last))
        if at == len(chapters):
            return False
        if entry in (chapters[at].first, chapters[at].last):
            return True
        with self._lock:
            entries = self._entries(chapters[at])
        position = bisect_left(entries, order, key=_order)
        return position < len(entries) and entries[position].id == entry

    def _read_open(self, after: str, count: int) -> list[Entry]:
        """Return the entries after *after* in the open chapter.

        Close a chapter that does not have them.
        """
        if self._open is None:
            return []
        with self._lock:
            if self._open is None:
                return []
            entries = self._open[1]
            at = bisect_right(entries, entry_order(after), key=_order)
            if 0 < at < len(entries) and entries[at - 1].id == after:
                return entries[at : at + count]
            self._open = None
        return []

    def _open_at(self, after: str) -> list[Entry]:
        """Open the chapter with the next entry after *after*. Return its entries from that one on."""
        chapters = self._journal.chapters()
        at = bisect_right(chapters, entry_order(after), key=lambda chapter: entry_order(chapter.last))
        if at == len(chapters):
            raise self._unavailable(f"none of these files has the entry after {after}")
        with self._lock:
            entries = self._entries(chapters[at])
        return entries[bisect_right(entries, entry_order(after), key=_order) :]

    def _entries(self, chapter: Chapter) -> list[Entry]:
        if self._open is None or self._open[0] != chapter.id:
            self._open = chapter.id, self._fetch_chapter(chapter)
        return self._open[1]

    def _fetch_chapter(self, chapter: Chapter) -> list[Entry]:
        try:
            self._url = self._url or self._stored_url()
            return _read_with_timeout(
                self._url, lambda: self._read_chapter(chapter), self._journal.timing.chapter_answer_s
            )
        except StoreUnavailable as error:
            raise self._unavailable(f"the file {chapter.id} can't be read: {error}") from error

    def _read_chapter(self, chapter: Chapter) -> list[Entry]:
        folder = Path(tempfile.mkdtemp(prefix="mqtune-chapter-"))
        try:
            target = folder / "read"
            self._get_store().fetch(chapter.id, target)
            file = target / JOURNAL_FILE
            if _chapter_id(chapter.last, file.read_bytes()) != chapter.id:
                raise self._unavailable(f"the file {chapter.id} was changed after mqtune had written it")
            with file.open("rb") as read:
                entries = [entry for entry, _ in entries_of(read)]
        except (MqtuneError, OSError) as error:
            if isinstance(error, ChapterUnavailable):
                raise
            raise self._unavailable(f"the file {chapter.id} can't be read: {error}") from error
        finally:
            remove_tree(folder)
        if not entries or (entries[0].id, entries[-1].id) != (chapter.first, chapter.last):
            raise self._unavailable(f"the file {chapter.id} does not have the entries that the server lists for it")
        return entries

    def _get_store(self) -> CheckpointStore:
        if self._store is None:
            self._store = self._journal.chapter_store or open_store(self._stored_url())
        return self._store

    def _stored_url(self) -> str:
        kept = self._journal.definition()
        return "" if kept is None else str(decode_definition(self._journal.experiment, kept).get("store", ""))

    def _unavailable(self, why: str) -> ChapterUnavailable:
        name = self._journal.experiment
        return ChapterUnavailable(
            f"the oldest journal entries of experiment {name!r} are in files (chapters) in its store "
            f"{without_secrets(self._stored_url().partition('#')[0]) or '(none)'}, and {why}. Run `mqtune show {name}` "
            f"where that store can be reached, or on the driver's machine, which has a copy of all entries"
        )


def _order(entry: Entry) -> tuple[int, int]:
    return entry_order(entry.id)
