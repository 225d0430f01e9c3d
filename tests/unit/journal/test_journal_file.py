from __future__ import annotations

import contextlib
import errno
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from mqtune.core.codec import encode_value
from mqtune.core.errors import JournalGone, MessageVersionError
from mqtune.core.events import START, DriverStarted, ExperimentCreated
from mqtune.journal import Entry, JournalFile, definition_in, entries_of, lacks_entries

ENTRIES = [Entry(f"{n}-0", bytes(range(n)) * 50) for n in range(1, 8)]


@pytest.fixture
def file(tmp_path: Path) -> JournalFile:
    return JournalFile(tmp_path / "journal.msgpack")


def lacks(file: JournalFile) -> bool:
    with file.path.open("rb") as read:
        ends = [0, *(end for _, end in entries_of(read))]
    return lacks_entries(file.path, ends[-1])


@contextlib.contextmanager
def full_disk(file: JournalFile, room: int) -> Iterator[None]:
    """Let no file of this process be longer than this one with this number of additional bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.path.stat().st_size + room, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


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


def test_beginning_replaces_what_was_there_once_the_new_journal_is_whole(file: JournalFile) -> None:
    def broken() -> Iterator[Entry]:
        yield ENTRIES[0]
        raise OSError(errno.ENOSPC, "No space left on device")

    file.begin(ENTRIES)
    with pytest.raises(OSError, match="No space"):
        file.begin(broken())
    assert list(file.read()) == ENTRIES
    file.begin(ENTRIES[:1])
    file.append(ENTRIES[4:5])
    file.close()
    assert list(file.read()) == [ENTRIES[0], ENTRIES[4]]
    assert [path.name for path in file.path.parent.iterdir()] == ["journal.msgpack"]


@given(cut=st.integers(0, len(b"".join(encode_value(list(entry)) for entry in ENTRIES)) - 1))
def test_an_entry_that_was_cut_off_by_a_crash_is_removed(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    file = JournalFile(tmp_path_factory.getbasetemp() / "cut.msgpack")
    file.begin(ENTRIES)
    file.close()
    file.path.write_bytes(file.path.read_bytes()[:cut])
    found = list(file.read())
    assert found == ENTRIES[: len(found)]
    assert sum(len(encode_value(list(entry))) for entry in ENTRIES[: len(found) + 1]) > cut
    assert list(file.go_on()) == found
    # A shorter one, behind which nothing of the other may be left.
    file.append(ENTRIES[:1])
    file.close()
    assert list(file.read()) == [*found, ENTRIES[0]]


@pytest.mark.parametrize("is_another", [False, True], ids=["this driver", "the next driver"])
@pytest.mark.parametrize("room", [0, 1, 30, 500])
def test_a_file_on_a_full_disk_has_whole_entries_only(file: JournalFile, room: int, *, is_another: bool) -> None:
    file.begin(ENTRIES[:2])
    with full_disk(file, room):
        for _ in range(2):
            with pytest.raises(OSError, match="too large"):
                file.append(ENTRIES[2:])
            assert list(file.read()) == ENTRIES[:1]
            assert lacks(file)
    assert file.path.stat().st_size < sum(len(encode_value(list(entry))) for entry in ENTRIES[:2])
    if is_another:
        # A driver that is killed right after it begins changes nothing.
        for _ in range(2):
            file.close()
            assert lacks(file)
            assert list(file.go_on()) == ENTRIES[:1]
        file.append(ENTRIES[1:2])
    file.append(ENTRIES[2:])
    assert list(file.read()) == ENTRIES
    assert not lacks(file)
    file.close()


def test_a_file_that_another_driver_still_has_is_not_gone_on_with(file: JournalFile) -> None:
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
def test_a_file_that_is_no_journal_is_named_and_stays_as_it_is(file: JournalFile, data: bytes) -> None:
    file.path.write_bytes(data)
    for entries in (file.read(), file.go_on()):
        with pytest.raises(MessageVersionError, match=str(file.path)):
            list(entries)
    assert file.path.read_bytes() == data
    with pytest.raises(FileNotFoundError):
        list(JournalFile(file.path.with_name("other")).go_on())


def test_the_newest_definition_is_in_the_copy_of_an_experiment_and_no_other(file: JournalFile) -> None:
    assert definition_in(file, "x") is None
    created = ExperimentCreated(name="x", definition={"seed": 1, "mode": "min"}, at=1.0)
    later = DriverStarted(driver="d", version="1", at=2.0, cursor=START, changes={"mode": "max"})
    file.begin([Entry("1-0", created.encode()), Entry("2-0", later.encode())])

    assert definition_in(file, "x") == encode_value({"seed": 1, "mode": "max"})
    assert definition_in(file, "y") is None

    file.begin([Entry("1-0", later.encode())])
    assert definition_in(file, "x") is None
    file.close()
    file.path.write_bytes(b"no journal")
    with pytest.raises(JournalGone, match=r"restored from .*: .* is not a journal of mqtune"):
        definition_in(file, "x")
