from __future__ import annotations

import errno
import logging
from collections.abc import Iterable
from pathlib import Path

import pytest

from mqtune.core.events import START, ExperimentCreated, ExperimentEnded
from mqtune.core.machine import DICTS
from mqtune.journal import Entry, JournalFile, JournalReader, MemoryJournal, MemoryServer


class FullDisk(JournalFile):
    """A copy on a disk that may be full."""

    is_full = False

    def begin(self, entries: Iterable[Entry]) -> None:
        self._refuse()
        super().begin(entries)

    def append(self, entries: Iterable[Entry]) -> None:
        self._refuse()
        super().append(entries)

    def _refuse(self) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")


class Writer:
    """The journal of one experiment, with this number of events."""

    def __init__(self, events: int, name: str = "x") -> None:
        self.server = MemoryServer()
        self.journal = MemoryJournal(self.server, name)
        self.journal.lock("driver", "", 600)
        self.journal.record(ExperimentCreated(name=name, definition={}, at=1.0).encode())
        self.write(events - 1)

    def write(self, events: int) -> None:
        for _ in range(events):
            self.journal.record(ExperimentEnded(outcome=str(self.size), reason="", at=2.0, cursor=START).encode())

    @property
    def size(self) -> int:
        return len(self.entries)

    @property
    def entries(self) -> list[Entry]:
        return MemoryJournal(self.server, self.journal.experiment).read("0-0", count=10**6)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.msgpack"


def read_new(reader: JournalReader, journal: MemoryJournal) -> None:
    entries = journal.read(reader.last, count=1000)
    if entries:
        reader.keep(entries)


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 500])
def test_what_there_was_is_read_twice_and_is_in_the_copy(path: Path, size: int) -> None:
    nothing = JournalReader(MemoryJournal(MemoryServer(), "x"), JournalFile(path.with_name("other")))
    assert (nothing.catch_up(), list(nothing.read())) == ({}, [])
    nothing.close()
    writer, copy = Writer(size), JournalFile(path)
    reader = JournalReader(writer.journal, copy)

    pending = reader.catch_up()

    assert [event.outcome for event in pending.get(START, [])] == [str(n) for n in range(1, size)]  # type: ignore[union-attr]
    assert list(reader.read()) == writer.entries
    assert reader.last == writer.entries[-1].id
    copy.close()
    assert list(copy.read()) == writer.entries


def fill(path: Path, entries: list[Entry]) -> None:
    copy = JournalFile(path)
    copy.begin(entries)
    copy.close()


@pytest.mark.parametrize(
    "copied",
    [
        Writer(5, name="y").entries,
        [Entry("1-0", b"\x01"), *Writer(5).entries[1:]],
        [*Writer(5).entries[:3], Writer(5).entries[4]],
        b"not a journal",
        b"",
    ],
    ids=["another experiment", "another beginning", "a gap", "no journal", "nothing"],
)
def test_a_foreign_copy_is_put_aside(path: Path, copied: list[Entry] | bytes, caplog: pytest.LogCaptureFixture) -> None:
    path.write_bytes(copied) if isinstance(copied, bytes) else fill(path, copied)
    before = path.read_bytes()
    dict_file = path.parent / DICTS / "m-0001-1-1"
    dict_file.parent.mkdir()
    dict_file.write_bytes(b"the state of its trial")
    writer, copy = Writer(10), JournalFile(path)
    reader = JournalReader(writer.journal, copy)

    pending = reader.catch_up()

    assert len(pending[START]) == 9
    assert list(reader.read()) == writer.entries
    copy.close()
    assert list(copy.read()) == writer.entries
    aside = list(path.parent.glob("journal-*.msgpack"))
    if copied == b"" or (isinstance(copied, list) and copied[:3] == writer.entries[:3]):
        # The journal has all their entries.
        assert aside == []
        assert dict_file.exists()
    else:
        assert [each.read_bytes() for each in aside] == [before]
        assert f"it was renamed to {aside[0]}" in caplog.text
        kept = path.parent / aside[0].name.replace("journal", DICTS).removesuffix(".msgpack") / dict_file.name
        assert kept.read_bytes() == b"the state of its trial"
        assert not dict_file.exists()


def test_a_disk_that_is_full_is_said_once_and_the_reading_goes_on(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer, copy = Writer(3), FullDisk(path)
    reader = JournalReader(writer.journal, copy)
    reader.catch_up()
    copy.is_full = True

    for _ in range(3):
        writer.write(20)
        read_new(reader, writer.journal)
        assert not reader.complete()

    assert reader.last == writer.entries[-1].id
    assert [record.levelno for record in caplog.records if record.levelno >= logging.WARNING] == [logging.WARNING]
    assert f"the local copy {path} can't be written ([Errno 28] No space left on device)" in caplog.text
    assert list(copy.read()) == writer.entries[:3]
    assert list(reader.read()) == writer.entries
    writer.write(1)
    copy.is_full = False
    assert reader.complete()
    assert list(copy.read()) == writer.entries[:-1], "what was not read yet is not filled in"
    for _ in range(2):
        writer.write(1)
        read_new(reader, writer.journal)
        assert list(copy.read()) == writer.entries
    assert "is complete" in caplog.text
    copy.close()


@pytest.mark.parametrize("had", [0, 5])
def test_a_driver_begins_on_a_full_disk_with_what_the_copy_had_and_the_rest_comes_later(path: Path, had: int) -> None:
    writer = Writer(5)
    if had:
        fill(path, writer.entries)
    writer.write(5)
    copy = FullDisk(path)
    reader = JournalReader(writer.journal, copy)
    copy.is_full = True

    pending = reader.catch_up()

    assert len(pending[START]) == 9
    assert list(reader.read()) == writer.entries
    assert not had or list(copy.read()) == writer.entries[:had]
    assert not reader.complete()
    copy.is_full = False
    assert reader.complete()
    assert list(copy.read()) == writer.entries
    copy.close()


@pytest.mark.parametrize("how", ["write", "keep", "read", "close"])
def test_what_is_gathered_is_in_the_copy_once_it_is_written_or_read_or_more_is_kept(path: Path, how: str) -> None:
    writer, copy = Writer(3), JournalFile(path)
    reader = JournalReader(writer.journal, copy)
    reader.catch_up()
    writer.write(3)
    reader.gather(writer.entries[3:4])
    reader.gather(writer.entries[4:5])
    assert reader.last == writer.entries[4].id
    assert list(copy.read()) == writer.entries[:3]

    if how == "keep":
        reader.keep(writer.entries[5:])
    elif how == "read":
        assert list(reader.read()) == writer.entries[:5]
    else:
        for _ in range(2):
            getattr(reader, how)()

    assert list(copy.read()) == writer.entries[: 6 if how == "keep" else 5]
    copy.close()
