"""Errors name the thing and a way out. Nothing is lost or left running."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trainables

import mqtune
from mqtune.core.errors import (
    ConfigurationError,
    InsufficientResources,
    NameTaken,
    StoreMissing,
    StoreUnavailable,
    TrainableNotFound,
)
from mqtune.core.trial import TrialStatus
from mqtune.results.results import Results
from mqtune.worker import usable_cpus

Tune = Callable[..., mqtune.Tuner]
SPACE = {"x": mqtune.uniform(0, 1)}


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (lambda: {"metric": ""}, "metric"),
        (lambda: {"max_trials": 0}, "max_trials=0"),
        (lambda: {"failures": {"max_failures": 2}}, r"failures=.*give mqtune\.Failures\(…\)"),
        (lambda: {"checkpoints": "/a/folder"}, r"checkpoints=.*give mqtune\.Checkpoints\(…\)"),
        (lambda: {"checkpoints": mqtune.Checkpoints(7)}, "store=7"),
        (lambda: {"scheduler": "asha"}, "scheduler='asha'"),
        (
            lambda: {"searcher": "tep"},
            r"searcher='tep' is not a Searcher; give one, its name \(random, tpe, auto, ax\)",
        ),
        (lambda: {"process": mqtune.Process(start_method="thread")}, "start_method='thread'"),
        (lambda: {"searcher": mqtune.InitialPoints([{"y": 1}])}, r"points\[0\]"),
        (lambda: {"backend": mqtune.Local(slots=0)}, "slots=0"),
        (lambda: {"backend": 7}, "backend=7 is not a backend; give the URL"),
        (
            lambda: {
                "backend": mqtune.Simulated([{"x": 1, "seconds": 1.0, "loss": 1}]),
                "checkpoints": mqtune.Checkpoints("/a/folder"),
            },
            "simulated workers store no checkpoints",
        ),
    ],
)
def test_an_invalid_argument_is_refused_when_it_is_given(given, names):
    with pytest.raises(ConfigurationError, match=names):
        mqtune.Tuner(trainables.steady, SPACE, **{"metric": "loss", "mode": "min", **given()})


def test_a_trainable_that_no_worker_could_import_is_refused_when_the_tuner_is_built():
    lock = threading.Lock()

    class Inner(mqtune.Trainable):
        def step(self):
            pass

    for trainable, what in (
        (Inner, "inside a function"),
        (lambda config: lock, r"lock, a lock, which is not a plain value\. Load it inside the function"),
        (functools.partial(lambda config, epochs: None, epochs=lock), "epochs, a lock, which is not a plain value"),
        (functools.partial(trainables.steady, epochs=3), "'steady' can't be called with a config: .*epochs=3"),
        (3, "not a function"),
        (pow, "not a function"),
    ):
        with pytest.raises(TrainableNotFound, match=what):
            mqtune.Tuner(trainable, SPACE, metric="loss", mode="min", backend="redis://localhost:1/0")


def test_folders_as_checkpoints_need_a_store_that_workers_reach(tune: Tune):
    failures = mqtune.Failures(max_failures=3)
    tuner = tune("saves_folder", max_trials=50, failures=failures)
    with pytest.raises(
        StoreMissing,
        match=r"^trial \d+: a checkpoint that is a directory needs a store .*Checkpoints\(.*also give another name, or .*overwrite",
    ):
        tuner.run()
    assert {len(trial.attempts) for trial in tuner.get_trials()} == {1}
    # Each process has a memory of its own.
    tuner = tune("saves_folder", max_trials=5, checkpoints=mqtune.Checkpoints("memory://store"))
    with pytest.raises(StoreUnavailable, match=r"worker w1@.*memory://store"):
        tuner.run()
    assert sum(trial.reports for trial in tuner.get_trials()) == 0


def test_a_folder_that_can_not_be_made_is_refused_with_the_way_out(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MQTUNE_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(ConfigurationError, match=r"file/home/ascii can't be used.*set MQTUNE_HOME to a folder"):
        tune("steady", name="ascii").run()


def test_an_experiment_that_is_overwritten_leaves_nothing_behind(tune: Tune, tmp_path: Path, mqtune_home: Path):
    store = tmp_path / "store"

    def tuner(**options: Any) -> mqtune.Tuner:
        return tune("saves_folder", name="again", checkpoints=mqtune.Checkpoints(store), max_trials=2, **options)

    first = tuner(seed=1).run()
    (mqtune_home / "again" / "notes.txt").write_text("of the first")
    with pytest.raises(NameTaken, match=r"seed: 1 → 2\n.*overwrite=True.*'again-2'.*`mqtune drive again`"):
        tuner(seed=2).run()

    second = tuner(seed=2, run=mqtune.RunOptions(overwrite=True)).run()

    assert (len(second), second.outcome) == (2, "finished")
    assert [trial.config for trial in second] != [trial.config for trial in first]
    assert not (mqtune_home / "again" / "notes.txt").exists()
    assert second.definition["seed"] == 2
    assert len(list(second.reports())) == sum(trial.trial.reports for trial in second)
    assert tuner(seed=2).run().best.value == second.best.value


def test_what_this_machine_can_not_give_is_an_error_at_once_and_the_name_stays_free(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def tuner(resources: mqtune.Resources, *, overwrite: bool = False) -> mqtune.Tuner:
        run = mqtune.RunOptions(progress=False, overwrite=overwrite)
        return mqtune.Tuner(
            trainables.steady, SPACE, metric="loss", mode="min", name="local", resources=resources, run=run
        )

    with pytest.raises(InsufficientResources, match="this machine can't give: it sees none"):
        tuner(mqtune.Resources(gpus=0.5)).run()

    results = tuner(mqtune.Resources(cpus=usable_cpus(), tags=["big"])).run()

    assert [trial.status for trial in results] == [TrialStatus.COMPLETED]
    with pytest.raises(InsufficientResources):
        tuner(mqtune.Resources(gpus=0.5), overwrite=True).run()
    assert Results.load("local").best.value == results.best.value
    assert "+big" in results.best.attempts[0].queue
