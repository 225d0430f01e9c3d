"""What a searcher is told of a trial's life, by the driver that sees it and by one that replays it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from bench import Bench

from mqtune.core.trial import CONTINUE, Config, Report, Trial, TrialId
from mqtune.schedulers.background import BackgroundDecisions
from mqtune.schedulers.base import FIFO
from mqtune.search.base import Searcher
from mqtune.testing.waiting import eventually

ONE, TWO, THREE = "0001", "0002", "0003"


class Told(Searcher):
    """Suggests a number, and writes down each call."""

    adaptive = True

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def suggest(self, trial: TrialId) -> Config:
        self.calls.append(("suggest", trial))
        return {"lr": int(trial) / 10}

    def replay(self, trial: TrialId, config: Config) -> Config:
        self.calls.append(("replay", trial, config["lr"]))
        return config

    def adopt(self, trial: TrialId, config: Config) -> None:
        self.calls.append(("adopt", trial, config["lr"]))

    def on_stage(self, trial: Trial) -> None:
        self.calls.append(("stage", trial.id, trial.attempt.number))

    def on_report(self, trial: Trial, report: Report) -> None:
        self.calls.append(("report", trial.id, report.metrics["loss"]))

    def on_trial_pause(self, trial: Trial) -> None:
        self.calls.append(("pause", trial.id))

    def on_attempt_end(self, trial: Trial) -> None:
        self.calls.append(("attempt ended", trial.id, len(trial.attempts)))

    def on_abandon(self, trial: Trial) -> None:
        self.calls.append(("abandon", trial.id))

    def on_trial_end(self, trial: Trial) -> None:
        self.calls.append(("end", trial.id, trial.status.name))

    def describe(self) -> dict[str, Any]:
        return {"searcher": "told"}


@pytest.fixture
def made() -> list[Told]:
    return []


@pytest.fixture
def bench(tmp_path: Path, made: list[Told]) -> Bench:
    def new() -> Told:
        made.append(Told())
        return made[-1]

    return Bench(tmp_path, searcher=new, max_failures=3)


def live(bench: Bench) -> list[tuple[Any, ...]]:
    """One trial that is paused, goes on, and completes; one that fails, is lost, and is abandoned; and one that a user adds."""
    bench.step().start(ONE).start(TWO)
    bench.report(ONE, 3.0)
    bench.hand.trial(ONE).pause()
    bench.end(ONE)
    bench.fail(TWO).step().start(TWO)
    bench.lose(TWO).step().start(TWO)
    bench.hand.trial(ONE).resume()
    bench.start(ONE).report(ONE, 2.0)
    bench.end(ONE)
    bench.hand.trial(TWO).abandon()
    bench.end(TWO)
    bench.hand.add({"lr": 0.75})
    bench.start(THREE).report(THREE, 1.0)
    bench.end(THREE)
    return [
        ("stage", ONE, 1),
        ("stage", TWO, 1),
        ("report", ONE, 3.0),
        ("pause", ONE),
        ("attempt ended", TWO, 1),
        ("stage", TWO, 2),
        ("attempt ended", TWO, 2),
        ("stage", TWO, 3),
        ("stage", ONE, 2),
        ("report", ONE, 2.0),
        ("end", ONE, "COMPLETED"),
        ("abandon", TWO),
        ("end", TWO, "ABANDONED"),
        ("adopt", THREE, 0.75),
        ("stage", THREE, 1),
        ("report", THREE, 1.0),
        ("end", THREE, "COMPLETED"),
    ]


def test_a_searcher_is_told_of_all_that_becomes_of_a_trial_also_by_a_driver_that_resumes(
    bench: Bench, made: list[Told]
) -> None:
    expected = live(bench)
    bench.begin()

    first, second = (told.calls for told in made)
    assert [call for call in first if call[0] != "suggest"] == expected
    assert [call for call in first if call[0] == "suggest"] == [("suggest", ONE), ("suggest", TWO)]
    assert [call for call in second if call[0] != "replay"] == expected
    # Each right before its trial is staged.
    assert second[:4] == [("replay", ONE, 0.1), expected[0], ("replay", TWO, 0.2), expected[1]]


class Undecided(FIFO):
    """Says of its trial, in the background, that it may go on."""

    def __init__(self) -> None:
        self.background = BackgroundDecisions(lambda: {TrialId(ONE): CONTINUE})


def test_a_trial_that_a_scheduler_lets_go_on_in_the_background_gets_no_decision(tmp_path: Path) -> None:
    bench = Bench(tmp_path, scheduler=Undecided).step().start(ONE)
    with contextlib.closing(bench.scheduler.background) as background:
        background.tell(lambda: None)
        eventually(lambda: bench.step() and not background.is_busy)

    assert bench.trial(ONE).decision is None
