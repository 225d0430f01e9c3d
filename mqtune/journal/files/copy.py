"""The local copy of a journal: the file that holds it, and the reader that fills it."""

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
from mqtune.core.errors import BrokerUnavailable, CopyIncomplete, JournalGone, MessageVersionError
from mqtune.core.events import (
    START,
    Cursor,
    DriverStarted,
    Event,
    ExperimentCreated,
    decode_event,
    driver_events,
)
from mqtune.core.machine import ARCHIVED, DICTS, SIMULATION, replace_file
from mqtune.journal.base import Entry, Journal
from mqtune.journal.files.reading import FIRST_COUNT, MOST_COUNT, next_count, pages

JOURNAL_FILE: Final = "journal.msgpack"
#: The end of a file that lacks entries: a byte that msgpack never uses, in half an entry. A crash alone leaves other
#: halves.
_LACKS_ENTRIES: Final = b"\xc1\xc1"


class JournalFile:
    """A file of entries, each as msgpack ``[id, event]``; one driver writes it, anybody reads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        #: Whether the file ends in half an entry.
        self._ends_in_half = False
        #: The end of the last entry, which the mark of missing entries has replaced.
        self._cut = b""
        # A packer of its own is made in twice the time that it takes to pack.
        self._pack = msgpack.Packer().pack

    def begin(self, entries: Iterable[Entry]) -> None:
        """Replace the file by one with these entries, in one step, and keep it open for more.

        A driver that still writes to the replaced file changes nothing.

        Raises:
            OSError: the folder can't be written.
        """
        self.close()
        replace_file(self.path, map(self._pack, entries))
        self._file = self.path.open("r+b", buffering=0)
        self._file.seek(0, os.SEEK_END)
        _has_locked(self._file)

    def go_on(self) -> Iterator[Entry]:
        """Yield the entries of the file, and then keep it open for more.

        Half an entry at the end goes with the next ``append``. A file that another process writes to, or that can't be
        locked, yields nothing and is not opened: only ``begin`` is safe then.

        Raises:
            FileNotFoundError: there is no such file.
            MessageVersionError: it is no journal.
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
        """Add entries to the file; the system writes them to the disk later.

        Without entries, the file is whole from then on.

        Raises:
            OSError: the disk is full; none of the entries is in the file, which says that it lacks some until they are
                added again.
        """
        if self._file is None:
            return
        rest = memoryview(self._cut + b"".join(map(self._pack, entries)))
        before = self._file.tell()
        try:
            if self._ends_in_half:
                self._file.truncate(before)
            # A disk that is nearly full takes a part and says so only at the next write.
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._say_incomplete(self._file, before)
            raise
        self._ends_in_half, self._cut = False, b""

    def _say_incomplete(self, file: BinaryIO, before: int) -> None:
        """Replace the end of the last entry by the mark: a full disk has no room for more."""
        if before and not self._cut:
            before -= len(_LACKS_ENTRIES) + 1
            self._cut = os.pread(file.fileno(), len(_LACKS_ENTRIES) + 1, before)
        file.truncate(before + len(_LACKS_ENTRIES) if self._cut else before)
        file.seek(before)
        if self._cut:
            os.pwrite(file.fileno(), _LACKS_ENTRIES, before)
        self._ends_in_half = True

    def put_aside(self, last: str) -> Path:
        """Rename the file and the dicts beside it by the id of its last entry. Return its new path.

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
        """Close the file; a no-op when it is closed."""
        if self._file is not None:
            self._file.close()
            self._file, self._ends_in_half, self._cut = None, False, b""

    def read(self) -> Iterator[Entry]:
        """Yield the entries, except an incomplete one at the end, which a crash has left.

        Raises:
            FileNotFoundError: there is no such file.
            MessageVersionError: it is no journal.
        """
        with self.path.open("rb") as file:
            for entry, _ in entries_of(file):
                yield entry


def lacks_entries(path: Path, end: int) -> bool:
    """Return whether a file, whose last entry ends at *end*, has the mark of missing entries."""
    with path.open("rb") as file:
        file.seek(end)
        return file.read().endswith(_LACKS_ENTRIES)


def incomplete(path: Path, experiment: str) -> CopyIncomplete:
    """Return the error that a copy lacks entries."""
    return CopyIncomplete(
        f"{path} lacks the end of experiment {experiment!r}, as it could not be written: make room, and "
        f"`mqtune drive {experiment}` or the same script fills it in from Redis"
    )


def gone(copy: JournalFile, experiment: str, why: str) -> JournalGone:
    """Return the error that a server has lost an experiment, which its copy can't restore."""
    return JournalGone(
        f"Redis no longer has experiment {experiment!r}: it was emptied, or set back to an earlier state. It can't be "
        f"put back from {copy.path}: {why}. What there is of it can be read with `mqtune show`; start it again under "
        f"another name"
    )


def definition_in(copy: JournalFile, experiment: str) -> bytes | None:
    """Return the newest definition in a copy. Return None if it is not this experiment's.

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
    """Return whether a driver writes the file now. It keeps the file locked until it ends."""
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
    """Yield a copy's or a chapter's complete entries from here on, each with its end's offset.

    Raises:
        MessageVersionError: the file is no journal.
    """
    start = file.tell()
    unpacker = msgpack.Unpacker(file, max_buffer_size=0)
    # As Entry(…), in half the time: there may be a million reports.
    new, kind = tuple.__new__, Entry
    try:
        for entry in unpacker:
            id_, data = entry
            if type(entry) is not list or type(id_) is not str or type(data) is not bytes:
                raise TypeError(f"an entry is {entry!r:.100}")
            yield new(kind, entry), start + unpacker.tell()
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise MessageVersionError(f"{file.name} is not a journal: {error}") from None


def _has_locked(file: BinaryIO) -> bool:
    """Lock a file until it is closed. Return False if another driver, perhaps frozen, has it."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


logger = logging.getLogger(__name__)

#: The most entries of one read of news, between two of which timers are served.
NEWS_COUNT: Final = 1_000


class JournalReader:
    """Reads a journal once and in order, and writes the local copy of it.

    The journal is the truth and the copy a convenience. If the copy can't be written, reading continues; until
    ``complete`` it has complete entries, without a gap.

    Args:
        journal: the journal to read.
        copy: a file with the same entries, or the first of them.
    """

    def __init__(self, journal: Journal, copy: JournalFile) -> None:
        #: The id of the last entry that was read.
        self.last = START.entry
        #: The most entries of one read of news: few enough for memory, and for timers between two reads.
        self.count = FIRST_COUNT
        self._journal = journal
        self._copy = copy
        #: Whether the copy has entries of others' that were read when the driver had come to its end.
        self._has_passed = False
        #: The id of the last entry in the copy.
        self._kept = START.entry
        self._is_behind = False
        #: Whether it reads no more of the journal.
        self.is_closed = False
        #: Whether the file is open, and of this journal.
        self._has_begun = False
        #: Entries that were read and are not in the copy yet; another thread may want to read them.
        self._gathered: list[Entry] = []
        self._gathering = threading.Lock()

    def catch_up(self) -> dict[Cursor, list[Event]]:
        """Read the whole journal, complete the copy, and return drivers' events by their cursors.

        Entries that the copy already has are read from there. A copy of another journal is put aside: it may be all
        that is left of an earlier experiment of this name.

        Raises:
            JournalGone: the journal lacks entries of the copy, or has no entry; nothing was changed.
        """
        if self._journal.keeps:
            try:
                return driver_events(self._behind_copy())
            except BrokerUnavailable:
                raise
            except (OSError, MessageVersionError, _AnotherJournal) as error:
                logger.debug("the copy %s is rewritten: %s", self._copy.path, error)
        self.last = self._kept = START.entry
        try:
            self._put_aside()
            self._begin()
        except OSError as error:
            self._fall_behind(error)
        return driver_events(self._rest())

    def read(self) -> Iterator[Entry]:
        """Yield the entries that were read so far.

        Raises:
            CopyIncomplete: the copy could not be written, and the journal is not to be asked any more.
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
        """Whether the copy has all entries that were read, and the driver has processed all of them."""
        return not self._is_behind and not self._has_passed

    def close(self) -> None:
        """Stop reading from the journal, and close the copy, which can still be read."""
        self.write()
        self.is_closed = True
        self._copy.close()

    def gather(self, entries: Sequence[Entry]) -> None:
        """Note that these entries were read, which ``write`` appends to the copy, soon."""
        self.last = entries[-1].id
        with self._gathering:
            self._gathered += entries
        if len(self._gathered) >= MOST_COUNT:
            self.write()

    def write(self) -> None:
        """Append to the copy what was gathered for it.

        Raises:
            as ``keep``.
        """
        if self._gathered:
            with self._gathering:
                if self._gathered:
                    self._append(self._gathered)
                    self._gathered = []

    def keep(self, entries: Sequence[Entry]) -> None:
        """Note that these entries were read, and append them to the copy.

        Raises:
            OSError: the copy can't be written, and the journal forgets what was read.
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
            self._kept = entries[-1].id
        except OSError as error:
            self._fall_behind(error)

    def finish(self, read_back: Callable[[Sequence[Entry]], object] = lambda _: None) -> None:
        """Read to the journal's end and complete the copy, or warn that it can't be completed.

        *read_back* is told what was read.
        """
        self.write()
        while entries := self._journal.read(self.last, count=self.count):
            self.keep(entries)
            read_back(entries)
            self._has_passed = self._has_passed or not all(map(_is_of_driver, entries))
        if not self.complete():
            name = self._journal.experiment
            logger.warning(
                "%s lacks the end of experiment %r: make room, and run the same script or `mqtune drive %s` to fill it "
                "in",
                self._copy.path,
                name,
                name,
            )

    def complete(self) -> bool:
        """Complete a copy up to the last entry read. Return False if it still can't be written."""
        if not self._is_behind:
            return True
        try:
            if not self._has_begun:
                self._begin()
            for entries in self._read_again(self._kept):
                self._copy.append(entries)
                self._kept = entries[-1].id
        except BrokerUnavailable:
            raise
        except OSError as error:
            logger.debug("%s still can't be written: %s", self._copy.path, error)
            return False
        self._is_behind = False
        logger.warning("%s could be written again, and has everything", self._copy.path)
        return True

    def _read_again(self, after: str) -> Iterator[list[Entry]]:
        """Yield the entries after an entry, up to the last one that was read."""
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
            "the local copy %s can't be written (%s): the experiment goes on, as its journal in Redis has everything; "
            "make room, and what is missing is filled in",
            self._copy.path,
            error,
            extra={"action": "copy_behind", "path": str(self._copy.path)},
        )

    def _put_aside(self) -> None:
        """Rename a copy with entries of another journal. A simulation's is overwritten."""
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
            problem = "it is of an earlier experiment of that name"
        aside = self._copy.put_aside(last.id if last else f"{path.stat().st_mtime_ns // 1_000_000}-0")
        name = self._journal.experiment
        logger.warning(
            "%s is not a copy of experiment %r as Redis has it (%s); it was renamed %s", path, name, problem, aside
        )

    def _behind_copy(self) -> Iterator[Entry]:
        """Yield the copy's entries and then the rest of the journal, if the copy is of this journal.

        Raises:
            _AnotherJournal: it is not; nothing was changed.
            JournalGone: it is of an earlier state of this journal, or that has no entry; nothing was changed.
        """
        first = before = last = None
        for entry in self._copy.go_on():
            yield entry
            first = first or entry
            before, last = last, entry
        if first is None or last is None:
            raise _AnotherJournal
        # Entries are only ever added: with its first and its last ones alike, and nothing between the last two, it is
        # this one's.
        after = START.entry if before is None else before.id
        begins = self._journal.first()
        # An experiment that has been begun has an entry, unless that was lost just now.
        if begins is None or (first == begins and not self._journal.holds(last.id)):
            raise JournalGone(f"Redis has lost the end of experiment {self._journal.experiment!r}")
        if [first, last] != [begins, *self._journal.read(after, count=1)]:
            raise _AnotherJournal
        self._has_begun = True
        self.last = self._kept = last.id
        yield from self._rest()
        if not self._is_behind:
            try:
                self._copy.append([])
            except OSError as error:
                self._fall_behind(error)

    def _rest(self) -> Iterator[Entry]:
        for entries in pages(self._journal, self.last):
            self.keep(entries)
            yield from entries


def _is_of_driver(entry: Entry) -> bool:
    return getattr(decode_event(entry.data, entry.id), "cursor", None) is not None


class _AnotherJournal(Exception):
    """The copy is of another journal."""
