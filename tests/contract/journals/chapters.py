"""What a journal promises where its oldest entries are in chapters, in the experiment's store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from contract.journals.world import LONG_S, InWorld, World, closed, entries
from waiting import DEADLINE_S

from mqtune.checkpoints import CheckpointStore, open_store
from mqtune.core.codec import encode_value
from mqtune.core.errors import ChapterUnavailable
from mqtune.core.timing import Timing
from mqtune.journal import JOURNAL_FILE, Chapter, DriverState, Entry, Journal, JournalFile, cut_chapters, keep_chapter

#: The bytes of a chapter: some entries of those that are written here.
SIZE = 200


def cuts(journal: Journal, folder: Path) -> list[Any]:
    """The chapters that a whole journal has."""
    path = folder / "copy.msgpack"
    with closing(JournalFile(path)) as copy:
        copy.begin(entries(journal))
    return list(cut_chapters(path, 0, SIZE))


class ChapterContract(InWorld):
    """Whoever reads meets each entry once, in order, wherever it is, and nothing leaves the server that would not be found."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> CheckpointStore:
        store = open_store(str(tmp_path / "store"))
        store.create()
        return store

    @pytest.fixture
    def filled(self, driver: Journal, store: CheckpointStore) -> list[Entry]:
        """The entries of a journal that has several chapters' bytes, on the server."""
        driver.record(closed("0"), definition=encode_value({"store": store.url}))
        for number in range(1, 40):
            driver.record(closed(f"{number}"))
        return entries(driver)

    @pytest.fixture
    def trim(
        self, driver: Journal, filled: list[Entry], store: CheckpointStore, tmp_path: Path
    ) -> Callable[[int], list[Chapter]]:
        """Moves so many chapters into the store, and returns all of them."""
        assert len(filled) == 40
        found = iter(cuts(driver, tmp_path))

        def move(count: int) -> list[Chapter]:
            for _, cut in zip(range(count), found, strict=False):
                keep_chapter(store, cut)
                chapters = driver.chapters()
                assert driver.trim(cut.chapter, chapters[-1].last if chapters else "") is not None
            return driver.chapters()

        return move

    def test_a_store_that_hangs_is_an_error_in_time_and_nobody_waits_for_it_twice(
        self,
        monkeypatch: pytest.MonkeyPatch,
        driver: Journal,
        store: CheckpointStore,
        filled: list[Entry],
        trim: Callable[[int], list[Chapter]],
    ) -> None:
        trim(2)
        answers, fetch = threading.Event(), type(store).fetch

        def hang(*asked: Any) -> object:
            answers.wait(DEADLINE_S)
            return fetch(*asked)

        monkeypatch.setattr(type(store), "fetch", hang)
        driver.timing = Timing(chapter_answer_s=0.5)
        try:
            for least_s, most_s in ((0.5, DEADLINE_S), (0.0, 0.4)):
                began = time.monotonic()
                with pytest.raises(ChapterUnavailable, match="its store has not answered for"):
                    entries(driver)
                assert least_s <= time.monotonic() - began < most_s
        finally:
            answers.set()
        driver.timing = Timing(chapter_answer_s=DEADLINE_S)

        assert entries(driver) == filled

    def test_what_was_not_written_is_not_there_although_the_entries_around_it_are_in_a_chapter(
        self, driver: Journal, filled: list[Entry], trim: Callable[[int], list[Chapter]]
    ) -> None:
        trim(2)

        for id_ in (filled[0].id, filled[2].id):
            time, _, number = id_.partition("-")
            assert not driver.holds(f"{time}-{int(number) + 1_000}")

    def test_an_entry_leaves_the_server_once_and_only_behind_the_chapter_that_it_follows(
        self, driver: Journal, filled: list[Entry], store: CheckpointStore, tmp_path: Path
    ) -> None:
        found = cuts(driver, tmp_path)
        for cut in found:
            keep_chapter(store, cut)
        before = driver.heartbeat("driver-1", LONG_S, DriverState()).journal_bytes
        left = before - found[0].chapter.size

        assert driver.trim(found[1].chapter, "") is None
        assert driver.trim(found[0].chapter, "") == left
        assert driver.trim(found[0].chapter, "") == left
        assert driver.trim(found[2].chapter, found[1].chapter.last) is None
        assert driver.trim(found[1].chapter, "") is None
        assert driver.chapters() == [found[0].chapter]

        left -= found[1].chapter.size
        assert driver.trim(found[1].chapter, found[0].chapter.last) == left
        assert driver.heartbeat("driver-1", LONG_S, DriverState()).journal_bytes == left
        assert entries(driver) == filled

    def test_what_is_put_back_goes_on_behind_the_chapters(
        self, driver: Journal, world: World, filled: list[Entry], trim: Callable[[int], list[Chapter]]
    ) -> None:
        chapters = trim(2)
        definition = driver.definition()
        world.set_back(None)
        assert definition is not None
        behind = filled[sum(chapter.entries for chapter in chapters) :]

        driver.restore(lambda: behind, [], [], requests={}, definition=definition, chapters=chapters, first=filled[0])
        driver.record(closed("finished"))

        for reader in (driver, world.journal()):
            found = entries(reader)
            assert found[:-1] == filled
            assert found[-1].data == closed("finished")
            assert reader.first() == filled[0]
            assert all(reader.holds(entry.id) for entry in found)
        server = driver.heartbeat("driver-1", LONG_S, DriverState())
        assert server.journal_bytes == sum(len(entry.data) for entry in (*behind, found[-1]))

    @pytest.mark.parametrize("how", ["lost", "damaged", "another's", "not there"])
    def test_a_chapter_that_can_not_be_read_is_named_and_what_is_behind_it_can_be_read(
        self,
        world: World,
        filled: list[Entry],
        trim: Callable[[int], list[Chapter]],
        store: CheckpointStore,
        tmp_path: Path,
        how: str,
    ) -> None:
        first, second = trim(2)
        folder = tmp_path / "store"
        content = folder / first.id / "files" / JOURNAL_FILE
        if how == "lost":
            store.delete(first.id)
        elif how == "damaged":
            content.write_bytes(content.read_bytes()[:-1])
        elif how == "another's":
            # Both whole as far as their manifests say.
            for path in (folder / first.id / "manifest.json", content):
                other = folder / second.id / path.relative_to(folder / first.id)
                path.write_bytes(other.read_bytes())
        else:
            folder.rename(tmp_path / "unmounted")
        reader = world.journal()

        with pytest.raises(ChapterUnavailable, match=f"(?s)'x'.*{tmp_path}/store.*{first.id}.*mqtune show x"):
            reader.read("0-0", count=5)
        with pytest.raises(ChapterUnavailable):
            reader.holds(filled[1].id)

        assert reader.first() == filled[0]
        at = first.entries
        if how != "not there":
            assert reader.read(filled[at - 1].id, count=100) == filled[at:]
        at += second.entries
        assert reader.read(filled[at - 1].id, count=100) == filled[at:]


def cuts_id() -> Any:
    """The id of a chapter that no store has."""
    return f"journal.1.0.{'0' * 64}"
