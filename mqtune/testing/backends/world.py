"""The world of the contract's tests: tuners over two free slots, and how the tests drive and look at them."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

import pytest

from mqtune.core.errors import MqtuneError
from mqtune.core.trial import CONTINUE, Config, Decision, Report, Trial, TrialId
from mqtune.driver.settings import Run
from mqtune.schedulers.base import START, Choice, Scheduler
from mqtune.search.base import Searcher
from mqtune.search.points import PointsFirst
from mqtune.testing.play import SPACE
from mqtune.tuner import Tuner

__all__ = ["InWorld", "NewTuner", "Nothing", "Rule", "Tune", "drive", "last_step", "reports_of"]

#: The longest that a test waits: a worker that is busy with its first import takes seconds.
DEADLINE_S: Final = 30.0
#: How long one step may block.
_STEP_S: Final = 0.1

_numbers = itertools.count(1)


class NewTuner(Protocol):
    """Returns a tuner over exactly two slots of one CPU, without a GPU, that nobody else uses.

    Its trials do what ``mqtune.testing.play`` says: those of a real backend run ``play``, or with ``saves=False``
    ``play_unsaved``; simulated ones report ``reports``, with checkpoints or without. All other arguments are the
    tuner's. A second tuner of the same name goes on with the experiment.
    """

    def __call__(self, *, saves: bool, **arguments: Any) -> Tuner:
        """Return the tuner; the trainable is the only argument that it lacks."""


class Tune(Protocol):
    """Returns a tuner for trials that play the given configs, and then for whatever a test starts by hand."""

    def __call__(self, *configs: Config, saves: bool = True, **arguments: Any) -> Tuner:
        """Return the tuner, which is not open yet."""


class InWorld:
    """What all tests of the contract share."""

    #: Whether a trial is a process: with output, versions and a signal that it may die of. Without, all of these are empty.
    runs_processes: ClassVar[bool] = True

    @pytest.fixture
    def new_tuner(self) -> NewTuner:
        """Return what makes tuners on the backend under test; a subclass must override it."""
        raise NotImplementedError("override the fixture new_tuner: it returns a NewTuner")

    @pytest.fixture
    def tune(self, new_tuner: NewTuner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tune]:
        """Return what makes a test's tuners, whose trials are all stopped at its end."""
        monkeypatch.setenv("MQTUNE_HOME", str(tmp_path / "home"))
        made: list[Tuner] = []

        def tune(*configs: Config, saves: bool = True, **arguments: Any) -> Tuner:
            first = PointsFirst(configs)
            given = {"searcher": first, "max_trials": len(configs)} if configs else {"searcher": Nothing()}
            usual = {
                "space": SPACE,
                "metric": "loss",
                "mode": "min",
                "name": f"contract-{os.getpid()}-{next(_numbers)}",
            }
            arguments["run"] = replace(arguments.get("run", Run()), progress=False)
            tuner = new_tuner(saves=saves, **{**usual, **given, **arguments})
            made.append(tuner)
            return tuner

        yield tune
        for tuner in made:
            _end(tuner)


def _end(tuner: Tuner) -> None:
    """Stop whatever still runs, and close the tuner."""
    with contextlib.suppress(MqtuneError):
        if any(not trial.status.is_terminal for trial in tuner.get_trials()):
            tuner.stop_all("the test is over")
            drive(tuner, lambda: not tuner.busy_trials)
    tuner.close()


def drive(tuner: Tuner, until: Callable[[], object], why: str = "") -> None:
    """Step until a condition holds, and fail if it doesn't within the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not until():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S:g} s: {why or until}\n{tuner.debug_string()}"
        tuner.step(_STEP_S)


def last_step(trial: Trial) -> int:
    """Return how far a trial is in what it plays, as its last report says."""
    step: int = trial.last_metrics.get("step", 0)
    return step


def saved_step(trial: Trial) -> int:
    """Return how far the newest checkpoint of a paused trial is: it may go on for some steps until it is told to pause."""
    step: int = (trial.late_metrics or trial.last_metrics).get("step", 0)
    return step


def reports_of(tuner: Tuner, trial: Trial, attempt: int) -> list[int]:
    """Return the steps that an attempt has reported, late ones left out."""
    return [r.metrics["step"] for r in tuner.results().reports(trial.id) if r.attempt == attempt and not r.late]


class Nothing(Searcher):
    """Has no config at all: every trial is started by hand."""

    def suggest(self) -> Config | None:
        """Return None."""
        return None

    def describe(self) -> dict[str, Any]:
        """Return its name."""
        return {"searcher": "nothing"}


Decide = Callable[[Trial, Report], Decision]
Choose = Callable[[Mapping[TrialId, Trial]], Choice | None]


class Rule(Scheduler):
    """Decides by one function, and fills slots by another, which is given all trials that were staged, by their ids."""

    def __init__(self, decide: Decide = lambda _trial, _report: CONTINUE, choose: Choose = lambda _: None) -> None:
        self._decide = decide
        self._choose = choose
        self._trials: dict[TrialId, Trial] = {}

    def on_stage(self, trial: Trial) -> None:
        """Know it."""
        self._trials[trial.id] = trial

    def on_report(self, trial: Trial, report: Report) -> Decision:
        """Return what the function does."""
        return self._decide(trial, report)

    def choose(self, *, can_start: bool) -> Choice:
        """Return what the function does, or a start."""
        return self._choose(self._trials) or START

    def describe(self) -> dict[str, Any]:
        """Return its name."""
        return {"scheduler": "rule"}
