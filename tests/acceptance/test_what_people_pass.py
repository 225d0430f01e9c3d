"""Trainables without a name in a file run on this machine and on a broker's workers, with the values that they use."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import optuna
import pytest
from cells import run_cells
from objectives import Shifted, ShiftError, shifted
from running import running_worker

import mqtune
from mqtune.core.errors import TrainableNotFound, TrialFailed
from mqtune.integrations.optuna_optimize import optuna_optimize

KEY = "the key of this test's workers"
#: No other test's workers have it.
TAG = "takes-what-people-pass"
PROGRAM = """
import functools, json, sys
import numpy as np
import mqtune
from beside import OFFSET


class Model:
    def __init__(self, weights):
        self.weights = weights

    def loss(self, config):
        return {"loss": float(self.weights.sum()) + config["x"], "module": Model.__name__}

    def __call__(self, config):
        return self.loss(config)

    def reports(self):
        def train(config):
            for step in range(2):
                mqtune.report({"loss": float(self.weights.sum()) + config["x"] + step})

        return train


def base(config, weights):
    return {"loss": float(weights.sum()) + config["x"] + OFFSET}


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    weights = np.arange(4.0)
    kinds = {
        "lambda": lambda config: base(config, weights),
        "closure": Model(weights).reports(),
        "partial": functools.partial(base, weights=weights),
        "method": Model(weights).loss,
        "instance": Model(weights),
    }
    resources = mqtune.Resources(tags=options["tags"])
    for kind, train in kinds.items():
        if kind in options["kinds"]:
            results = mqtune.Tuner(
                train, {"x": 1}, metric="loss", mode="min", resources=resources, run=mqtune.RunOptions(progress=False)
            ).run()
            print(json.dumps([kind, results.best.value]), flush=True)
"""
VALUES = {"lambda": 107, "closure": 7, "partial": 107, "method": 7, "instance": 7}


def run(folder: Path, kinds: list[str], tags: list[str] | None = None) -> dict[str, float]:
    """Run the program for some kinds, and return the best value of each."""
    (folder / "program.py").write_text(PROGRAM)
    (folder / "beside.py").write_text("OFFSET = 100\n")
    options = json.dumps({"kinds": kinds, "tags": tags or []})
    done = subprocess.run(
        [sys.executable, "program.py", options], cwd=folder, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))


def test_each_kind_of_a_script_runs_on_this_machine(tmp_path: Path) -> None:
    assert run(tmp_path, [*VALUES]) == VALUES


@pytest.fixture
def takes_code(broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The broker, with a worker that has no code of its own and accepts a driver's."""
    monkeypatch.setenv("MQTUNE_CODE_KEY", KEY)
    (tmp_path / "empty").mkdir()
    options = ["--gpus", "0", "--slots", "1", "--tags", TAG, "--accept-code"]
    with running_worker(
        broker,
        tmp_path / "w.log",
        *options,
        name="takes",
        code_root=tmp_path / "empty",
        environment={"MQTUNE_CODE_KEY": KEY},
    ):
        yield broker


def test_a_worker_without_the_code_runs_them_too(
    takes_code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MQTUNE_BROKER", takes_code)
    (tmp_path / "project").mkdir()
    assert run(tmp_path / "project", ["lambda", "method"], [TAG]) == {"lambda": 107, "method": 7}


def test_a_notebooks_lambda_brings_the_arrays_of_other_cells(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    main = run_cells(
        monkeypatch,
        "import numpy as np\nDATA = np.arange(3.0)\nclass Model:\n    def loss(self, x): return x + DATA.sum()\n",
        "model = Model()\ntrain = [lambda config: {'loss': model.loss(config['x'])}][0]",
    )
    results = mqtune.Tuner(main.train, {"x": 1}, metric="loss", mode="min", run=mqtune.RunOptions(progress=False)).run()
    assert results.best is not None
    assert results.best.metrics["loss"] == 4


def test_an_objective_of_optuna_may_be_an_instance_or_a_partial_and_its_errors_are_known() -> None:
    local = mqtune.Local(slots=1)
    for objective in (Shifted(np.ones(2)), functools.partial(shifted, np.ones(2))):
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
        optuna_optimize(study, objective, n_trials=3, n_jobs=1, catch=ShiftError, backend=local)
        assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", "COMPLETE"]
        assert study.trials[0].value == study.trials[0].params["x"] + 2
    with pytest.raises(ShiftError) as error:
        optuna_optimize(optuna.create_study(), Shifted(np.ones(2)), n_trials=2, n_jobs=1, backend=local)
    assert isinstance(error.value, TrialFailed)


def test_an_objective_that_holds_what_can_not_travel_is_refused_with_its_name() -> None:
    objective = Shifted(np.array([open]))
    with pytest.raises(TrainableNotFound, match=r"self\.shifts, an array of Python objects.*`from data import …`"):
        optuna_optimize(optuna.create_study(), objective, n_trials=1)
