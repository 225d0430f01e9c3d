"""How chapters are cut from a driver's copy; what a journal makes of them is held by the contract of journals."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from mqtune.checkpoints import open_store
from mqtune.core.codec import encode_value
from mqtune.journal import (
    JOURNAL_FILE,
    Entry,
    JournalFile,
    MemoryJournal,
    MemoryServer,
    checkpoints_in,
    cut_chapters,
    keep_chapter,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / JOURNAL_FILE
    with closing(JournalFile(path)) as copy:
        copy.begin(Entry(f"{number}-0", bytes(20)) for number in range(1, 101))
    return path


def test_the_same_entries_make_the_same_chapters_wherever_they_are_cut(path: Path) -> None:
    found = list(cut_chapters(path, 0, 90))

    assert [(c.chapter.first, c.chapter.last, c.chapter.entries, c.chapter.size) for c in found[:2]] == [
        ("1-0", "5-0", 5, 100),
        ("6-0", "10-0", 5, 100),
    ]
    assert list(cut_chapters(path, found[6].end, 90)) == found[7:]
    assert b"".join(cut.data for cut in found) == path.read_bytes()
    assert len({cut.chapter.id for cut in found}) == len(found) == 20


def test_what_is_too_short_for_a_chapter_and_half_an_entry_are_left(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])

    assert [cut.chapter.last for cut in cut_chapters(path, 0, 33 * 20)] == ["33-0", "66-0", "99-0"]
    assert [cut.chapter.last for cut in cut_chapters(path, 0, 34 * 20)] == ["34-0", "68-0"]


def test_chapters_are_no_checkpoints_and_are_written_once(path: Path, tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    store.create()
    [cut, *_] = cut_chapters(path, 0, 90)

    keep_chapter(store, cut)
    keep_chapter(store, cut)

    assert store.ids() == [cut.chapter.id]
    assert checkpoints_in(store) == []


def test_a_store_at_a_url_of_fsspec_has_them_too(path: Path) -> None:
    pytest.importorskip("fsspec")
    store = open_store(f"memory://chapters-{path.parent.name}")
    store.create()
    server = MemoryServer()
    writer, reader = MemoryJournal(server, "x"), MemoryJournal(server, "x")
    writer.lock("driver", "", 60.0)
    writer.record(b"first", definition=encode_value({"store": store.url}))
    for number in range(9):
        writer.record(bytes([number]) * 20)
    written = writer.read("0-0", count=100)
    with closing(JournalFile(path)) as copy:
        copy.begin(written)
    [cut, *_] = cut_chapters(path, 0, 90)

    keep_chapter(store, cut)
    assert writer.trim(cut.chapter, "")

    assert reader.read("0-0", count=100) == written
    assert checkpoints_in(store) == []
