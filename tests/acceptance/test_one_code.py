"""An experiment has one code: what is edited while it runs changes nothing, and whoever has other code is told so, or refused."""

from __future__ import annotations

import importlib
import logging
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running import running_worker

import mqtune
from mqtune.core.errors import CodeDiffers
from mqtune.core.resources import Resources
from mqtune.core.trial import TrialStatus
from mqtune.testing.backends.world import drive

MODULES = ("code_main", "code_helper")
#: No other test's workers have it.
TAG = "code"


class Project:
    """A trainable that reports the version of a module that it imports."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        (root / "code_main.py").write_text(
            "import mqtune, code_helper\ndef train(config):\n    mqtune.report({'loss': code_helper.VERSION})\n"
        )
        self.write("1")

    def write(self, version: str) -> None:
        (self.root / "code_helper.py").write_text(f"VERSION = {version}\n")

    def tuner(self, name: str, **options: Any) -> mqtune.Tuner:
        for module in MODULES:
            sys.modules.pop(module, None)
        train = importlib.import_module("code_main").train
        return mqtune.Tuner(
            train,
            {"x": mqtune.uniform(0, 1)},
            metric="loss",
            mode="min",
            name=name,
            run=mqtune.RunOptions(progress=False),
            **options,
        )


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    project = Project(tmp_path / "project")
    monkeypatch.syspath_prepend(project.root)
    yield project
    for module in MODULES:
        sys.modules.pop(module, None)


def test_edits_change_nothing_while_a_driver_runs_and_are_told_of_by_the_next(
    project: Project, caplog: pytest.LogCaptureFixture
):
    # With "spawn" each trial imports the code anew.
    options = {"backend": mqtune.Local(slots=1), "process": mqtune.Process(start_method="spawn")}
    tuner = project.tuner("edited", max_trials=3, **options)
    try:
        drive(tuner, lambda: tuner.get_trials() and tuner.get_trials()[0].status.is_terminal)
        project.write("( half a line")
        results = tuner.run()
    finally:
        tuner.close()
    assert [trial.trial.best_value for trial in results.trials] == [1, 1, 1]

    project.write("2")
    with caplog.at_level(logging.WARNING):
        old = project.tuner("edited", max_trials=3, **options).run()
    assert len(old.trials) == 3
    assert "its code has changed since (code_helper.py): the results below are of the earlier code" in caplog.text

    caplog.clear()
    with caplog.at_level(logging.WARNING):
        more = project.tuner("edited", max_trials=4, **options).run()
    assert "has changed since its first 3 trials (code_helper.py)" in caplog.text
    assert [trial.trial.best_value for trial in more.trials] == [1, 1, 1, 2]
    (change,) = more.experiment.code_changes
    assert (change.trials, change.files) == (3, ("code_helper.py",))

    project.write("3")
    strictly = mqtune.Process(start_method="spawn", code="strict")
    with pytest.raises(CodeDiffers, match=r"code_helper.py changed"):
        project.tuner("edited", max_trials=5, **{**options, "process": strictly}).run()


def test_a_worker_with_another_copy_of_the_code_is_told_of_and_refused_where_that_is_strict(
    project: Project, broker: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    copy = tmp_path / "copy"
    shutil.copytree(project.root, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "code_helper.py").write_text("VERSION = 7\n")
    options = {"backend": broker, "resources": Resources(tags=[TAG]), "max_trials": 2}
    worker = ["--gpus", "0", "--slots", "1", "--tags", TAG]
    with running_worker(broker, tmp_path / "worker.log", *worker, name="stale", code_root=copy):
        with caplog.at_level(logging.WARNING):
            results = project.tuner("copied", **options).run()
        assert [trial.status for trial in results.trials] == [TrialStatus.COMPLETED] * 2
        assert caplog.text.count("runs other code than this experiment's: code_helper.py there") == 1
        assert {tuple(t.attempts[-1].environment["differs"]) for t in results.trials} == {("code_helper.py",)}

        with pytest.raises(CodeDiffers, match=r"worker stale@.*code_helper.py there is not as it was"):
            project.tuner("copied-strictly", process=mqtune.Process(code="strict"), **options).run()
