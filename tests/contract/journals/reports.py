"""What a journal promises of reports."""

from __future__ import annotations

import math
from typing import Any

import pytest
from contract.journals.world import (
    ASSIGNMENT,
    HELD,
    LONG_S,
    ONE,
    OTHER,
    THREE,
    TWO,
    InWorld,
    decided,
    ended,
    entries,
    reported,
    saved,
    segment,
    staged,
    unlike,
)

from mqtune.core.events import Reports, decode_event
from mqtune.core.trial import Intent, TrialId
from mqtune.journal import FENCED, GAP, WAIT, Claim, DriverState, Journal, Order, Segment


class ReportContract(InWorld):
    """Each is journaled once, in order, from who holds the lease."""

    def test_reports_are_journaled_as_one_entry_that_decodes_to_what_was_sent(
        self, worker: Journal, held: Claim
    ) -> None:
        batch = segment(held, 1, 3, raw=b"a b\n\x00", loss=math.inf)

        assert worker.report([batch]) == [""]

        event = decode_event(entries(worker)[-1].data)
        assert isinstance(event, Reports)
        assert [(r.trial, r.attempt, r.sequence, r.timestamp) for r in event] == [
            (ONE, 1, n, 100.0 + n) for n in (1, 2, 3)
        ]
        assert [r.metrics for r in event] == [{"n": n, "raw": b"a b\n\x00", "loss": math.inf} for n in (1, 2, 3)]

    def test_a_segment_that_is_sent_again_is_not_journaled_again(
        self, driver: Journal, worker: Journal, held: Claim
    ) -> None:
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

    @pytest.mark.parametrize(("first", "count"), [(2, 1), (4, 1), (4, 3), (9, 1)])
    def test_reports_behind_a_gap_are_refused(self, worker: Journal, held: Claim, first: int, count: int) -> None:
        sent = 0 if first == 2 else 2
        if sent:
            worker.report([segment(held, 1, sent)])

        assert worker.report([segment(held, first, count)]) == [GAP]

        assert worker.report([segment(held, sent + 1)]) == [""]
        assert reported(worker)[-1] == [(ONE, 1, sent + 1)]

    def test_a_segment_that_was_cut_anew_is_refused_and_not_written_in_part(self, worker: Journal, held: Claim) -> None:
        worker.report([segment(held, 1, 3)])

        assert worker.report([segment(held, 2, 3)]) == [GAP]

        assert reported(worker) == [[(ONE, 1, 1), (ONE, 1, 2), (ONE, 1, 3)]]

    @pytest.mark.parametrize(
        "change", [{"token": OTHER}, {"attempt": 2}, {"trial": THREE}, {"token": ""}, {"trial": TWO, "token": ""}]
    )
    def test_reports_of_anyone_but_the_holder_are_refused(
        self, driver: Journal, worker: Journal, held: Claim, change: dict[str, Any]
    ) -> None:
        driver.stage(TWO, 1, ASSIGNMENT, staged(TWO))

        assert worker.report([segment(unlike(held, **change), 1)]) == [FENCED]

        assert reported(worker) == []

    def test_reports_after_the_end_are_refused_and_the_next_attempt_counts_its_own_anew(
        self, driver: Journal, worker: Journal, held: Claim
    ) -> None:
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

    def test_a_full_journal_takes_what_comes_and_has_each_attempt_that_goes_on_wait_with_more(
        self, driver: Journal, worker: Journal, held: Claim
    ) -> None:
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

    def test_who_asks_without_a_report_hears_that_there_is_room_again_and_nothing_is_written(
        self, driver: Journal, worker: Journal, held: Claim
    ) -> None:
        assert self.asked(worker, held) == ""
        self.limit(driver, 1)
        before = entries(driver)

        assert self.asked(worker, held) == WAIT
        self.limit(driver, 10**9)
        assert self.asked(worker, held) == ""
        assert self.asked(worker, unlike(held, token="another")) == FENCED

        assert entries(driver) == before
