"""A driver moves its journal's oldest entries into chapters, and no later reader misses one."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

import pytest
from bench import NAME, Bench
from losing import set_back, snapshot
from waiting import eventually

from mqtune.checkpoints import CheckpointStore, DirectoryStore
from mqtune.core.events import START, ExperimentEnded
from mqtune.core.timing import Timing
from mqtune.journal import JOURNAL_FILE, Entry, JournalFile, MemoryJournal, Room, chapter_bytes

TIMING: Final = Timing()
KEEP_LOCK_S: Final = TIMING.keep_lock_s

ONE = "0001"

JOURNAL_MB = 0.02

#: A store that was away is asked again by then.
RETRY_S = 60.0

#: The bytes of a chapter there.
SIZE = chapter_bytes(int(JOURNAL_MB * 10**6))


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    store = DirectoryStore(tmp_path / "store")
    store.create()
    return store


@pytest.fixture
def bench(tmp_path: Path, store: CheckpointStore) -> Bench:
    return Bench(tmp_path, store=store, trims=True, journal_mb=JOURNAL_MB).step().start(ONE)


def look(bench: Bench) -> None:
    """Have the driver keep its lock, and carry out what comes of that in its thread."""
    bench.clock.now += KEEP_LOCK_S
    bench.step()


def fill(bench: Bench, size: int) -> list[Entry]:
    """Have a trial report until the journal has grown by this size, and return all entries."""
    before = sum(len(entry.data) for entry in everything(bench))
    while sum(len(entry.data) for entry in everything(bench)) < before + size:
        bench.report(ONE, *(0.5,) * 20)
    return everything(bench)


def everything(bench: Bench) -> list[Entry]:
    return MemoryJournal(bench.server, NAME).read(START.entry, count=10**6)


def on_server(bench: Bench) -> int:
    return sum(len(entry.data) for entry in bench.server.experiments[NAME].entries)


def has_trimmed(bench: Bench, count: int) -> bool:
    look(bench)
    return len(bench.journal.chapters()) >= count


def state_of(experiment: Any) -> list[Any]:
    return [(t.id, t.status, t.reports, repr(t.best_value)) for t in experiment.trials.values()]


def test_the_server_keeps_the_newest_entries_and_nobody_misses_the_others(bench: Bench, store: CheckpointStore) -> None:
    for _ in range(5):
        before = fill(bench, 2 * SIZE)
        eventually(lambda: has_trimmed(bench, len(bench.journal.chapters()) + 1))
        assert everything(bench) == before
    eventually(lambda: look(bench) or on_server(bench) < 2 * SIZE)

    chapters = bench.journal.chapters()
    assert sum(each.size for each in chapters) + on_server(bench) == sum(len(entry.data) for entry in before)
    assert on_server(bench) >= SIZE
    assert [each.id for each in chapters] == sorted(store.ids(), key=[each.id for each in chapters].index)
    assert list(JournalFile(bench.folder / JOURNAL_FILE).read()) == before
    # In a folder of its own, as on another machine.
    assert state_of(bench.replayed()) == state_of(bench.experiment)
    assert list(JournalFile(bench.folder / "replayed" / JOURNAL_FILE).read())[: len(before)] == before


def test_a_full_server_keeps_fewer_bytes(
    tmp_path: Path, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, store=store, trims=True).step().start(ONE)
    for _ in range(9):
        bench.report(ONE, 0.5, note="x" * 60_000)  # type: ignore[arg-type]
    before = everything(bench)
    look(bench)
    assert bench.journal.chapters() == []

    monkeypatch.setattr(bench.journal, "room", lambda: Room(used=2, most=1))
    eventually(lambda: look(bench) or on_server(bench) < 200_000)

    assert everything(bench) == before


def test_a_store_that_is_away_holds_nothing_up_is_said_once_and_tried_again(
    bench: Bench, store: CheckpointStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    (tmp_path / "store").rename(tmp_path / "unmounted")
    fill(bench, 3 * SIZE)
    look(bench)
    eventually(lambda: look(bench) or "stay in Redis for now" in caplog.text)
    bench.clock.now += RETRY_S
    look(bench)
    bench.report(ONE, 0.1)
    assert bench.trial(ONE).best_value == 0.1

    (tmp_path / "unmounted").rename(tmp_path / "store")
    bench.clock.now += RETRY_S
    eventually(lambda: has_trimmed(bench, 1))

    assert caplog.text.count("stay in Redis for now") == caplog.text.count("leave Redis again") == 1


@pytest.mark.parametrize("how", ["emptied", "set back"])
def test_entries_wait_for_an_away_store(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    fill(bench, 4 * SIZE)
    eventually(lambda: has_trimmed(bench, 2))
    early = snapshot(bench.server)
    before = fill(bench, SIZE // 2)
    set_back(bench.server, early if how == "set back" else None)
    (tmp_path / "store").rename(tmp_path / "unmounted")

    bench.journal.outages += 1
    bench.step(2)

    assert everything(bench)[: len(before)] == before
    assert "Redis gets back what could be in its store" in caplog.text
    assert bench.journal.chapters() == []
    (tmp_path / "unmounted").rename(tmp_path / "store")
    eventually(lambda: has_trimmed(bench, 2))
    assert everything(bench)[: len(before)] == before


def test_an_emptied_server_gets_back_what_is_behind_the_chapters(bench: Bench, store: CheckpointStore) -> None:
    fill(bench, 4 * SIZE)
    eventually(lambda: has_trimmed(bench, 2))
    before, ids = everything(bench), store.ids()
    set_back(bench.server)

    bench.journal.outages += 1
    bench.step(2)

    assert everything(bench)[: len(before)] == before
    assert on_server(bench) < 3 * SIZE
    assert store.ids() == ids


def test_a_journal_that_another_driver_has_trimmed_is_trimmed_on(bench: Bench, store: CheckpointStore) -> None:
    fill(bench, 3 * SIZE)
    eventually(lambda: has_trimmed(bench, 1))
    before = fill(bench, 3 * SIZE)
    count = len(bench.journal.chapters())

    # Of this one's, which knows nothing of the first one's chapters.
    bench.begin()
    eventually(lambda: has_trimmed(bench, count + 1))

    assert everything(bench)[: len(before)] == before
    assert not bench.of(ExperimentEnded)


def test_a_driver_that_died_while_it_trimmed_is_followed_well(bench: Bench, store: CheckpointStore) -> None:
    before = fill(bench, 3 * SIZE)
    look(bench)
    eventually(lambda: len(store.ids()) == 2)
    assert bench.journal.chapters() == []

    bench.begin()
    eventually(lambda: has_trimmed(bench, 2))

    assert everything(bench)[: len(before)] == before
    assert sorted(each.id for each in bench.journal.chapters()) == store.ids()
    bench.driver.close()
    assert len(store.ids()) == 2, "what no event names is no checkpoint to be collected"
