"""What a journal promises of reports and checkpoints, and its readers."""

from __future__ import annotations

import math
import threading
from typing import Any, Final

import pytest
from contract.journals.world import (
    ASSIGNMENT,
    HELD,
    HELD_TOO,
    LONG_S,
    ONE,
    OTHER,
    SHORT_S,
    STORED,
    THREE,
    TWO,
    InWorld,
    World,
    closed,
    decided,
    dropped,
    ended,
    entries,
    kinds,
    reported,
    saved,
    segment,
    staged,
    unlike,
)
from waiting import DEADLINE_S

from mqtune.core.events import Reports, decode_event
from mqtune.core.trial import Intent, TrialId
from mqtune.journal import FENCED, GAP, WAIT, Claim, DriverState, Entry, Journal, Order, Segment


class ReportContract(InWorld):
    """Each is journaled once, in order, from who holds the lease."""

    def test_reports_are_one_entry_that_decodes_to_what_was_sent(self, worker: Journal, held: Claim) -> None:
        batch = segment(held, 1, 3, raw=b"a b\n\x00", loss=math.inf)

        assert worker.report([batch]) == [""]

        event = decode_event(entries(worker)[-1].data)
        assert isinstance(event, Reports)
        assert [(r.trial, r.attempt, r.sequence, r.timestamp) for r in event] == [
            (ONE, 1, n, 100.0 + n) for n in (1, 2, 3)
        ]
        assert [r.metrics for r in event] == [{"n": n, "raw": b"a b\n\x00", "loss": math.inf} for n in (1, 2, 3)]

    def test_a_segment_that_is_sent_again_is_not_new(self, driver: Journal, worker: Journal, held: Claim) -> None:
        other = self.start(driver, worker, TWO)
        worker.report([segment(held, 1, 2)])
        assert worker.report([segment(held, 1, 2)]) == [""]
        assert worker.report([segment(held, 3, 2), segment(other, 1)]) == ["", ""]
        assert worker.report([segment(held, 1, 2), segment(other, 2)]) == ["", ""]
        before = entries(worker)
        assert worker.report([segment(held, 3, 2)]) == [""]
        assert worker.report([segment(unlike(held, token=OTHER), 5)]) == [FENCED]
        assert worker.report([]) == []
        assert entries(worker) == before, "a batch of which nothing is new makes no entry"
        assert reported(worker) == [[(ONE, 1, 1), (ONE, 1, 2)], [(ONE, 1, 3), (ONE, 1, 4), (TWO, 1, 1)], [(TWO, 1, 2)]]

    @pytest.mark.parametrize(("sent", "first", "count"), [(1, 3, 1), (2, 4, 1), (2, 4, 3), (2, 9, 1), (3, 2, 3)])
    def test_reports_behind_a_gap_or_cut_anew_are_refused(
        self, worker: Journal, held: Claim, sent: int, first: int, count: int
    ) -> None:
        assert worker.report([segment(held, 2)]) == [GAP]
        worker.report([segment(held, 1, sent)])

        assert worker.report([segment(held, first, count)]) == [GAP]

        assert worker.report([segment(held, sent + 1)]) == [""]
        assert reported(worker) == [[(ONE, 1, n + 1) for n in range(sent)], [(ONE, 1, sent + 1)]]

    @pytest.mark.parametrize(
        "change", [{"token": OTHER}, {"attempt": 2}, {"trial": THREE}, {"token": ""}, {"trial": TWO, "token": ""}]
    )
    def test_reports_and_checkpoints_of_anyone_but_the_holder_are_refused(
        self, driver: Journal, worker: Journal, held: Claim, change: dict[str, Any]
    ) -> None:
        driver.stage(TWO, 1, ASSIGNMENT, staged(TWO))
        before, stranger = entries(worker), unlike(held, **change)

        assert worker.report([segment(stranger, 1)]) == [FENCED]
        assert worker.put_checkpoint(stranger, HELD, b"data") == FENCED
        assert worker.saved(stranger, {HELD: saved(HELD)}) == FENCED

        assert (worker.checkpoint(HELD), entries(worker)) == (None, before)

    def test_reports_after_the_end_are_refused(self, driver: Journal, worker: Journal, held: Claim) -> None:
        worker.report([segment(held, 1)])
        worker.end(held, ended())
        assert worker.report([segment(held, 2)]) == [FENCED]
        assert worker.report([segment(held, 1)]) == [FENCED]
        second = self.start(driver, worker, attempt=2)
        assert worker.report([segment(second, 2)]) == [GAP]
        assert worker.report([segment(second, 1)]) == [""]
        assert reported(worker) == [[(ONE, 1, 1)], [(ONE, 2, 1)]]

    def test_a_batch_keeps_what_is_right_and_drops_what_is_refused(self, driver: Journal, worker: Journal) -> None:
        claims = [self.start(driver, worker, trial) for trial in (ONE, TWO, THREE)]
        gone = Claim(TrialId("0009"), 1, "t")
        worker.end(claims[0], ended(ONE))
        driver.intend(THREE, 1, Intent.PAUSE, decided(THREE), ended(THREE))

        answers = worker.report(
            [segment(claims[0], 1), segment(claims[1], 1, 2), segment(gone, 1), segment(claims[2], 1)]
        )

        assert answers == [FENCED, "", FENCED, "pause"]
        assert reported(worker) == [[(TWO, 1, 1), (TWO, 1, 2), (THREE, 1, 1)]]

    @staticmethod
    def limit(driver: Journal, most_bytes: int) -> None:
        driver.heartbeat("driver-1", LONG_S, DriverState(most_bytes=most_bytes))

    @staticmethod
    def size_of(journal: Journal) -> int:
        return sum(len(entry.data) for entry in entries(journal))

    @staticmethod
    def asked(worker: Journal, claim: Claim) -> str:
        """What the journal answers to an attempt that sends nothing."""
        (answer,) = worker.report([Segment(claim, 0, 0, 0.0, b"")])
        return answer

    def test_the_bytes_of_all_entries_are_counted(self, driver: Journal, worker: Journal, held: Claim) -> None:
        worker.report([segment(held, 1, 3)])
        worker.saved(held, {HELD: saved(HELD)})
        worker.end(held, ended())

        server = driver.heartbeat("driver-1", LONG_S, DriverState())

        assert server.journal_bytes == self.size_of(driver) > 0

    def test_a_full_journal_takes_what_comes_and_says_wait(self, driver: Journal, worker: Journal, held: Claim) -> None:
        first, second = segment(held, 1, 2), segment(held, 3)
        self.limit(driver, self.size_of(driver) + 1)

        assert worker.report([first]) == [WAIT]
        assert worker.report([first, segment(unlike(held, token="another"), 3)]) == [WAIT, FENCED]
        assert worker.saved(held, {HELD: saved(HELD)}) == WAIT
        assert driver.order([Order.save(ONE, 1, 1)])
        assert worker.report([second]) == [f"save:1 {WAIT}"]
        driver.intend(ONE, 1, Intent.STOP, decided(), ended())
        assert worker.report([segment(held, 4)]) == ["stop"]

        assert reported(worker) == [[(ONE, 1, 1), (ONE, 1, 2)], [(ONE, 1, 3)], [(ONE, 1, 4)]]

    def test_who_asks_without_a_report_hears_of_room_again(self, driver: Journal, worker: Journal, held: Claim) -> None:
        assert self.asked(worker, held) == ""
        self.limit(driver, 1)
        before = entries(driver)

        assert self.asked(worker, held) == WAIT
        self.limit(driver, 10**9)
        assert self.asked(worker, held) == ""
        assert self.asked(worker, unlike(held, token="another")) == FENCED

        assert entries(driver) == before


class ReadContract(InWorld):
    """Entries have one order for everybody."""

    def test_a_read_begins_behind_its_id_and_takes_no_more_than_it_was_asked_for(
        self, driver: Journal, worker: Journal, held: Claim, world: World
    ) -> None:
        for first in range(1, 9):
            worker.report([segment(held, first)])
        everything = entries(driver)

        assert entries(worker) == everything
        ids = [tuple(map(int, entry.id.split("-"))) for entry in everything]
        assert ids == sorted(set(ids))
        assert [n for batch in reported(worker) for _, _, n in batch] == list(range(1, 9))
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


#: The most that a checkpoint in memory may have.
MAX_DATA: Final = 1_000_000


class CheckpointContract(InWorld):
    """What is held is held until it is dropped; each checkpoint is journaled once."""

    @pytest.mark.parametrize("data", [b"", b"\x00\xff \r\n", bytes(range(256)) * (MAX_DATA // 256)], ids=len)
    def test_a_checkpoint_can_be_had_as_it_was_put_first_by_anybody_of_its_experiment(
        self, worker: Journal, held: Claim, world: World, data: bytes
    ) -> None:
        before = entries(worker)
        assert worker.checkpoint(HELD) is None

        for each in (data, b"another"):
            assert worker.put_checkpoint(held, HELD, each) == ""

        assert world.journal().checkpoint(HELD) == data
        assert world.journal("y").checkpoint(HELD) is None
        assert entries(worker) == before, "it is no news"

    def test_a_lost_checkpoint_is_brought_and_others_stay(self, driver: Journal, worker: Journal, held: Claim) -> None:
        worker.put_checkpoint(held, HELD, b"as it was")

        for checkpoint in (HELD, HELD_TOO):
            driver.bring_checkpoint(checkpoint, b"brought")

        assert (driver.checkpoint(HELD), driver.checkpoint(HELD_TOO)) == (b"as it was", b"brought")

    @pytest.mark.parametrize("how", ["ended", "superseded"])
    def test_checkpoints_of_a_past_attempt_are_refused(
        self, driver: Journal, worker: Journal, held: Claim, how: str
    ) -> None:
        if how == "ended":
            worker.end(held, ended())
        else:
            driver.stage(ONE, 2, ASSIGNMENT, staged(ONE, 2))
        before = entries(worker)

        assert worker.put_checkpoint(held, HELD, b"data") == FENCED
        assert worker.saved(held, {HELD: saved(HELD)}) == FENCED

        assert worker.checkpoint(HELD) is None
        assert entries(worker) == before

    def test_what_is_dropped_is_gone_and_the_rest_stays(
        self, driver: Journal, worker: Journal, held: Claim, world: World
    ) -> None:
        worker.put_checkpoint(held, HELD, b"one")
        worker.put_checkpoint(held, HELD_TOO, b"two")

        driver.drop_checkpoints([HELD, STORED], dropped(HELD, STORED))

        assert worker.checkpoint(HELD) is None
        assert worker.checkpoint(HELD_TOO) == b"two"
        assert entries(driver)[-1].data == dropped(HELD, STORED)
        # What was written again is dropped again, and journaled once, also by the next driver.
        worker.put_checkpoint(held, HELD, b"one")
        driver.drop_checkpoints([HELD, STORED], dropped(HELD, STORED))
        assert worker.checkpoint(HELD) is None
        driver.drop_checkpoints([], dropped())
        driver.unlock("driver-1")
        heir = world.journal()
        heir.lock("driver-2", "", LONG_S)
        heir.drop_checkpoints([HELD, STORED], dropped(HELD, STORED))
        assert kinds(driver).count("CheckpointsDropped") == 1
