"""A journal in a file: the driver's local copy, which outlives the server and is what results are read from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgpack

from mqtune.errors import MessageVersionError
from mqtune.journal.base import Entry
from mqtune.wire import encode_value

__all__ = ["JOURNAL_FILE", "JournalFile"]

JOURNAL_FILE: Final = "journal.msgpack"


class JournalFile:
    """Entries one behind the other, each as msgpack ``[id, event]``; written by one driver, read by anybody."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None

    def begin(self, entries: Iterable[Entry]) -> None:
        """Write the file anew with these entries, in one step, and leave it open for more.

        Raises:
            OSError: the folder can't be written.
        """
        self.close()
        aside = self.path.with_suffix(".new")
        with aside.open("wb") as file:
            file.writelines(encode_value([entry.id, entry.data]) for entry in entries)
        aside.replace(self.path)
        self._file = self.path.open("ab", buffering=0)

    def append(self, entries: Iterable[Entry]) -> None:
        """Add entries; they are in the file when this returns, and on the disk when the system puts them there.

        Raises:
            OSError: the disk is full; none of the entries is in the file, and they may be added again.
        """
        if self._file is None:
            return
        rest = memoryview(b"".join(encode_value([entry.id, entry.data]) for entry in entries))
        before = self._file.tell()
        try:
            # A disk that is nearly full takes a part and says so only at the next write.
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            # What follows half an entry could not be read.
            self._file.truncate(before)
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
            unpacker = msgpack.Unpacker(file, max_buffer_size=0)
            try:
                for entry in unpacker:
                    id_, data = entry
                    if type(entry) is not list or type(id_) is not str or type(data) is not bytes:
                        raise TypeError(f"an entry is {entry!r:.100}")
                    yield Entry(id_, data)
            except (ValueError, TypeError, msgpack.UnpackException) as error:
                raise MessageVersionError(f"{self.path} is not a journal: {error}") from None
