"""A driver brings its code to workers without it. Other code in an experiment is reported or refused."""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from running import running_worker

import mqtune
from mqtune.cli import group
from mqtune.core.errors import CodeDiffers, CodeRefused, ConfigurationError
from mqtune.core.trial import TrialStatus
from mqtune.testing.backends.world import drive

KEY = "the key of this test's workers"
MODULES = ("brought", "brought.helper", "brought_main")
#: No other test's workers have it.
TAG = "brings"
TRAIN = """
import os, pathlib
import brought.helper, click

def train(config):
    here = pathlib.Path(__file__)
    return {
        "loss": brought.helper.VERSION,
        "data": pathlib.Path("data.txt").read_text(),
        "has_secret": (here.parent / ".env").exists(),
        "key": os.environ.get("MQTUNE_CODE_KEY", ""),
    }
"""
PLAIN = "import brought.helper\n\ndef train(config):\n    return {'loss': brought.helper.VERSION}\n"


class Project:
    def __init__(self, root: Path, version: int, main: str = TRAIN) -> None:
        self.root = root
        (root / "brought").mkdir(parents=True)
        (root / "brought_main.py").write_text(main)
        (root / "brought" / "__init__.py").touch()
        (root / "data.txt").write_text("some data")
        (root / ".env").write_text("PASSWORD=secret")
        self.write(version)

    def write(self, version: int) -> None:
        (self.root / "brought" / "helper.py").write_text(f"VERSION = {version}\n")

    def tuner(self, name: str, *, process: mqtune.Process | None = None, **options: Any) -> mqtune.Tuner:
        forget()
        sys.path.insert(0, str(self.root))
        try:
            train = importlib.import_module("brought_main").train
        finally:
            sys.path.remove(str(self.root))
        given = {"resources": mqtune.Resources(tags=[TAG]), "run": mqtune.RunOptions(progress=False), **options}
        return mqtune.Tuner(
            train,
            {"x": mqtune.uniform(0, 1)},
            metric="loss",
            mode="min",
            name=name,
            process=process or mqtune.Process(bundle=self.root),
            **given,
        )


def forget() -> None:
    for module in MODULES:
        sys.modules.pop(module, None)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MQTUNE_CODE_KEY", KEY)
    yield
    forget()


@pytest.fixture(scope="module")
def takes_code(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("takes")
    (folder / "empty").mkdir()
    options = ["--gpus", "0", "--slots", "2", "--tags", TAG, "--accept-code"]
    environment = {"MQTUNE_CODE_KEY": KEY}
    with running_worker(
        broker, folder / "w.log", *options, name="takes", code_root=folder / "empty", environment=environment
    ):
        yield broker


def losses(results: mqtune.Results) -> list[float | None]:
    return [trial.trial.best_value for trial in results.trials]


def bundles(results: mqtune.Results) -> list[str]:
    return [trial.attempts[-1].environment["bundle"] for trial in results.trials]


def test_a_worker_without_the_code_runs_what_the_driver_brings_and_it_comes_back(
    takes_code: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    project = Project(tmp_path / "project", 1)
    with caplog.at_level(logging.WARNING):
        results = project.tuner("brings", backend=takes_code, max_trials=3).run()
    assert [trial.status for trial in results.trials] == [TrialStatus.COMPLETED] * 3
    said = {"loss": 1, "data": "some data", "has_secret": False, "key": ""}
    assert results.trials[0].metrics.items() >= said.items()
    assert [record.getMessage() for record in caplog.records] == [
        "1 of the files for workers look like secrets, and stay here: .env"
    ]
    assert set(bundles(results)) == {results.definition["bundle"]}

    for place, *options in (["here"], ["broker", "--broker", takes_code]):
        given = CliRunner().invoke(group, ["code", "brings", "3", "-o", str(tmp_path / place), *options])
        assert given.exit_code == 0, given.output
        assert (tmp_path / place / "brought_main.py").read_text() == TRAIN
        assert not (tmp_path / place / ".env").exists()


def test_an_experiment_goes_on_with_changed_code_and_without_its_script_with_what_was_brought(
    takes_code: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    project = Project(tmp_path / "project", 1)
    project.tuner("goes-on", backend=takes_code, max_trials=1).run()
    project.write(2)
    strict = mqtune.Process(bundle=project.root, code="strict")
    with pytest.raises(CodeDiffers, match=r"brought/helper.py changed"):
        project.tuner("goes-on", backend=takes_code, max_trials=2, process=strict).run()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        results = project.tuner("goes-on", backend=takes_code, max_trials=2).run()
    assert "has changed since its first 1 trials (brought/helper.py)" in caplog.text
    assert losses(results) == [1, 2]
    first, second = bundles(results)
    assert first != second

    # On a machine with other code of that name, and without the key.
    project.write(3)
    monkeypatch.chdir(project.root)
    monkeypatch.delenv("MQTUNE_CODE_KEY")
    monkeypatch.setenv("MQTUNE_HOME", str(tmp_path / "elsewhere"))
    on = mqtune.Tuner.attach("goes-on", backend=takes_code, max_trials=3, run=mqtune.RunOptions(progress=False)).run()
    assert losses(on) == [1, 2, 2]
    assert bundles(on)[-1] == second


def test_code_that_is_signed_with_another_key_is_refused_and_without_one_nothing_begins(
    takes_code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    project = Project(tmp_path / "project", 1)
    monkeypatch.setenv("MQTUNE_CODE_KEY", "a key that the workers lack")
    with pytest.raises(CodeRefused, match=r"worker takes@.*is not signed with this worker's MQTUNE_CODE_KEY"):
        project.tuner("other-key", backend=takes_code, max_trials=2).run()
    monkeypatch.delenv("MQTUNE_CODE_KEY")
    with pytest.raises(ConfigurationError, match=r"needs MQTUNE_CODE_KEY.*is not set.*openssl rand"):
        project.tuner("no-key", backend=takes_code).run()


def test_a_worker_with_another_copy_of_the_code_is_told_of_and_refused_where_that_is_strict(
    broker: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    project, copy = Project(tmp_path / "project", 1, PLAIN), Project(tmp_path / "copy", 7, PLAIN)
    options = {"backend": broker, "resources": mqtune.Resources(tags=["copies"]), "max_trials": 2}
    worker = ["--gpus", "0", "--slots", "1", "--tags", "copies"]
    with running_worker(broker, tmp_path / "worker.log", *worker, name="stale", code_root=copy.root):
        with caplog.at_level(logging.WARNING):
            results = project.tuner("copied", process=mqtune.Process(), **options).run()
        assert losses(results) == [7, 7]
        assert {tuple(each.attempts[-1].environment["differs"]) for each in results} == {("brought/helper.py",)}
        assert caplog.text.count("runs other code than this experiment's: brought/helper.py there") == 1
        with pytest.raises(
            CodeDiffers, match=r"worker stale@.*code that has changed since the experiment began: brought/helper.py"
        ):
            project.tuner("copied-strictly", process=mqtune.Process(code="strict"), **options).run()


def test_edits_change_nothing_while_a_driver_runs_and_are_told_of_by_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    project = Project(tmp_path / "project", 1, PLAIN)

    def tuner(trials: int) -> mqtune.Tuner:
        # With "spawn" each trial imports the code anew.
        here = {"backend": mqtune.Local(slots=1), "process": mqtune.Process(start_method="spawn")}
        return project.tuner("edited", resources=mqtune.Resources(), max_trials=trials, **here)

    with contextlib.closing(tuner(3)) as first:
        drive(first, lambda: first.get_trials() and first.get_trials()[0].status.is_terminal)
        (project.root / "brought" / "helper.py").write_text("( half a line")
        assert losses(first.run()) == [1, 1, 1]

    project.write(2)
    with caplog.at_level(logging.WARNING):
        assert losses(tuner(3).run()) == [1, 1, 1]
        assert (
            "code has changed since (brought/helper.py): nothing runs now, and the results are of the earlier code"
            in caplog.text
        )
        assert "or `mqtune delete edited`" in caplog.text
        more = tuner(4).run()
    assert "has changed since its first 3 trials (brought/helper.py)" in caplog.text
    assert losses(more) == [1, 1, 1, 2]
    (change,) = more.experiment.code_changes
    assert (change.trials, change.files) == (3, ("brought/helper.py",))
