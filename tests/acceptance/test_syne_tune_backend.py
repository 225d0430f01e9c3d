"""Syne Tune's own Tuner over real workers: its schedulers see each result once, whoever dies."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import trainables_syne_tune as trainables
from running import HERE
from waiting import eventually

import mqtune
from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import TrialStatus

# Passes over the warnings of an import, which includes 0.13's: its strings have invalid escapes.
pytest.importorskip(
    "syne_tune.optimizer.baselines", reason="its dependencies take some 800 MB; pip install 'mqtune[syne-tune]'"
)

import dill
from syne_tune import StoppingCriterion, Tuner
from syne_tune.backend.trial_status import Status
from syne_tune.config_space import uniform
from syne_tune.optimizer.scheduler import SchedulerDecision, TrialScheduler, TrialSuggestion

from mqtune.integrations.syne_tune_backend import MqtuneBackend

pytestmark = pytest.mark.filterwarnings("ignore:::syne_tune|pandas")

#: Whether it is 0.13, whose schedulers are told the new trial's id.
IS_OLD = "trial_id" in inspect.signature(TrialScheduler.suggest).parameters
SCRIPT = str(HERE / "script_for_syne_tune.py")
WAIT_S = 60.0

_names = itertools.count(1)


class Told(TrialScheduler):
    """Starts some trials, and decides by a table; it keeps what it was told."""

    def __init__(self, *configs: dict[str, Any], decisions: dict[int, str] | None = None) -> None:
        super().__init__(**({"config_space": {}} if IS_OLD else {}))
        self.time_attr = "epoch"
        self.configs = list(configs)
        self.decisions = decisions or {}
        self.to_resume: list[int] = []
        self.results: list[tuple[int, int]] = []
        self.ends: dict[int, str] = {}

    def suggest(self, trial_id: int | None = None) -> TrialSuggestion | None:
        if self.configs:
            config = dict(self.configs.pop(0))
            return TrialSuggestion.start_suggestion(config, checkpoint_trial_id=config.pop("source", None))
        return TrialSuggestion.resume_suggestion(self.to_resume.pop(0)) if self.to_resume else None

    def on_trial_result(self, trial: Any, result: dict[str, Any]) -> str:
        self.results.append((trial.trial_id, result["epoch"]))
        decision = self.decisions.get(result["epoch"], SchedulerDecision.CONTINUE)
        if decision == SchedulerDecision.PAUSE:
            self.to_resume.append(trial.trial_id)
        return decision

    def on_trial_error(self, trial: Any) -> None:
        self.ends[trial.trial_id] = "error"

    def on_trial_complete(self, trial: Any, result: dict[str, Any]) -> None:
        self.ends[trial.trial_id] = "complete"

    def metric_names(self) -> list[str]:
        return ["loss"]

    def metric_mode(self) -> str:
        return "min"


@pytest.fixture(autouse=True)
def their_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNETUNE_FOLDER", str(tmp_path / "syne-tune"))


def tuner_of(backend: MqtuneBackend, scheduler: TrialScheduler, n_workers: int = 1, **options: Any) -> Tuner:
    given = {"stop_criterion": StoppingCriterion(max_wallclock_time=WAIT_S), "max_failures": 9, **options}
    name = f"st-{os.getpid()}-{next(_names)}"
    return Tuner(backend, scheduler, n_workers=n_workers, tuner_name=name, suffix_tuner_name=False, **given)


def experiment(backend: MqtuneBackend) -> mqtune.Results:
    return mqtune.Results.load(backend._tuner.folder)


PAUSE, STOP = SchedulerDecision.PAUSE, SchedulerDecision.STOP


@pytest.mark.parametrize("entry_point", [trainables.epochs, SCRIPT], ids=["function", "script"])
def test_each_result_is_told_once_and_a_trial_goes_on_from_the_one_that_it_was_paused_on(
    fleet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry_point: Any
) -> None:
    # A script is known to workers by its path below the folder that they, and drivers, are started in.
    monkeypatch.chdir(HERE)
    backend = MqtuneBackend(entry_point, broker=fleet, checkpoints=tmp_path / "store")
    config = {"x": 1.0, "epochs": 5}
    scheduler = Told(config, config, decisions={2: PAUSE, 4: PAUSE})

    tuner_of(backend, scheduler).run()

    expected = [(0, 1), (0, 2), (1, 1), (1, 2), (0, 3), (0, 4), (1, 3), (1, 4), (0, 5), (1, 5)]
    assert scheduler.results == expected
    assert scheduler.ends == {0: "complete", 1: "complete"}
    trials = experiment(backend)
    assert trials.outcome == "finished"
    assert [(each.status, len(each.attempts)) for each in trials] == [(TrialStatus.COMPLETED, 3)] * 2


def test_a_function_for_their_python_backend_runs_as_it_is(fleet: str) -> None:
    space = {"x": uniform(0, 1), "epochs": 3, "label": "a"}
    backend = MqtuneBackend(tune_function=trainables.height, config_space=space, broker=fleet)
    scheduler = Told({"x": 0.5, "epochs": 3, "label": "a"}, {"x": 0.25, "epochs": 3, "label": "a"}, decisions={2: STOP})

    tuner_of(backend, scheduler).run()

    assert sorted(scheduler.results) == [(0, 1), (0, 2), (1, 1), (1, 2)]
    first = next(experiment(backend).reports("0001"))
    assert (first.metrics["loss"], first.metrics["label"]) == (0.5, "a")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "an entry_point or a tune_function, and not both"),
        (
            {"entry_point": trainables.epochs, "tune_function": trainables.height},
            "an entry_point or a tune_function, and not both",
        ),
        (
            {"entry_point": trainables.epochs, "num_gpus_per_trial": 2},
            r"no argument 'num_gpus_per_trial'; do you mean resources=mqtune.Resources\(gpus=…\)\?",
        ),
    ],
)
def test_arguments_that_can_not_be_meant_lead_to_how_they_are_called_here(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        MqtuneBackend(**given)


def test_a_trial_begins_with_the_checkpoint_of_one_that_was_stopped(fleet: str) -> None:
    backend = MqtuneBackend(trainables.epochs, broker=fleet)
    scheduler = Told({"x": 1.0, "epochs": 50}, {"x": 2.0, "epochs": 5, "source": 0}, decisions={3: STOP})

    tuner_of(backend, scheduler).run()

    assert scheduler.results == [(0, 1), (0, 2), (0, 3), (1, 4), (1, 5)]
    best = backend.start_trial({"x": 3.0, "epochs": 6}, checkpoint_trial_id=1)
    assert best.trial_id == 2
    eventually(lambda: backend.fetch_status_results([2])[0][2][1] == Status.completed, WAIT_S)
    assert [each["epoch"] for each in backend._trial_dict[2].metrics] == [6]
    backend.stop_all()


def test_what_a_trial_was_given_arrives_as_it_was_and_one_without_a_result_has_failed(fleet: str) -> None:
    text = 'it\'s "quoted",\nwith lines [1, 2]'
    backend = MqtuneBackend(trainables.odd, broker=fleet)
    configs = [{"x": text, "list": [1, {"two": None}]}, {"x": "is silent"}, {"x": "fails"}]
    scheduler = Told(*configs)

    tuner_of(backend, scheduler, n_workers=2).run()

    assert scheduler.ends == {0: "complete", 1: "error", 2: "error"}
    (result,) = backend._trial_dict[0].metrics
    assert (result["x"], result["list"]) == (text, [1, {"two": None}])
    assert backend.stdout(2) == ["this was printed\n"]
    assert "ValueError: it can't go on\n" in backend.stderr(2)


def test_no_trial_is_lost_where_its_tuner_counts_busy_workers_and_a_saved_backend_has_no_connection(fleet: str) -> None:
    backend = MqtuneBackend(trainables.epochs, broker=fleet)
    scheduler = Told(
        *[{"x": 1.0, "epochs": epochs, "step_s": 0.0} for epochs in (1, 3, 2, 1, 9, 2)], decisions={4: STOP}
    )
    tuner = tuner_of(backend, scheduler, n_workers=2, start_jobs_without_delay=False, results_update_interval=0.01)
    assert tuner.sleep_time == 0, "it waits for no poll"

    tuner.run()

    assert scheduler.ends == dict.fromkeys((0, 1, 2, 3, 5), "complete")
    assert (4, 4) in scheduler.results
    assert (4, 5) not in scheduler.results
    again = dill.loads(dill.dumps(backend))
    assert {number: trial.status for number, trial in again._trial_dict.items()} == {
        number: trial.status for number, trial in backend._trial_dict.items()
    }
    backend.stop_trial(0)
    assert not experiment(backend).experiment.live


def test_checkpoints_are_deleted_once_nothing_runs_from_them_also_of_paused_trials(fleet: str) -> None:
    backend = MqtuneBackend(trainables.epochs, broker=fleet)
    scheduler = Told({"x": 1.0, "epochs": 3}, decisions={2: PAUSE})

    class Deletes(type(Tuner._default_callback())):  # type: ignore[misc]
        def on_trial_result(self, trial: Any, **_: Any) -> None:
            backend.delete_checkpoint(trial.trial_id)

    tuner_of(backend, scheduler, callbacks=[Deletes()]).run()

    # It has begun again, and is told what it was told before no second time.
    assert scheduler.results == [(0, 1), (0, 2), (0, 3)]
    (trial,) = experiment(backend).trials
    assert [attempt.checkpoint for attempt in trial.attempts] == ["", ""]


def test_a_process_that_is_lost_is_no_failure_and_no_result_comes_twice(fleet: str) -> None:
    backend = MqtuneBackend(trainables.epochs, broker=fleet)
    scheduler = Told({"x": 1.0, "epochs": 20, "saves": False})

    class Kills(type(Tuner._default_callback())):  # type: ignore[misc]
        def on_trial_result(self, trial: Any, result: dict[str, Any], **_: Any) -> None:
            if result["epoch"] == 10:
                # Its zygote: the worker says at once that the attempt is lost, as it is after a while when the worker is.
                psutil.Process(result["pid"]).parent().kill()

    tuner = tuner_of(backend, scheduler, callbacks=[Kills()])
    tuner.run()

    assert scheduler.results == [(0, epoch) for epoch in range(1, 21)]
    assert tuner.tuning_status.num_trials_failed == 0
    assert len(experiment(backend).trials[0].attempts) == 2


@contextlib.contextmanager
def driving(name: str, broker: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(HERE / "syne_tune_driver.py"), name, broker, str(IS_OLD)]
    environment = {**os.environ, "SYNETUNE_FOLDER": str(folder), "PYTHONPATH": str(HERE.parent.parent)}
    with (
        (folder / "log").open("a") as log,
        subprocess.Popen(command, env=environment, cwd=HERE, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def told_by(lines: Iterable[str]) -> Iterator[list[int]]:
    return (json.loads(line.removeprefix("told ")) for line in lines if line.startswith("told "))


def test_a_tuner_that_is_killed_is_loaded_and_no_trial_is_doubled_lost_or_left(
    fleet: str, tmp_path: Path, mqtune_home: Path
) -> None:
    name = f"st-{os.getpid()}-{next(_names)}"
    with driving(name, fleet, tmp_path) as first:
        told = list(itertools.islice(told_by(first.stdout), 60))
    assert (tmp_path / name / "tuner.dill").exists(), (tmp_path / "log").read_text()

    with driving(name, fleet, tmp_path) as second:
        output = second.communicate()[0].splitlines()

    assert second.returncode == 0, (tmp_path / "log").read_text()
    results = json.loads(output[-1].removeprefix("all "))
    again = list(told_by(output))
    # What was told after the last save is told again, and then what came meanwhile.
    assert all(each in results for each in told + again)
    experiment = mqtune.Results.load(mqtune_home / name).experiment
    for number in range(len(experiment.trials)):
        epochs = [epoch for trial, epoch in results if trial == number]
        assert epochs == list(range(1, len(epochs) + 1))
    assert list(experiment.keys) == list(map(str, range(len(experiment.trials))))
    assert {len(trial.attempts) for trial in experiment.trials.values()} == {1}
    assert experiment.live == 0
    assert experiment.counts[TrialStatus.COMPLETED] >= 8
