"""A journal in a file: the driver's local copy, which outlives the server and is what results are read from."""

from __future__ import annotations

import fcntl
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgpack

from mqtune.core.errors import MessageVersionError
from mqtune.journal.base import Entry

__all__ = ["JOURNAL_FILE", "JournalFile"]

JOURNAL_FILE: Final = "journal.msgpack"


class JournalFile:
    """Entries one behind the other, each as msgpack ``[id, event]``; written by one driver, read by anybody."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        # A packer of its own is made in twice the time that it takes to pack.
        self._pack = msgpack.Packer().pack

    def begin(self, entries: Iterable[Entry]) -> None:
        """Write the file anew with these entries, in one step, and leave it open for more.

        Whoever still writes to the file that was there writes to one that nobody sees any more.

        Raises:
            OSError: the folder can't be written.
        """
        self.close()
        aside = self.path.with_suffix(".new")
        with aside.open("wb") as file:
            file.writelines(map(self._pack, entries))
        aside.replace(self.path)
        self._file = self.path.open("ab", buffering=0)
        _has_locked(self._file)

    def go_on(self) -> Iterator[Entry]:
        """Yield the entries that the file has, and then leave it open for more behind them.

        Half an entry at the end, which a crash has left, is taken away. A file that another process writes to, or that can't
        be locked, yields nothing and is not opened: only ``begin`` is safe then.

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
                for entry, end in self._entries(read):  # noqa: B007 - where the last one ends
                    yield entry
            file.truncate(end)
            file.seek(end)
        except BaseException:
            file.close()
            raise
        self._file = file

    def append(self, entries: Iterable[Entry]) -> None:
        """Add entries; they are in the file when this returns, and on the disk when the system puts them there.

        Raises:
            OSError: the disk is full; none of the entries is in the file, and they may be added again.
        """
        if self._file is None:
            return
        rest = memoryview(b"".join(map(self._pack, entries)))
        before = self._file.tell()
        try:
            # A disk that is nearly full takes a part and says so only at the next write.
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            # What follows half an entry could not be read.
            self._file.truncate(before)
            self._file.seek(before)
            raise

    def close(self) -> None:
        """Close the file; nothing happens when it is closed."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def read(self) -> Iterator[Entry]:
        """Yield the entries; an entry that was cut off at the end, by a crash, is left out.

        Raises:
            FileNotFoundError: there is no such file.
            MessageVersionError: it is no journal.
        """
        with self.path.open("rb") as file:
            for entry, _ in self._entries(file):
                yield entry

    def _entries(self, file: BinaryIO) -> Iterator[tuple[Entry, int]]:
        """Yield the whole entries of a file, each with where it ends."""
        unpacker = msgpack.Unpacker(file, max_buffer_size=0)
        try:
            for entry in unpacker:
                id_, data = entry
                if type(entry) is not list or type(id_) is not str or type(data) is not bytes:
                    raise TypeError(f"an entry is {entry!r:.100}")
                yield Entry(id_, data), unpacker.tell()
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise MessageVersionError(f"{self.path} is not a journal: {error}") from None


def _has_locked(file: BinaryIO) -> bool:
    """Whether the file is this process's to write to, until it is closed; a driver that was frozen may still have it."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
