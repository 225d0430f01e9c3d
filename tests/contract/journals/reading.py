"""What a journal promises its readers."""

from __future__ import annotations

import threading

from contract.journals.world import LONG_S, SHORT_S, InWorld, World, closed, entries, reported, segment
from waiting import DEADLINE_S

from mqtune.journal import Claim, Entry, Journal


class ReadContract(InWorld):
    """Entries have one order for everybody."""

    # Reading.

    def test_entries_have_one_order_for_everybody_and_ids_that_grow(
        self, driver: Journal, worker: Journal, held: Claim
    ) -> None:
        for first in range(1, 51):
            worker.report([segment(held, first)])

        found = entries(driver)

        assert entries(worker) == found
        keys = [tuple(map(int, entry.id.split("-"))) for entry in found]
        assert keys == sorted(set(keys))
        assert [n for batch in reported(worker) for _, _, n in batch] == list(range(1, 51))

    def test_a_read_begins_behind_its_id_and_takes_no_more_than_it_was_asked_for(
        self, driver: Journal, worker: Journal, held: Claim, world: World
    ) -> None:
        for first in range(1, 9):
            worker.report([segment(held, first)])
        everything = entries(driver)

        assert len(everything) == 10
        assert driver.read("0-0", count=3) == everything[:3]
        assert driver.read("0-0", count=3, block_s=LONG_S) == everything[:3]
        assert driver.read(everything[2].id, count=4) == everything[3:7]
        assert driver.read(everything[7].id, count=100) == everything[8:]
        assert driver.read(everything[-1].id, count=100) == []
        for journal, after in ((driver, everything[-1].id), (world.journal("never"), "0-0")):
            assert journal.read(after, count=10) == []
            assert journal.read(after, count=10, block_s=SHORT_S) == []

    def test_a_blocking_read_wakes_for_an_entry(self, driver: Journal, world: World) -> None:
        driver.record(closed("first"))
        last = entries(driver)[-1].id
        found: list[Entry] = []
        reader, reading = world.journal(), threading.Event()

        def read() -> None:
            reading.set()
            while not found:
                found.extend(reader.read(last, count=10, block_s=DEADLINE_S))

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        assert reading.wait(DEADLINE_S)
        driver.record(closed("second"))
        thread.join(DEADLINE_S)

        assert [entry.data for entry in found] == [closed("second")]
