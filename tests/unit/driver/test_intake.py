from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from bench import Bench

from mqtune.core.codec import pack_metrics, segment_bytes
from mqtune.core.errors import UserCodeFailed
from mqtune.core.events import AttemptEnded, AttemptStarted, Event, TrialStaged, decode_event
from mqtune.core.trial import CONTINUE, UNDRIVEN, AttemptEnd, Decision, Report, Trial, TrialStatus
from mqtune.driver import intake
from mqtune.journal import Segment
from mqtune.schedulers.base import FIFO

ONE = "0001"


class Choosy(FIFO):
    """Fails at a certain report."""

    fails_at = 2

    def on_report(self, trial: Trial, report: Report) -> Decision:
        if report.sequence == self.fails_at:
            raise ValueError("no")
        return CONTINUE


def waiting(folder: Path) -> Bench:
    """An open experiment with a trial that runs, whose driver takes nothing in by itself."""
    bench = Bench(folder, space=None, scheduler=FIFO, max_trials=None)
    bench.hand.add({"lr": 1.0})
    bench.start(ONE).is_away = True
    return bench


def ahead(bench: Bench, count: int = 9) -> list[tuple[str, int]]:
    return [(report.trial, report.sequence) for report in bench.driver.reports_ahead(count)]


def test_a_driver_decodes_no_event_that_it_wrote_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[Event | None] = []

    def note(data: bytes, entry: str) -> Event | None:
        decoded.append(decode_event(data, entry))
        return decoded[-1]

    bench = Bench(tmp_path, max_trials=2)
    monkeypatch.setattr(intake, "decode_event", note)
    bench.step(2).start(ONE).report(ONE, 5.0)
    bench.end(ONE).step(3)

    assert {type(event) for event in decoded} == {AttemptStarted, AttemptEnded}
    assert len(bench.of(TrialStaged)) == 2


@pytest.mark.parametrize("fails_at", [2, 3, 4])
def test_what_came_behind_a_report_that_failed_is_taken_in_so_that_the_experiment_can_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    monkeypatch.setattr(Choosy, "fails_at", fails_at)
    bench = Bench(tmp_path, scheduler=Choosy, max_trials=1).step().start(ONE)
    bench.is_away = True
    bench.report(ONE, 5.0, 4.0)
    bench.report(ONE, 3.0, 2.0)
    *_, first, second = (entry.id for entry in bench.worker.read("0-0", count=99))
    bench.end(ONE)

    with pytest.raises(UserCodeFailed, match=f"report {fails_at} of trial 0001"):
        bench.driver.step(0)
    stood_at = bench.driver.cursor
    bench.driver.requeue_all("the driver failed")
    bench.driver.step(0)

    assert bench.driver.is_finished
    assert bench.driver.cursor == stood_at, "the next driver decides on all of it"
    assert stood_at == {2: (first, 1), 3: (first, 2), 4: (second, 1)}[fails_at]


@pytest.mark.parametrize("hands_out", [False, True])
def test_behind_an_error_of_who_only_listens_the_next_step_goes_on(tmp_path: Path, hands_out: bool) -> None:
    bench = waiting(tmp_path)
    heard = []

    def listen(_: Trial, report: Report) -> None:
        heard.append(report.sequence)
        if report.sequence == 1:
            raise ValueError("no")

    bench.driver.listen_to_reports(listen)
    bench.report(ONE, 3.0, 2.0, 1.0)
    step: Callable[[float], object] = bench.driver.next_report if hands_out else bench.driver.step

    with pytest.raises(ValueError, match="no"):
        step(0)
    for _ in range(3):
        step(0)

    assert heard == [1, 2, 3]
    assert bench.trial().reports == 3


def test_an_attempt_that_began_behind_a_report_that_nobody_acted_on_is_lost_with_its_worker(tmp_path: Path) -> None:
    bench = waiting(tmp_path)
    other = bench.hand.add({"lr": 2.0}).id
    bench.report(ONE, 3.0)
    bench.start(other)

    bench.begin()
    assert bench.trial(other).status is TrialStatus.STAGED
    bench.driver.lose_all(error_type=UNDRIVEN)

    assert bench.driver.next_report(0).sequence == 1
    assert bench.driver.next_report(0) is None
    assert [bench.trial(trial).attempts[0].end for trial in (ONE, other)] == [AttemptEnd.LOST] * 2


def test_who_goes_on_sees_ahead_what_the_driver_before_has_not_acted_on(tmp_path: Path) -> None:
    bench = waiting(tmp_path)
    bench.report(ONE, 3.0, 2.0)
    bench.hand.add({"lr": 2.0})
    # An event of a driver's own hides no report behind it.
    bench.report(ONE, 1.0)
    bench.driver.next_report(0)
    assert ahead(bench) == [(ONE, 2), (ONE, 3)]

    bench.begin()

    assert ahead(bench) == []
    assert bench.driver.next_report(0).sequence == 1
    assert ahead(bench) == [(ONE, 2), (ONE, 3)]
    assert bench.trial().reports == 1


@pytest.mark.parametrize("hands_out", [False, True])
def test_reports_that_can_not_be_read_are_said_once_also_to_who_looks_ahead(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, hands_out: bool
) -> None:
    bench = waiting(tmp_path)
    bench.report(ONE, 3.0)
    damaged = segment_bytes(ONE, 1, 2, [pack_metrics(1.0, {"loss": 2.0}), b"\x07"])
    bench.worker.report([Segment(bench.claims[ONE], 2, 2, 1.0, damaged)])
    bench.sequences[ONE] = 3
    bench.report(ONE, 1.0)

    if hands_out:
        bench.driver.next_report(0)
        assert ahead(bench) == [(ONE, 2), (ONE, 4)]
        assert bench.experiment.unreadable == 0
        assert [bench.driver.next_report(0).sequence for _ in range(2)] == [2, 4]
        assert bench.driver.next_report(0) is None
    else:
        bench.driver.step(0)

    assert bench.experiment.unreadable == 1
    assert bench.trial().reports == 3
    assert len([each for each in caplog.records if each.levelno == logging.WARNING]) == 1
