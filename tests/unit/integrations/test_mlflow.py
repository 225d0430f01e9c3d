"""Trials as runs of MLflow, in a database of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from logged import curve, tuner

import mqtune
from mqtune.core.errors import ConfigurationError

mlflow = pytest.importorskip("mlflow")
# What it imports warns of what it uses itself.
pytestmark = pytest.mark.filterwarnings("default")

from mqtune.integrations import MLflow  # noqa: E402 - it needs mlflow


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A client of a database, which takes seconds to make."""
    return mlflow.MlflowClient(f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db")


def runs(client: Any, experiment: str) -> dict[str, Any]:
    """The runs of an experiment by their names."""
    found = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return {run.info.run_name: run for run in found}


def test_each_trial_is_a_run_below_the_experiments_with_params_metrics_and_its_end(client: Any, tmp_path: Path) -> None:
    # A database takes longer to make on a busy machine than a run waits for callbacks at its end.
    results = tuner(mqtune.Callback()).run()
    MLflow(client.tracking_uri, experiment=tmp_path.name).write(results)

    found = runs(client, tmp_path.name)
    assert sorted(found) == ["0001", "0002", "mine"]
    good, failed = found["0001"], found["0002"]
    assert good.data.tags["mlflow.parentRunId"] == found["mine"].info.run_id
    assert good.data.params == {"x": "0.5", "layers.widths": "[32, 8]"}
    history = client.get_metric_history(good.info.run_id, "loss")
    assert [point.step for point in history] == [1, 2, 3]
    assert [point.timestamp for point in history] == [int(r.timestamp * 1000) for r in results.reports("0001")]
    assert good.data.metrics["val.top_5"] == 0.5
    assert [run.info.status for run in (good, failed, found["mine"])] == ["FINISHED", "FAILED", "FINISHED"]
    assert failed.data.tags["mqtune.status"] == "failed"


def test_later_drivers_and_a_later_write_add_no_point_twice(client: Any, tmp_path: Path) -> None:
    def logger() -> MLflow:
        return MLflow(client.tracking_uri, experiment=tmp_path.name)

    backend = mqtune.Simulated(curve, keep_journal=True)
    first = tuner(logger(), backend)
    for _ in range(4):
        first.step(1.0)
    first.close()
    assert runs(client, tmp_path.name)["mine"].info.status == "KILLED", "its driver ended before it"

    results = tuner(logger(), backend).run()
    logger().write(results)

    found = runs(client, tmp_path.name)
    assert sorted(found) == ["0001", "0002", "mine"]
    assert found["mine"].info.status == "FINISHED"
    for trial in ("0001", "0002"):
        history = client.get_metric_history(found[trial].info.run_id, "loss")
        assert [point.step for point in history] == [1, 2, 3]


def test_a_place_that_can_not_be_used_is_said_before_anything_runs() -> None:
    with pytest.raises(ConfigurationError, match="MLflow can't be used"):
        tuner(MLflow("nonsense://here")).run()
