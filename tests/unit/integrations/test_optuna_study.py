"""An experiment as a study of Optuna, after it has ended and while it runs, and as a file."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import numpy as np
import optuna
import pytest
from click.testing import CliRunner
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from searcher_story import DOMAINS, train
from simulation import tuner_on

import mqtune.integrations
from mqtune import Results
from mqtune.cli import group
from mqtune.core.errors import ConfigurationError
from mqtune.core.events import ExperimentCreated
from mqtune.core.trial import Config

SPACE = {**DOMAINS, "steps": mqtune.qrandint(10, 95, 10)}


def curve(config: Config) -> Any:
    """Loss by epoch; some trials diverge."""
    for epoch in range(1, 10):
        yield 60.0, {"loss": math.nan if config["x"] > 0.9 else (config["x"] - 0.3) ** 2 + 1 / epoch}


def tuned(space: dict[str, Any], curve: Any, **options: Any) -> Results:
    return tuner_on(mqtune.Simulated(curve, slots=4), train, space, seed=5, **options).run()


@pytest.fixture(scope="module")
def results() -> Results:
    return tuned(SPACE, curve, scheduler=mqtune.ASHA(max_t=9, grace_period=1, reduction_factor=3), max_trials=40)


def test_a_study_has_trials_with_configs_reports_and_ends(results: Results, capfd: pytest.CaptureFixture[str]) -> None:
    study = results.to_optuna_study()

    assert capfd.readouterr() == ("", "")
    assert (study.study_name, study.direction.name, study.metric_names) == (results.name, "MINIMIZE", ["loss"])
    assert len(study.trials) == len(results) == 40
    assert {trial.state for trial in study.trials} >= {TrialState.COMPLETE, TrialState.PRUNED}
    reports: dict[str, dict[int, float]] = {}
    for report in results.reports():
        reports.setdefault(report.trial, {})[report.metrics["training_iteration"]] = report.metrics["loss"]
    for seen, trial in zip(study.trials, results, strict=True):
        assert seen.user_attrs["mqtune.trial"] == trial.id
        assert seen.user_attrs["mqtune.status"] == trial.status.name
        assert repr(seen.intermediate_values) == repr(reports[trial.id])
        own, act = dict(trial.config), trial.config["net"]["act"]
        net = {"net/width": own.pop("net")["width"], "net/act": str(act) if isinstance(act, list | dict) else act}
        del own["half"], own["fixed"]
        assert seen.params == {**own, **net}
        started = trial.attempts[0].started_at
        assert started is not None
        assert seen.datetime_start == datetime.fromtimestamp(started, UTC).astimezone().replace(tzinfo=None)
        assert seen.datetime_start < seen.datetime_complete
    losses = [trial.metrics["loss"] for trial in results if trial.status.is_completed]
    assert study.best_value == min(loss for loss in losses if not math.isnan(loss))
    assert optuna.importance.get_param_importances(study, params=["x", "q"]).keys() == {"x", "q"}


def test_a_study_of_a_running_experiment_has_its_waiting_and_running_trials(results: Results) -> None:
    created, *events = results.events()
    assert isinstance(created, ExperimentCreated)

    studies = (mqtune.integrations.study_of(created, events[:end]) for end in range(0, len(events), 25))
    seen = {trial.state for study in studies for trial in study.trials}

    assert seen >= {TrialState.WAITING, TrialState.RUNNING, TrialState.COMPLETE, TrialState.PRUNED}


def test_optunas_dashboard_serves_an_exported_experiment(results: Results, tmp_path: Path) -> None:
    file = tmp_path / "study.optuna"
    command = ["export", str(results.folder), "-o", str(file)]
    assert CliRunner().invoke(group, command).exit_code == 0
    # Here, as it imports SciPy and scikit-learn, which takes seconds in each process that collects the tests.
    import optuna_dashboard

    application = optuna_dashboard.wsgi(JournalStorage(JournalFileBackend(str(file))))

    def ask(path: str) -> Any:
        environment: dict[str, Any] = {"PATH_INFO": path}
        setup_testing_defaults(environment)
        statuses: list[str] = []
        body = b"".join(application(environment, lambda status, *_: statuses.append(status)))
        assert statuses == ["200 OK"]
        return json.loads(body)

    (summary,) = ask("/api/studies")["study_summaries"]
    assert summary["study_name"] == results.name
    states = [trial["state"] for trial in ask(f"/api/studies/{summary['study_id']}")["trials"]]
    assert states == [trial.state.name.capitalize() for trial in results.to_optuna_study().trials]
    again = CliRunner().invoke(group, command)
    assert (type(again.exception), "is there already" in str(again.exception)) == (ConfigurationError, True)


def test_a_study_of_a_conditional_space_names_parameters_as_the_config_does() -> None:
    optimizers = [
        {"name": "adam", "lr": mqtune.loguniform(1e-5, 1), "decay": mqtune.uniform(0, 1)},
        {"name": "sgd", "lr": mqtune.uniform(0, 1), "decay": mqtune.uniform(0, 1)},
    ]
    space = {
        "opt": mqtune.choice(optimizers),
        "layers": [mqtune.randint(1, 4), 7, mqtune.sample_from(lambda config: config["layers"][0])],
        "clip": mqtune.choice([mqtune.uniform(1, 2), None]),
    }
    results = tuned(space, lambda config: [(1.0, {"loss": config["opt"]["lr"]})], max_trials=30)

    for seen, trial in zip(results.to_optuna_study().trials, results, strict=True):
        opt = trial.config["opt"]
        lr = "opt/0/lr" if opt["name"] == "adam" else "opt/1/lr"
        clip = {} if trial.config["clip"] is None else {"clip/0": trial.config["clip"]}
        assert seen.params == {
            "opt": opt["name"],
            lr: opt["lr"],
            "opt/decay": opt["decay"],
            "layers[0]": trial.config["layers"][0],
            "clip": "uniform(1.0, 2.0)" if clip else "None",
            **clip,
        }
    assert np.isnan(results.array("opt.lr")).sum() == 0
