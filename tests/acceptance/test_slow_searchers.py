"""Models that take long: trials are decided on meanwhile, and only slots that need a config wait for a searcher."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from running import HERE

import mqtune
from mqtune.core.errors import UserCodeFailed
from mqtune.core.events import DecisionTaken
from mqtune.core.trial import CONTINUE, Action, Config, Decision, Report, Trial, TrialId, TrialStatus
from mqtune.schedulers.background import BackgroundDecisions

#: How long a suggestion takes.
PONDERS_S: Final = 1.0
#: How many drivers are killed before one may go on to the end.
KILLS: Final = 3


class Ponders(mqtune.search.Searcher):
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
        run=mqtune.RunOptions(callbacks=[waits]),
    ).run()

    assert [trial.config["x"] for trial in results] == [0.01, 0.02, 0.03, 0.04]
    assert all(trial.metrics["training_iteration"] == 60 for trial in results)
    assert "the searcher works out the next config" in waits.seen
    first = scheduler.shown_at[0]
    meanwhile = [
        [at for at in scheduler.shown_at if begin < at < end] for begin, end in searcher.busy[1:] if begin > first
    ]
    # A trial reports every 20 ms.
    assert max(map(len, meanwhile)) > 10


class Weighs(mqtune.schedulers.Scheduler):
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


def test_a_model_of_syne_tunes_ponders_while_its_scheduler_decides(
    tune: Callable[..., mqtune.Tuner], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("syne_tune", reason="its dependencies take some 800 MB; pip install 'mqtune[syne-tune]'")
    from syne_tune.optimizer.baselines import ASHA

    from mqtune.integrations.syne_tune import SyneTuneScheduler, config_space
    from mqtune.integrations.syne_tune_model import SlowSearcher

    space = {"x": mqtune.uniform(0, 1)}
    usual = {"metric": "loss", "max_t": 50, "random_seed": 1}
    is_old = "trial_id" in inspect.signature(ASHA.suggest).parameters
    theirs = ASHA(config_space(space), **usual, **{"resource_attr" if is_old else "time_attr": "training_iteration"})
    name = "get_config" if is_old else "suggest"
    suggest, busy = getattr(theirs.searcher, name), []

    class Ponders(type(theirs.searcher)):  # type: ignore[misc]
        """Takes long, as a model does."""

    def ponder(*arguments: Any, **options: Any) -> Any:
        begin = time.monotonic()
        time.sleep(PONDERS_S)
        busy.append((begin, time.monotonic()))
        return suggest(*arguments, **options)

    theirs.searcher.__class__ = Ponders
    setattr(theirs.searcher, name, ponder)
    scheduler = SyneTuneScheduler(theirs)
    shown: list[float] = []
    decide = scheduler.on_report
    scheduler.on_report = lambda trial, report: (shown.append(time.monotonic()), decide(trial, report))[1]  # type: ignore[method-assign]

    copied: list[SlowSearcher] = []
    is_ready = SlowSearcher.is_ready
    monkeypatch.setattr(SlowSearcher, "is_ready", lambda own, *number: (copied.append(own), is_ready(own, *number))[1])

    assert len(tune("slow", space, scheduler=scheduler, max_trials=4).run()) == 4
    # The scheduler is copied where something may have changed what it wants, not for each report.
    assert 0 < len(copied) < len(shown) / 4
    meanwhile = [[at for at in shown if begin < at < end] for begin, end in busy]
    assert max(map(len, meanwhile)) > 10


@contextlib.contextmanager
def killable(name: str, broker: str, log: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(HERE / "slow_searcher_driver.py"), name, broker]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent.parent)}
    with (
        log.open("a") as errors,
        subprocess.Popen(
            command, env=environment, cwd=HERE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def test_a_driver_that_is_killed_while_a_model_of_syne_tunes_ponders_asks_and_decides_as_before(
    fleet: str, tmp_path: Path, mqtune_home: Path
) -> None:
    pytest.importorskip("syne_tune", reason="its dependencies take some 800 MB; pip install 'mqtune[syne-tune]'")
    from slow_searcher_driver import PONDERS_S as THEIRS_S, TRIALS, configs

    name, log, rng = f"pondering-{time.time_ns()}", tmp_path / "log", random.Random()
    said: list[list[Any]] = []
    for number in itertools.count(1):
        said.append([])
        with killable(name, fleet, log) as driver:
            wanted = rng.randint(1, 3)
            # Syne Tune 0.13 prints what it lacks.
            for line in filter(lambda line: line.startswith("["), driver.stdout):
                said[-1].append(json.loads(line))
                wanted -= said[-1][-1][0] == "asked" and said[-1][-1][2]
                if wanted == 0 and number <= KILLS:
                    time.sleep(rng.choice((0, rng.uniform(0, 1.2 * THEIRS_S))))
                    driver.kill()
        if number > KILLS or driver.returncode == 0:
            break
    assert driver.returncode == 0, log.read_text()
    # The journal has one order, so a driver decides on what those before it have decided on, and then on more.
    decided = [[each for each in driver if each[0] == "decided"] for driver in said]
    for earlier, later in itertools.pairwise(decided):
        assert later[: len(earlier)] == earlier
    results = mqtune.Results.load(mqtune_home / name)
    assert [trial.config["x"] for trial in results] == configs()[:TRIALS]
    assert {trial.status for trial in results} <= {TrialStatus.COMPLETED, TrialStatus.EARLY_STOPPED}
    for trial in results:
        reports = (each for each in results.reports() if each.trial == trial.id and not each.late)
        epochs = [report.metrics["epoch"] for report in reports]
        assert epochs == [*range(1, len(epochs) + 1)]
