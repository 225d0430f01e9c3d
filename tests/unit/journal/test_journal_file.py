from __future__ import annotations

import errno
import io
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from mqtune.core.codec import encode_value
from mqtune.core.errors import MessageVersionError
from mqtune.journal import Entry, JournalFile, entries_of, lacks_entries

ENTRIES = [Entry(f"{n}-0", bytes(range(n)) * 50) for n in range(1, 8)]


@pytest.fixture
def file(tmp_path: Path) -> JournalFile:
    return JournalFile(tmp_path / "journal.msgpack")


def test_entries_come_back_in_order_and_unchanged_at_once_also_in_another_process(file: JournalFile) -> None:
    with pytest.raises(FileNotFoundError):
        list(file.read())
    file.append(ENTRIES)
    entries = [*ENTRIES, Entry("8-0", bytes(20 * 2**20))]
    file.begin(entries[:2])
    file.append(entries[2:5])
    file.append([])
    assert list(JournalFile(file.path).read()) == entries[:5]
    file.append(entries[5:])

    assert list(file.read()) == entries
    file.close()
    file.close()
    # Nothing is taken before it has begun, or once it is closed.
    file.append(entries)
    assert list(file.read()) == entries


def test_beginning_replaces_what_was_there(file: JournalFile) -> None:
    file.begin(ENTRIES)
    file.begin(ENTRIES[:1])
    file.append(ENTRIES[4:5])
    file.close()

    assert list(file.read()) == [ENTRIES[0], ENTRIES[4]]
    assert [path.name for path in file.path.parent.iterdir()] == ["journal.msgpack"]


def test_the_old_journal_is_there_until_the_new_one_is_whole(file: JournalFile) -> None:
    file.begin(ENTRIES)
    file.close()

    def broken() -> object:
        yield ENTRIES[0]
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        file.begin(broken())  # type: ignore[arg-type]

    assert list(file.read()) == ENTRIES


@given(cut=st.integers(0, len(b"".join(encode_value(list(entry)) for entry in ENTRIES)) - 1))
def test_an_entry_that_was_cut_off_by_a_crash_is_left_out(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    file = JournalFile(tmp_path_factory.getbasetemp() / "cut.msgpack")
    file.begin(ENTRIES)
    file.close()
    file.path.write_bytes(file.path.read_bytes()[:cut])

    found = list(file.read())

    assert found == ENTRIES[: len(found)]
    assert sum(len(encode_value(list(entry))) for entry in ENTRIES[: len(found) + 1]) > cut


def lacks(file: JournalFile) -> bool:
    with file.path.open("rb") as read:
        ends = [0, *(end for _, end in entries_of(read))]
    return lacks_entries(file.path, ends[-1])


class FullDisk(io.RawIOBase):
    """A file on a disk that takes so many more bytes."""

    def __init__(self, path: Path, room: int) -> None:
        self._file = path.open("r+b", buffering=0)
        self._file.seek(0, io.SEEK_END)
        self.room = room

    def write(self, data: bytes) -> int:  # type: ignore[override]
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = self._file.write(data[: self.room])
        self.room -= taken
        return taken

    def tell(self) -> int:
        return self._file.tell()

    def fileno(self) -> int:
        return self._file.fileno()

    def truncate(self, size: int | None = None) -> int:
        return self._file.truncate(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def close(self) -> None:
        self._file.close()


@pytest.mark.parametrize("room", [0, 1, 30, 500])
def test_a_full_disk_is_an_error_and_leaves_whole_entries_that_more_can_follow(file: JournalFile, room: int) -> None:
    file.begin(ENTRIES[:2])
    file.close()
    disk = FullDisk(file.path, room)
    file._file = disk  # type: ignore[assignment]

    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            file.append(ENTRIES[2:])
        assert list(file.read()) == ENTRIES[:1]
        assert lacks(file)
    assert file.path.stat().st_size < sum(len(encode_value(list(entry))) for entry in ENTRIES[:2])

    disk.room = 10**6
    file.append(ENTRIES[2:])
    assert list(file.read()) == ENTRIES
    assert not lacks(file)


@pytest.mark.parametrize("room", [0, 1, 30])
def test_a_file_that_lacks_entries_says_so_until_it_has_them(file: JournalFile, room: int) -> None:
    file.begin(ENTRIES[:2])
    file.close()
    file._file = FullDisk(file.path, room)  # type: ignore[assignment]
    with pytest.raises(OSError, match="No space"):
        file.append(ENTRIES[2:])
    file.close()
    assert lacks(file)

    # A driver that begins and is killed at once changes nothing.
    kept = list(file.go_on())
    file.close()
    assert lacks(file)

    assert list(file.go_on()) == kept
    file.append(ENTRIES[len(kept) :])
    file.close()
    assert not lacks(file)
    assert list(file.read()) == ENTRIES


# Going on.


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_half_an_entry_that_a_crash_has_left_is_taken_away(file: JournalFile, cut: int) -> None:
    file.begin(ENTRIES)
    file.close()
    file.path.write_bytes(file.path.read_bytes()[:-cut])

    assert list(file.go_on()) == ENTRIES[:-1]
    # A shorter one, behind which nothing of the other may be left.
    file.append(ENTRIES[:1])
    file.close()

    assert list(file.read()) == [*ENTRIES[:-1], ENTRIES[0]]


def test_a_file_that_another_driver_still_has_is_not_gone_on_with(file: JournalFile) -> None:
    """It may be frozen, and write when it thaws; begun anew, the file is another one, which it does not see."""
    file.begin(ENTRIES[:2])
    heir = JournalFile(file.path)

    assert list(heir.go_on()) == []
    heir.append(ENTRIES[2:])
    heir.begin(ENTRIES[:1])
    file.append(ENTRIES[5:])
    heir.append(ENTRIES[1:2])

    assert list(heir.read()) == ENTRIES[:2]
    file.close()
    heir.close()


def test_what_is_no_journal_is_not_gone_on_with_and_stays_as_it_is(file: JournalFile) -> None:
    file.path.write_bytes(b"not a journal")

    with pytest.raises(MessageVersionError, match="not a journal"):
        list(file.go_on())

    assert file.path.read_bytes() == b"not a journal"
    with pytest.raises(FileNotFoundError):
        list(JournalFile(file.path.with_name("other")).go_on())


def test_a_write_that_is_done_in_pieces_is_done_whole(file: JournalFile) -> None:
    class Slow(FullDisk):
        def write(self, data: bytes) -> int:  # type: ignore[override]
            return self._file.write(data[:7])

    file.begin([])
    file.close()
    file._file = Slow(file.path, 0)  # type: ignore[assignment]

    file.append(ENTRIES)
    file.close()

    assert list(file.read()) == ENTRIES


@pytest.mark.parametrize(
    "data",
    [
        b"not a journal",
        b"\xc1",
        encode_value({"a": 1}),
        encode_value([1, b"x"]),
        encode_value(["1-0", "x"]),
        encode_value(["1-0", b"x", 3]),
        encode_value(["1-0", b"x"]) + b"\x00" * 3,
        encode_value(["1-0"]),
        encode_value({"1-0": b"a", "2-0": b"b"}),
        encode_value("ab"),
    ],
)
def test_a_file_that_is_no_journal_is_a_clear_error_that_names_it(file: JournalFile, data: bytes) -> None:
    file.path.write_bytes(data)

    with pytest.raises(MessageVersionError, match=str(file.path)):
        list(file.read())
