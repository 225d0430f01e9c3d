"""Experiments of other tools become saved ones, which everything that reads experiments reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from simulation import tuner_on

import mqtune
from mqtune import Results
from mqtune.cli import group
from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import TrialStatus


def run(*arguments: str) -> str:
    done = CliRunner().invoke(group, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def ray_folder(root: Path) -> Path:
    """A folder as Ray Tune 2 writes one: a trial that has ended, one that has failed, and one that was cut off."""
    folder = root / "train fn"
    trials = {"a_00000": (0.1, "TERMINATED", 3), "a_00001": (0.9, "ERROR", 0), "a_00002": (0.5, "RUNNING", 2)}
    data = [[json.dumps({"trial_id": id_, "status": status}), "{}"] for id_, (_, status, _) in trials.items()]
    for number, (id_, (x, status, reports)) in enumerate(trials.items()):
        trial = folder / f"train_{id_}_{number}_x={x}"
        trial.mkdir(parents=True)
        (trial / "params.json").write_text(json.dumps({"x": x, "opt": {"lr": 0.5}}))
        lines = [
            {"loss": x / step, "training_iteration": step, "time_total_s": 2.0 * step, "timestamp": 1_700_000_000 + 10 * number + step,
             "trial_id": id_, "done": False, "hostname": "node1", "config": {"x": x}}
            for step in range(1, reports + 1)
        ]  # fmt: skip
        (trial / "result.json").write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"loss": 0.')
        if status == "ERROR":
            (trial / "error.txt").write_text("Traceback\nRuntimeError: too big\n")
    state = {"trial_data": data, "runner_data": {"_metric": "loss"}}
    (folder / "experiment_state-2026-01-01_00-00-00.json").write_text(json.dumps(state))
    return folder


def test_a_folder_of_ray_tunes_is_imported_with_what_became_of_each_trial(tmp_path: Path) -> None:
    told = run("import", str(ray_folder(tmp_path)), "--mode", "min")

    assert told.startswith("train-fn: 3 trials: 1 completed, 1 early stopped, 1 failed · 5 reports · ")
    results = Results.load("train-fn")
    done, cut, failed = sorted(results, key=lambda trial: trial.config["x"])
    assert (done.status, done.config, done.value) == (TrialStatus.COMPLETED, {"x": 0.1, "opt": {"lr": 0.5}}, 0.1 / 3)
    assert (cut.status, cut.reason, cut.trial.reports) == (TrialStatus.EARLY_STOPPED, "it had not ended", 2)
    assert (failed.status, failed.reason) == (TrialStatus.FAILED, "RuntimeError: too big")
    assert next((report.timestamp, report.metrics) for report in results.reports(done.id)) == (
        1_700_000_001.0,
        {"loss": 0.1, "training_iteration": 1, "time_total_s": 2.0},
    )
    assert done.attempts[0].host == "node1"
    assert (results.experiment.outcome, results.best.id) == ("finished", done.id)
    assert "finished" in run("list")


def curve(config: dict[str, Any]) -> Iterator[tuple[float, dict[str, Any]]]:
    for step in range(1, 10):
        yield 1.0, {"loss": config["net"]["lr"] / step}


@pytest.fixture
def original() -> Results:
    space = {"net": {"lr": mqtune.uniform(0, 1)}, "kind": mqtune.choice(["a", "b"])}
    return tuner_on(mqtune.Simulated(curve), curve, space, max_trials=9, name="original", seed=1, scheduler=mqtune.ASHA(max_t=9, grace_period=1)).run()  # fmt: skip


def seen(results: Results) -> list[tuple[object, ...]]:
    return sorted((str(each.config), each.status.value, each.trial.reports, each.value) for each in results)


def test_what_was_exported_for_syne_tune_comes_back(original: Results, tmp_path: Path) -> None:
    run("export", "original", "--format", "syne-tune", "-o", str(tmp_path / "st"))
    run("import", str(tmp_path / "st"), "--name", "again")

    again = Results.load("again")
    assert seen(again) == seen(original)
    assert {each.status.value for each in again} == {"completed", "early_stopped"}
    assert (again.experiment.metric, again.experiment.mode) == ("loss", "min")


def test_what_was_exported_as_csv_comes_back_with_its_best_reports(original: Results, tmp_path: Path) -> None:
    run("export", "original", "-o", str(tmp_path / "t.csv"))
    run("import", str(tmp_path / "t.csv"), "--metric", "loss", "--mode", "min")

    again = Results.load("t")
    assert [(*each[:2], each[3]) for each in seen(again)] == [(*each[:2], each[3]) for each in seen(original)]


def test_a_plain_table_has_its_metric_and_its_config(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("lr,kind,flag,acc\n0.1,a,True,0.5\n1e-3,8,False,0.75\n0.2,b,True,\n")

    for wrong in ([], ["--metric", "acc"], ["--metric", "loss", "--mode", "max"]):
        with pytest.raises(ConfigurationError, match=r"--metric|no column"):
            run("import", str(table), *wrong)
    run("import", str(table), "--metric", "acc", "--mode", "max")

    found = Results.load("table")
    assert [each.config for each in found] == [
        {"lr": 0.1, "kind": "a", "flag": True},
        {"lr": 1e-3, "kind": 8, "flag": False},
    ]
    assert found.best.value == 0.75
    with pytest.raises(ConfigurationError, match="already exists; give another name"):
        run("import", str(table), "--metric", "acc", "--mode", "max")


def test_a_study_of_optunas_is_imported_and_learnt_from(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    path = tmp_path / "study.log"
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    study = optuna.create_study(study_name="my study", storage=storage, direction="maximize")

    def objective(trial: Any) -> float:
        lr = trial.suggest_float("lr", 0, 1)
        trial.report(lr / 2, 0)
        if trial.number == 1:
            raise optuna.TrialPruned
        if trial.number == 2:
            raise ValueError("small")
        return lr  # type: ignore[no-any-return]

    # A pruned trial counts for the best of ours, and not of Optuna's: here it isn't the best.
    for lr in (0.5, 0.25, 0.1, 0.75):
        study.enqueue_trial({"lr": lr})
    study.optimize(objective, n_trials=4, catch=(ValueError,))
    study.ask()
    run("import", str(path))

    results = Results.load("my-study")
    assert [each.status.value for each in results] == ["completed", "early_stopped", "failed", "completed"]
    assert results.best.value == study.best_value
    assert [report.metrics["value"] for report in results.reports("0001")] == [
        study.trials[0].value / 2,
        study.trials[0].value,
    ]
    assert results["0003"].reason == "Error: it has failed in optuna"
    learner = mqtune.Tuner(
        curve, {"lr": mqtune.uniform(0, 1)}, metric="value", mode="max", max_trials=1, name="learner",
        searcher=mqtune.WarmStart(["my-study"]), backend=mqtune.Simulated(lambda config: iter([(1.0, {"value": config["lr"]})])),
        run=mqtune.RunOptions(progress=False),
    )  # fmt: skip
    assert len(learner.run().definition["learnt"]) == 3
    with pytest.raises(ConfigurationError, match="there is no study 'other'"):
        run("import", str(path), "--study", "other")


@pytest.mark.parametrize(
    ("name", "message"), [("missing", "missing does not exist"), ("folder", "not a folder of Ray")]
)
def test_what_is_of_no_tool_is_said(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "folder").mkdir()

    with pytest.raises(ConfigurationError, match=message):
        run("import", str(tmp_path / name))
