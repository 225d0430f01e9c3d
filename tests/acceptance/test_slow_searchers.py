"""Models that take long: trials are decided on meanwhile, and only slots that need a config wait for a searcher."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any, Final

import pytest

import mqtune
from mqtune.core.errors import UserCodeFailed
from mqtune.core.events import DecisionTaken
from mqtune.core.trial import CONTINUE, Action, Config, Decision, Report, Trial, TrialId, TrialStatus
from mqtune.schedulers.background import BackgroundDecisions

#: How long a suggestion takes.
PONDERS_S: Final = 1.0


class Ponders(mqtune.Searcher):
    """Suggests after a second, and writes down when it was busy."""

    adaptive = True
    is_slow = True

    def __init__(self) -> None:
        self.busy: list[tuple[float, float]] = []

    def suggest(self, trial: TrialId) -> Config:
        begin = time.monotonic()
        time.sleep(PONDERS_S)
        self.busy.append((begin, time.monotonic()))
        return {"x": int(trial) / 100}

    def describe(self) -> dict[str, Any]:
        return {"searcher": "ponders"}


class Notes(mqtune.FIFO):
    """Writes down when it was shown reports."""

    def __init__(self) -> None:
        self.shown_at: list[float] = []

    def on_report(self, trial: Trial, report: Report) -> Decision:
        self.shown_at.append(time.monotonic())
        return super().on_report(trial, report)

    def describe(self) -> dict[str, Any]:
        return {"scheduler": "notes"}


class Waits(mqtune.Callback):
    """Remembers what was waited for."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def on_step(self, waiting_for: str) -> None:
        self.seen.add(waiting_for)


def test_reports_are_decided_on_while_a_searcher_ponders(tune: Callable[..., mqtune.Tuner]) -> None:
    searcher, scheduler = Ponders(), Notes()
    waits = Waits()
    results = tune(
        "slow",
        searcher=searcher,
        scheduler=scheduler,
        stop={"training_iteration": 60},
        max_trials=4,
        seed=1,
        run=mqtune.Run(callbacks=[waits]),
    ).run()

    assert [trial.config["x"] for trial in results] == [0.01, 0.02, 0.03, 0.04]
    assert all(trial.metrics["training_iteration"] == 60 for trial in results)
    assert "the searcher works out the next config" in waits.seen
    first = scheduler.shown_at[0]
    meanwhile = [
        [at for at in scheduler.shown_at if begin < at < end] for begin, end in searcher.busy[1:] if begin > first
    ]
    assert any(meanwhile)
    # A trial reports every 20 ms.
    gaps = [after - before for shown in meanwhile for before, after in itertools.pairwise(shown)]
    assert max(gaps) < PONDERS_S / 2


def test_a_searcher_that_fails_ends_the_run_and_is_named(tune: Callable[..., mqtune.Tuner]) -> None:
    class Breaks(Ponders):
        def suggest(self, trial: TrialId) -> Config:
            if int(trial) > 1:
                raise ValueError("no more ideas")
            return super().suggest(trial)

    tuner = tune("steady", searcher=Breaks(), max_trials=3)
    with pytest.raises(UserCodeFailed, match=r"Breaks.suggest raised ValueError: no more ideas \(trial 0002\)"):
        tuner.run()


class Weighs(mqtune.Scheduler):
    """Ponders over each report, and stops the trial; the thread says what it has heard."""

    kind = "weighs"

    def __init__(self, *, fails: bool = False) -> None:
        self._heard: list[TrialId] = []
        self._fails = fails

    def decide_in_background(self) -> None:
        self.background = BackgroundDecisions(self._decisions)

    def on_report(self, trial: Trial, report: Report) -> Decision:
        assert self.background is not None
        self.background.tell(lambda: self._heard.append(trial.id))
        return CONTINUE

    def _decisions(self) -> dict[TrialId, Decision]:
        if self._fails:
            raise ValueError("too heavy")
        time.sleep(0.2)
        return {id_: Decision(Action.STOP, "it was weighed") for id_ in self._heard}

    def describe(self) -> dict[str, Any]:
        return {"scheduler": "weighs"}


def test_what_a_scheduler_decides_later_is_carried_out_though_no_report_comes_and_a_resumed_driver_keeps_it(
    tune: Callable[..., mqtune.Tuner],
) -> None:
    begin = time.monotonic()
    options = {"scheduler": Weighs(), "max_trials": 2, "name": f"weighs-{time.time_ns()}"}
    results = tune("reports_once", **options).run()

    assert time.monotonic() - begin < 20
    assert [(trial.status, trial.reason) for trial in results] == [
        (TrialStatus.EARLY_STOPPED, "it was weighed"),
        (TrialStatus.EARLY_STOPPED, "it was weighed"),
    ]
    again = tune("reports_once", **{**options, "scheduler": Weighs(), "max_trials": 3}).run()
    assert [trial.status for trial in again] == [TrialStatus.EARLY_STOPPED] * 3
    assert [(event.by, event.sequence) for event in again.events() if isinstance(event, DecisionTaken)] == [
        ("scheduler", 0)
    ] * 3


def test_a_scheduler_that_fails_in_the_background_ends_the_run_and_is_named(tune: Callable[..., mqtune.Tuner]) -> None:
    with pytest.raises(UserCodeFailed, match=r"Weighs.on_report raised ValueError: too heavy \(in the background\)"):
        tune("slow", scheduler=Weighs(fails=True), max_trials=1).run()
