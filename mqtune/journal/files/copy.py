"""The local copy of a journal: its file, and the reader that fills it."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import msgpack

from mqtune.core.codec import encode_value
from mqtune.core.entries import driver_events
from mqtune.core.errors import BrokerUnavailable, CopyIncomplete, JournalGone, MessageVersionError
from mqtune.core.events import START, Cursor, DriverStarted, Event, ExperimentCreated, decode_event
from mqtune.core.machine import ARCHIVED, DICTS, SIMULATION, replace_file
from mqtune.journal.base import Entry, Journal
from mqtune.journal.files.reading import FIRST_COUNT, MOST_COUNT, next_count, pages

JOURNAL_FILE: Final = "journal.msgpack"
#: Marks the end of a file that lacks entries. msgpack never uses this byte, so a half-written entry does not look like
#: the mark.
_INCOMPLETE_MARK: Final = b"\xc1\xc1"


class JournalFile:
    """A file of entries, each as msgpack ``[id, event]``.

    Only one driver writes it; anybody may read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        #: Whether the file ends in half an entry.
        self._ends_in_half = False
        #: The last bytes of the last entry, if the mark of missing entries has replaced them.
        self._replaced_end = b""
        # Kept, because making a packer takes twice as long as packing an entry.
        self._pack = msgpack.Packer().pack

    def begin(self, entries: Iterable[Entry]) -> None:
        """Replace the file by one with these entries, atomically, and keep it open for more.

        If another driver still writes to the replaced file, the new one does not change.

        Raises:
            OSError: the folder can't be written.
        """
        self.close()
        replace_file(self.path, map(self._pack, entries))
        self._file = self.path.open("r+b", buffering=0)
        self._file.seek(0, os.SEEK_END)
        _has_locked(self._file)

    def go_on(self) -> Iterator[Entry]:
        """Yield the entries of an existing file, and then keep it open for more.

        The next ``append`` removes an incomplete entry at the end. If another process writes to the file, or it can't
        be locked, no entry is yielded, and the file is not kept open: only ``begin`` is safe then.

        Raises:
            FileNotFoundError: the file does not exist.
            MessageVersionError: the file is not a journal.
            OSError: the file can't be written.
        """
        self.close()
        file = self.path.open("r+b", buffering=0)
        try:
            if not _has_locked(file):
                file.close()
                return
            end = 0
            with self.path.open("rb") as read:
                for entry, end in entries_of(read):  # noqa: B007 - where the last one ends
                    yield entry
            self._ends_in_half = file.seek(0, os.SEEK_END) > end
            file.seek(end)
        except BaseException:
            file.close()
            raise
        self._file = file

    def append(self, entries: Iterable[Entry]) -> None:
        """Add entries to the file. The operating system writes them to the disk later.

        An empty call only removes an incomplete entry, or the mark of missing entries, from the end.

        Raises:
            OSError: the disk is full. None of the entries is in the file, and its end is marked as incomplete until the
                same entries are added again.
        """
        if self._file is None:
            return
        rest = memoryview(self._replaced_end + b"".join(map(self._pack, entries)))
        before = self._file.tell()
        try:
            if self._ends_in_half:
                self._file.truncate(before)
            # A nearly full disk accepts a part. Only the next write fails.
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._mark_incomplete(self._file, before)
            raise
        self._ends_in_half, self._replaced_end = False, b""

    def _mark_incomplete(self, file: BinaryIO, before: int) -> None:
        """Replace the end of the last entry by the mark, because a full disk has no space to add it."""
        if before and not self._replaced_end:
            before -= len(_INCOMPLETE_MARK) + 1
            self._replaced_end = os.pread(file.fileno(), len(_INCOMPLETE_MARK) + 1, before)
        file.truncate(before + len(_INCOMPLETE_MARK) if self._replaced_end else before)
        file.seek(before)
        if self._replaced_end:
            os.pwrite(file.fileno(), _INCOMPLETE_MARK, before)
        self._ends_in_half = True

    def put_aside(self, last: str) -> Path:
        """Add *last*, the id of the last entry, to the file's name. Return the new path.

        The folder of dict checkpoints beside it is renamed, too.

        Raises:
            OSError: the folder can't be written.
        """
        self.close()
        aside = self.path.with_name(f"{self.path.stem}-{last}{self.path.suffix}")
        self.path.replace(aside)
        folder = self.path.parent
        (folder / ARCHIVED).unlink(missing_ok=True)
        if (folder / DICTS).is_dir():
            (folder / DICTS).rename(folder / f"{DICTS}-{last}")
        return aside

    def close(self) -> None:
        """Close the file. Do nothing if it is closed."""
        if self._file is not None:
            self._file.close()
            self._file, self._ends_in_half, self._replaced_end = None, False, b""

    def read(self) -> Iterator[Entry]:
        """Yield the entries, except an incomplete one that a crash has left at the end.

        Raises:
            FileNotFoundError: the file does not exist.
            MessageVersionError: the file is not a journal.
        """
        with self.path.open("rb") as file:
            for entry, _ in entries_of(file):
                yield entry


def lacks_entries(path: Path, end: int) -> bool:
    """Whether a file is marked as incomplete. *end* is the offset where its last entry ends."""
    with path.open("rb") as file:
        file.seek(end)
        return file.read().endswith(_INCOMPLETE_MARK)


def incomplete(path: Path, experiment: str) -> CopyIncomplete:
    """Return the error for a copy that lacks entries."""
    return CopyIncomplete(
        f"{path} lacks the last entries of experiment {experiment!r}, because it could not be written: free disk "
        f"space, then `mqtune drive {experiment}` or the same script adds them from Redis"
    )


def gone(copy: JournalFile, experiment: str, why: str) -> JournalGone:
    """Return the error for a lost experiment that can't be restored from its copy."""
    return JournalGone(
        f"Redis no longer has experiment {experiment!r}: it was emptied, or set back to an earlier state. It can't be "
        f"restored from {copy.path}: {why}. `mqtune show` shows the rest of it; start it again under another name"
    )


def definition_in(copy: JournalFile, experiment: str) -> bytes | None:
    """Return the newest definition in a copy.

    None if it is missing or the copy of another experiment.

    Raises:
        JournalGone: the copy can't be read.
    """
    definition: dict[str, object] = {}
    try:
        for number, entry in enumerate(copy.read()):
            event = decode_event(entry.data)
            if not number:
                if not isinstance(event, ExperimentCreated) or event.name != experiment:
                    return None
                definition = dict(event.definition)
            elif isinstance(event, DriverStarted):
                definition.update(event.changes)
    except FileNotFoundError:
        return None
    except (OSError, MessageVersionError) as error:
        raise gone(copy, experiment, str(error)) from None
    return encode_value(definition) if definition else None


def is_written(path: Path) -> bool:
    """Whether a driver is writing the file. A driver locks the file until it ends."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            # A file system without locks.
            return False
    return False


def entries_of(file: BinaryIO) -> Iterator[tuple[Entry, int]]:
    """Yield the complete entries of a copy or chapter, each with the offset where it ends.

    It reads from the file's position on.

    Raises:
        MessageVersionError: the file is not a journal.
    """
    start = file.tell()
    unpacker = msgpack.Unpacker(file, max_buffer_size=0)
    # This is Entry(…) in half the time, because there may be a million reports.
    new, kind = tuple.__new__, Entry
    try:
        for entry in unpacker:
            id_, data = entry
            if type(entry) is not list or type(id_) is not str or type(data) is not bytes:
                raise TypeError(f"an entry should be a list of id and bytes, and is {entry!r:.100}")
            yield new(kind, entry), start + unpacker.tell()
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise MessageVersionError(f"{file.name} is damaged, or is not a journal of mqtune: {error}") from None


def _has_locked(file: BinaryIO) -> bool:
    """Lock a file until it is closed. Return False if it can't be locked.

    Another driver has the lock then, which may be frozen, or the file system has no locks.
    """
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


logger = logging.getLogger(__name__)

#: The most entries of one read of new entries. The driver serves its timers between reads.
NEWS_COUNT: Final = 1_000


class JournalReader:
    """Reads a journal once and in order, and writes its local copy.

    If the copy can't be written, reading continues. The copy then lacks the newest entries, but has no gap, until
    ``complete`` succeeds.

    Args:
        copy: its copy. It may lack the newest entries, or be another journal's.
    """

    def __init__(self, journal: Journal, copy: JournalFile) -> None:
        #: The id of the last entry that was read.
        self.last = START.entry
        #: The most entries of the next read. It limits the memory, and the time until timers are served.
        self.count = FIRST_COUNT
        self._journal = journal
        self._copy = copy
        #: Whether ``finish`` has copied entries of workers or clients, which the driver has not processed.
        self._has_unprocessed = False
        #: The id of the last entry in the copy.
        self._copied = START.entry
        #: Whether the copy lacks entries because it could not be written.
        self._is_behind = False
        #: Whether the journal must not be read any more.
        self.is_closed = False
        #: Whether the copy's file is open and has entries of this journal only.
        self._has_begun = False
        #: Entries that were read and are not in the copy yet. Another thread may call ``read`` and need them.
        self._gathered: list[Entry] = []
        self._gathering = threading.Lock()

    def catch_up(self) -> dict[Cursor, list[Event]]:
        """Read the whole journal and complete the copy. Return the drivers' events by their cursors.

        Entries that the copy already has are read from there. A copy of another journal is renamed and not deleted: it
        may be the only rest of an earlier experiment of this name.

        Raises:
            JournalGone: the journal has no entry, or lacks entries that the copy has. Nothing was changed.
        """
        if self._journal.keeps:
            try:
                return driver_events(self._copy_and_rest())
            except BrokerUnavailable:
                raise
            except (OSError, MessageVersionError, _AnotherJournal) as error:
                logger.debug("the copy %s is rewritten: %s", self._copy.path, error)
        self.last = self._copied = START.entry
        try:
            self._put_aside()
            self._begin()
        except OSError as error:
            self._fall_behind(error)
        return driver_events(self._read_rest())

    def read(self) -> Iterator[Entry]:
        """Yield all entries that were read so far, from the copy if it has them all.

        Raises:
            CopyIncomplete: the copy lacks some, and the reader is closed.
        """
        self.write()
        if self._is_behind and self.is_closed:
            raise incomplete(self._copy.path, self._journal.experiment)
        if not self._is_behind:
            yield from self._copy.read()
            return
        for entries in self._read_again(START.entry):
            yield from entries

    @property
    def is_taken_in(self) -> bool:
        """Whether the copy has all entries that were read, and the driver has processed them all."""
        return not self._is_behind and not self._has_unprocessed

    def close(self) -> None:
        """Stop reading from the journal and close the copy. ``read`` still works."""
        self.write()
        self.is_closed = True
        self._copy.close()

    def gather(self, entries: Sequence[Entry]) -> None:
        """Note that these entries were read. The next ``write`` appends them to the copy."""
        self.last = entries[-1].id
        with self._gathering:
            self._gathered += entries
        if len(self._gathered) >= MOST_COUNT:
            self.write()

    def write(self) -> None:
        """Append the gathered entries to the copy. Raise the errors of ``keep``."""
        if self._gathered:
            with self._gathering:
                if self._gathered:
                    self._append(self._gathered)
                    self._gathered = []

    def keep(self, entries: Sequence[Entry]) -> None:
        """Note that these entries were read, and append them to the copy.

        Raises:
            OSError: the copy can't be written, and the journal can't be read a second time.
        """
        self.write()
        self.last = entries[-1].id
        self.count = next_count(self.count, entries, NEWS_COUNT)
        self._append(entries)

    def _append(self, entries: Sequence[Entry]) -> None:
        if self._is_behind:
            return
        try:
            self._copy.append(entries)
            self._copied = entries[-1].id
        except OSError as error:
            self._fall_behind(error)

    def finish(self, read_back: Callable[[Sequence[Entry]], object] = lambda _: None) -> None:
        """Read to the journal's end and complete the copy, or warn that it can't be completed.

        *read_back* is called with the entries of each read.
        """
        self.write()
        while entries := self._journal.read(self.last, count=self.count):
            self.keep(entries)
            read_back(entries)
            self._has_unprocessed = self._has_unprocessed or not all(map(_is_of_driver, entries))
        if not self.complete():
            name = self._journal.experiment
            logger.warning(
                "%s lacks the last entries of experiment %r: free disk space, and run the same script or `mqtune drive "
                "%s` to add them",
                self._copy.path,
                name,
                name,
            )

    def complete(self) -> bool:
        """Add the missing entries to the copy. Return False if it still can't be written."""
        if not self._is_behind:
            return True
        try:
            if not self._has_begun:
                self._begin()
            for entries in self._read_again(self._copied):
                self._copy.append(entries)
                self._copied = entries[-1].id
        except BrokerUnavailable:
            raise
        except OSError as error:
            logger.debug("%s still can't be written: %s", self._copy.path, error)
            return False
        self._is_behind = False
        logger.warning("%s could be written again, and is complete", self._copy.path)
        return True

    def _read_again(self, after: str) -> Iterator[list[Entry]]:
        """Yield pages of the entries after an id, up to the last entry that was read before."""
        if after == self.last:
            return
        for entries in pages(self._journal, after):
            known = [entry.id for entry in entries]
            if self.last in known:
                yield entries[: known.index(self.last) + 1]
                return
            yield entries

    def _begin(self) -> None:
        self._copy.begin([])
        self._has_begun = True

    def _fall_behind(self, error: OSError) -> None:
        if not self._journal.keeps:
            raise error
        self._is_behind = True
        logger.warning(
            "the local copy %s can't be written (%s): the experiment continues, because its journal in Redis has all "
            "entries; free disk space, then the missing ones are added",
            self._copy.path,
            error,
            extra={"action": "copy_behind", "path": str(self._copy.path)},
        )

    def _put_aside(self) -> None:
        """Rename a copy of another journal, except a simulation's, which is overwritten."""
        path, first, last, driver = self._copy.path, None, None, None
        try:
            for entry in self._copy.read():
                first, last = first or entry, entry
                if driver is None and isinstance(event := decode_event(entry.data), DriverStarted):
                    driver = event.driver
        except FileNotFoundError:
            return
        except (OSError, MessageVersionError) as error:
            problem = f"it can't be read: {error}"
        else:
            if last is None or driver == SIMULATION:
                return
            if first == self._journal.first() and self._journal.holds(last.id):
                return
            problem = "it belongs to an earlier experiment of that name"
        aside = self._copy.put_aside(last.id if last else f"{path.stat().st_mtime_ns // 1_000_000}-0")
        name = self._journal.experiment
        logger.warning(
            "%s is not a copy of the experiment %r in Redis (%s); it was renamed to %s", path, name, problem, aside
        )

    def _copy_and_rest(self) -> Iterator[Entry]:
        """Yield the copy's entries and then the rest of the journal.

        Raises:
            _AnotherJournal: it is the copy of another journal. Nothing was changed.
            JournalGone: the journal has no entry, or lacks entries that the copy has. Nothing was changed.
        """
        first = before = last = None
        for entry in self._copy.go_on():
            yield entry
            first = first or entry
            before, last = last, entry
        if first is None or last is None:
            raise _AnotherJournal
        # Entries are only ever added. If the first entry is equal, and the last one and the one before follow each
        # other in the journal, it is the copy of this journal.
        after = START.entry if before is None else before.id
        begins = self._journal.first()
        # An experiment that has begun has an entry, unless Redis has lost it just now.
        if begins is None or (first == begins and not self._journal.holds(last.id)):
            raise JournalGone(f"Redis has lost the last entries of experiment {self._journal.experiment!r}")
        if [first, last] != [begins, *self._journal.read(after, count=1)]:
            raise _AnotherJournal
        self._has_begun = True
        self.last = self._copied = last.id
        yield from self._read_rest()
        if not self._is_behind:
            try:
                self._copy.append([])
            except OSError as error:
                self._fall_behind(error)

    def _read_rest(self) -> Iterator[Entry]:
        for entries in pages(self._journal, self.last):
            self.keep(entries)
            yield from entries


def _is_of_driver(entry: Entry) -> bool:
    return getattr(decode_event(entry.data, entry.id), "cursor", None) is not None


class _AnotherJournal(Exception):
    """The copy is of another journal."""
