from __future__ import annotations

import pytest

from mqtune.core.codec import REPORTS_PREFIX, pack_metrics, segment_bytes
from mqtune.core.errors import UserCodeFailed
from mqtune.core.events import START, AttemptStarted, Cursor, Requested, TrialStaged
from mqtune.core.experiment import Experiment
from mqtune.core.trial import CONTINUE, Decision, Report, Trial, TrialId
from mqtune.driver.deciders import Deciders
from mqtune.driver.plain import PlainReports
from mqtune.driver.screening import Reading, Screening
from mqtune.journal.base import Entry
from mqtune.schedulers.base import FIFO
from mqtune.search.domains import uniform
from mqtune.search.random import RandomSearcher
from mqtune.search.space import Space

ONE, TWO = TrialId("0001"), TrialId("0002")
OTHER = Requested(id="a", action="stop", trial=ONE, arguments={}, by="", at=1.0).encode()


class Scripted(FIFO):
    """Keeps the reports that it is shown, or fails at one."""

    def __init__(self) -> None:
        self.shown: list[tuple[TrialId, int]] = []
        self.fails_at: tuple[TrialId, int] | None = None

    def on_report(self, trial: Trial, report: Report) -> Decision:
        place = report.trial, report.sequence
        if place == self.fails_at:
            raise ValueError("no")
        self.shown.append(place)
        return CONTINUE


class Taker:
    """Two running trials, whose reports are taken in."""

    def __init__(self) -> None:
        self.experiment = Experiment("x", metric="loss", mode="min")
        self.scheduler = Scripted()
        self.scheduler.bind("loss", "min")
        for trial in (ONE, TWO):
            self.experiment.apply(TrialStaged(trial=trial, attempt=1, config={}, at=1.0, cursor=START))
            self.experiment.apply(AttemptStarted(trial=trial, attempt=1, worker="w", host="h", devices=[], at=2.0))
        screening = Screening(self.experiment, self.scheduler, None, Reading())
        searcher = RandomSearcher(Space({"lr": uniform(0, 1)}), seed=0)
        self.listeners: list[object] = []
        self.looks = 0
        self.plain = PlainReports(
            self.experiment,
            Deciders(self.experiment, self.scheduler, searcher, None, screening),
            self.listeners,
            look=self._look,
            act=lambda report, verdict: None,
        )

    def _look(self) -> None:
        self.looks += 1

    def take(self, *entries: bytes, awaited: tuple[str, ...] = (), is_plain: bool = True) -> Entry | None:
        """Take entries 1-0, 2-0, and so on."""
        numbered = enumerate(Entry(f"{number}-0", data) for number, data in enumerate(entries, 1))
        return self.plain.take(numbered, awaited, is_plain=is_plain)


def reports(*parts: tuple[TrialId, int, int]) -> bytes:
    """A batch: for each part the trial, the first sequence number, and how many."""
    packed = [
        segment_bytes(t, 1, n, [pack_metrics(5.0, {"loss": 1.0 / (n + i)}) for i in range(count)])
        for t, n, count in parts
    ]
    return REPORTS_PREFIX + b"\xdd" + len(packed).to_bytes(4, "big") + b"".join(packed)


@pytest.fixture
def taker() -> Taker:
    return Taker()


def test_it_looks_again_after_each_entry_that_others_take_as_they_may_be_slow(taker: Taker) -> None:
    numbered = enumerate([Entry("1-0", OTHER), Entry("2-0", OTHER), Entry("3-0", OTHER)], 1)

    for looks in (1, 2, 3):
        assert taker.plain.take(numbered, ()) is not None
        assert taker.looks == looks


def test_nothing_to_take_changes_no_place(taker: Taker) -> None:
    taker.plain.place = Cursor("7-0", 3)

    assert taker.take() is None
    assert taker.take(reports()) is None

    assert taker.plain.place == ("7-0", 3)


def test_an_entry_of_another_kind_is_returned_and_the_others_wait(taker: Taker) -> None:
    numbered = enumerate([Entry("1-0", reports((ONE, 1, 1))), Entry("2-0", OTHER), Entry("3-0", reports((ONE, 2, 1)))])

    assert taker.plain.take(numbered, ()) == ("2-0", OTHER)
    assert taker.plain.place == ("1-0", 1)
    assert taker.plain.take(numbered, ()) is None
    assert taker.plain.place == ("3-0", 1)


@pytest.mark.parametrize(
    "damaged",
    [
        reports((ONE, 2, 2))[:-1],
        reports((ONE, 2, 2)) + b"\x00",
        REPORTS_PREFIX + b"\x07",
        REPORTS_PREFIX + b"\x91" + segment_bytes(ONE, 1, 2, [pack_metrics(5.0, {"loss": 1.0}), b"\x92\x01\x80"]),
        REPORTS_PREFIX + b"\x91\x81\x90\x00",
    ],
    ids=["cut", "too long", "no list", "an odd report", "an odd key"],
)
def test_of_a_damaged_entry_nothing_is_taken_in(taker: Taker, damaged: bytes) -> None:
    assert taker.take(reports((ONE, 1, 1)), damaged) == ("2-0", damaged)

    assert taker.scheduler.shown == [(ONE, 1)]
    assert taker.experiment.reports == 1
    assert taker.plain.place == ("1-0", 1)


def test_an_awaited_entry_is_returned(taker: Taker) -> None:
    second = reports((ONE, 2, 1))

    assert taker.take(reports((ONE, 1, 1)), second, awaited=("2-0",)) == ("2-0", second)
    assert taker.plain.place == ("1-0", 1)


def test_no_entry_is_taken_in_where_somebody_listens_or_none_is_plain(taker: Taker) -> None:
    first = reports((ONE, 1, 1))

    assert taker.take(first, is_plain=False) == ("1-0", first)
    taker.listeners.append(print)
    assert taker.take(first) == ("1-0", first)

    assert taker.scheduler.shown == []
    assert taker.plain.place == START


@pytest.mark.parametrize(("sequence", "place"), [(3, ("1-0", 2)), (4, ("2-0", 1))])
def test_an_error_leaves_the_driver_before_the_report(taker: Taker, sequence: int, place: tuple[str, int]) -> None:
    taker.scheduler.fails_at = ONE, sequence

    with pytest.raises(UserCodeFailed, match=f"report {sequence} of trial 0001"):
        taker.take(reports((ONE, 1, 2)), reports((ONE, 3, 2)))

    assert taker.plain.place == place


def test_the_lock_is_looked_at_in_a_long_journal(taker: Taker) -> None:
    taker.take(*(reports((ONE, number, 1)) for number in range(1, 130)))

    assert taker.looks == 4
