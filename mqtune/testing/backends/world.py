"""Fixtures and helpers of the backend tests, which use tuners on two free slots."""

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
from mqtune.core.trial import CONTINUE, Config, Decision, Report, Trial, TrialId, TrialStatus
from mqtune.driver.setup.options import RunOptions
from mqtune.schedulers.base import START, Choice, Scheduler
from mqtune.search.base import Searcher
from mqtune.search.points import InitialPoints
from mqtune.testing.play import SPACE
from mqtune.tuner import Tuner

#: Longest wait of a test, in seconds. A worker's first import may take seconds on a busy machine.
DEADLINE_S: Final = 30.0
#: Longest wait of one step, in seconds.
_STEP_S: Final = 0.1
_SHOWN_TRIALS: Final = 5

_numbers = itertools.count(1)


class NewTuner(Protocol):
    """Makes tuners on the backend, which has exactly two slots, each with one CPU and no GPU.

    Nothing else may use the slots. The trainable is from ``mqtune.testing.play``: real trials run ``play`` or, with
    ``saves=False``, ``play_unsaved``. Simulated trials yield ``reports``. A second tuner with the same name continues
    the experiment.
    """

    def __call__(self, *, saves: bool, **arguments: Any) -> Tuner:
        """Return a tuner with these arguments, and with the trainable and the backend."""


class Tune(Protocol):
    """Makes the tuners of a test."""

    def __call__(self, *configs: Config, saves: bool = True, **arguments: Any) -> Tuner:
        """Return a tuner that suggests these configs. It is not connected yet.

        Without configs it suggests nothing, and the test adds trials.
        """


class TunerTests:
    """Base of the backend tests, with their fixtures."""

    #: Whether a trial is a process, with output, recorded package versions and an exit signal.
    runs_processes: ClassVar[bool] = True
    #: Whether attempts may have several tasks, see ``mqtune.backends.base.TakesSeveralTasks``. If not, they are
    #: refused.
    takes_several_tasks: ClassVar[bool] = True

    @pytest.fixture
    def new_tuner(self) -> NewTuner:
        """Return a function that makes tuners on the backend. A subclass must override this fixture."""
        raise NotImplementedError("override the fixture new_tuner: it returns a NewTuner")

    @pytest.fixture
    def tune(self, new_tuner: NewTuner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tune]:
        """Return the function that makes a test's tuners. Their trials are stopped after the test."""
        monkeypatch.setenv("MQTUNE_HOME", str(tmp_path / "home"))
        made: list[Tuner] = []

        def tune(*configs: Config, saves: bool = True, **arguments: Any) -> Tuner:
            searcher = InitialPoints(configs)
            given = {"searcher": searcher, "max_trials": len(configs)} if configs else {"searcher": Nothing()}
            usual = {
                "space": SPACE,
                "metric": "loss",
                "mode": "min",
                "name": f"contract-{os.getpid()}-{next(_numbers)}",
            }
            arguments["run"] = replace(arguments.get("run", RunOptions()), progress=False)
            tuner = new_tuner(saves=saves, **{**usual, **given, **arguments})
            made.append(tuner)
            return tuner

        yield tune
        for tuner in made:
            _end(tuner)


def _end(tuner: Tuner) -> None:
    with contextlib.suppress(MqtuneError):
        if any(not trial.status.is_terminal for trial in tuner.get_trials()):
            tuner.stop_all("the test is over")
            drive(tuner, lambda: not tuner.busy_trials)
    tuner.close()


def drive(tuner: Tuner, until: Callable[[], object], why: str = "") -> None:
    """Step until *until* returns a true value. Fail after ``DEADLINE_S`` seconds, with *why*."""
    deadline = time.monotonic() + DEADLINE_S
    while not until():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S:g} s: {why or until}\n{_state(tuner)}"
        tuner.step(_STEP_S)


def _state(tuner: Tuner) -> str:
    attempts = [
        f"trial {trial.id} {trial.status}, attempt {attempt.number} on {attempt.worker or 'no worker'}: "
        f"{attempt.reports} reports, {attempt.end or 'has not ended'}{attempt.error and ': ' + attempt.error}"
        for trial in tuner.get_trials()[-_SHOWN_TRIALS:]
        for attempt in trial.attempts
    ]
    return "\n".join([tuner.debug_string(), *attempts])


def await_reports(tuner: Tuner, reports: int, trial_id: str = "0001") -> Trial:
    """Step until a trial has at least this many reports, and return the trial."""
    drive(tuner, lambda: any(trial.id == trial_id and trial.reports >= reports for trial in tuner.get_trials()))
    return tuner.trial(trial_id).record


def pause_after(tuner: Tuner, reports: int) -> Trial:
    """Pause the first trial when it has this many reports, and return it when it is PAUSED."""
    trial = await_reports(tuner, reports)
    tuner.trial(trial).pause()
    drive(tuner, lambda: trial.status is TrialStatus.PAUSED)
    return trial


def last_step(trial: Trial) -> int:
    """Return the step of a trial's last report."""
    step: int = trial.last_metrics.get("step", 0)
    return step


def reports_of(tuner: Tuner, trial: Trial, attempt: int) -> list[int]:
    """Return the steps of an attempt's reports, without late ones."""
    return [r.metrics["step"] for r in tuner.results().reports(trial.id) if r.attempt == attempt and not r.late]


class Nothing(Searcher):
    """Suggests nothing: a test adds every trial itself."""

    def suggest(self, trial: TrialId) -> Config | None:
        return None

    def describe(self) -> dict[str, Any]:
        return {"searcher": "nothing"}


Decide = Callable[[Trial, Report], Decision]
Choose = Callable[[Mapping[TrialId, Trial]], Choice | None]


class Rule(Scheduler):
    """A scheduler made of two functions.

    *decide* returns the decision on a report. *choose* gets all trials queued so far, and returns the choice for a free
    slot, or None to start a new trial.
    """

    def __init__(self, decide: Decide = lambda _trial, _report: CONTINUE, choose: Choose = lambda _: None) -> None:
        self._decide = decide
        self._choose = choose
        self._trials: dict[TrialId, Trial] = {}

    def on_queue(self, trial: Trial) -> None:
        self._trials[trial.id] = trial

    def on_report(self, trial: Trial, report: Report) -> Decision:
        return self._decide(trial, report)

    def choose(self, *, can_start: bool) -> Choice:
        return self._choose(self._trials) or START

    def describe(self) -> dict[str, Any]:
        return {"scheduler": "rule"}
