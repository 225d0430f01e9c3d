"""What a journal promises when its server has lost something, and where its oldest entries are in chapters in the store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from contract.journals.lock import LockContract
from contract.journals.world import (
    ASSIGNMENT,
    HELD,
    HELD_TOO,
    LONG_S,
    ONE,
    SHORT_S,
    THREE,
    TWO,
    InWorld,
    World,
    closed,
    ended,
    entries,
    segment,
    staged,
    started,
    trial_closed,
)
from waiting import DEADLINE_S

from mqtune.checkpoints import CheckpointStore, open_store
from mqtune.core.codec import encode_value
from mqtune.core.errors import ChapterUnavailable, JournalGone, NameTaken
from mqtune.core.timing import Timing
from mqtune.core.trial import AttemptEnd
from mqtune.journal import (
    FENCED,
    JOURNAL_FILE,
    Chapter,
    Claim,
    DriverState,
    Entry,
    Grant,
    Journal,
    JournalFile,
    LastAttempt,
    cut_chapters,
    keep_chapter,
)


class RestoreContract(InWorld):
    """The driver notices that something is gone, puts back what it has, and nobody else can go on with the rest."""

    @staticmethod
    def put_back(journal: Journal, held: list[Entry], *events: bytes, attempts: tuple[LastAttempt, ...] = ()) -> None:
        journal.restore(lambda: held, attempts, events, requests={}, definition=b"definition")

    @pytest.mark.parametrize("how", ["emptied", "set back"])
    def test_a_driver_is_told_that_what_it_wrote_is_gone(self, world: World, how: str) -> None:
        before = None
        if how == "set back":
            older = world.journal()
            older.lock("driver-0", "process 0 on head", SHORT_S)
            older.record(closed())
            older.unlock("driver-0")
            before = world.snapshot()
        driver = world.journal()
        driver.lock("driver-1", "process 1 on head", LONG_S)
        driver.record(closed())
        world.set_back(before)

        with pytest.raises(JournalGone):
            driver.lock("driver-1", "", LONG_S)
        looks = {"look": lambda journal: journal.look([(ONE, 1)], LONG_S)}
        for call in (LockContract.DRIVER_WRITES | looks).values():
            with pytest.raises(JournalGone):
                call(driver)

        assert len(entries(driver)) == (1 if how == "set back" else 0)

    def test_what_is_put_back_keeps_its_ids_and_leaves_the_lock(self, driver: Journal, world: World) -> None:
        driver.record(closed(), definition=b"definition")
        before = world.snapshot()
        driver.record(closed("interrupted"))
        held = entries(driver)
        world.set_back(before)
        assert [driver.holds(entry.id) for entry in held] == [True, False]
        world.set_back(None)
        self.put_back(driver, held, ended(), ended(TWO))
        driver.record(closed("finished again"))

        found = entries(driver)
        assert found[:2] == held
        assert [entry.data for entry in found[2:]] == [ended(), ended(TWO), closed("finished again")]
        assert driver.read(held[-1].id, count=10) == found[2:]
        assert all(driver.holds(entry.id) for entry in found)
        assert driver.definition() == b"definition"
        driver.lock("driver-1", "", LONG_S)
        with pytest.raises(NameTaken, match="process 1 on head"):
            world.journal().lock("driver-2", "process 2 on head", LONG_S)

    @pytest.mark.parametrize("how", ["emptied", "set back"])
    def test_no_attempt_survives_and_the_next_one_can_be_staged(self, driver: Journal, world: World, how: str) -> None:
        before = None
        worker = world.journal()
        runs, waits = self.start(driver, worker, ONE), Claim(TWO, 1, "token-0002-1")
        worker.report([segment(runs, 1, 2)])
        driver.stage(TWO, 1, ASSIGNMENT, staged(TWO))
        if how == "set back":
            before = world.snapshot()
            worker.report([segment(runs, 3, 2)])
        held = entries(driver)
        world.set_back(before)

        attempts = (LastAttempt(ONE, 1, 102.0), LastAttempt(TWO, 1, 0.0))
        self.put_back(driver, held, ended(ONE, 1, AttemptEnd.LOST), ended(TWO, 1, AttemptEnd.LOST), attempts=attempts)

        found = entries(driver)
        assert worker.report([segment(runs, 5)]) == [FENCED]
        assert worker.renew([runs], LONG_S) == [FENCED]
        assert worker.put_checkpoint(runs, HELD, b"data") == FENCED
        assert worker.end(runs, ended()) is False
        assert worker.claim(waits, "w", LONG_S, started(waits)) == "ended"
        assert driver.expired() == []
        assert driver.unclaimed() == []
        assert driver.stage(ONE, 1, ASSIGNMENT, staged()) is False
        assert driver.close_trial(TWO, 1, trial_closed(TWO)) is True
        assert entries(driver)[:-1] == found
        again = Claim(ONE, 2, "token-0001-2")
        assert driver.stage(ONE, 2, ASSIGNMENT, staged(ONE, 2)) is True
        grant = worker.claim(again, "w", LONG_S, started(again))
        assert isinstance(grant, Grant)
        assert grant.timestamp == 102.0
        assert worker.report([segment(again, 1)]) == [""]

    def test_checkpoints_that_are_still_there_stay(self, driver: Journal, worker: Journal, world: World) -> None:
        claim = self.start(driver, worker, THREE)
        worker.put_checkpoint(claim, HELD, b"data")
        before = world.snapshot()
        worker.put_checkpoint(claim, HELD_TOO, b"more")
        assert driver.checkpoints() == {HELD, HELD_TOO}
        held = entries(driver)
        world.set_back(before)

        self.put_back(driver, held, attempts=(LastAttempt(THREE, 1, 0.0),))

        assert driver.checkpoints() == {HELD}
        assert driver.checkpoint(HELD) == b"data"


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
