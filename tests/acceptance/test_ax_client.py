"""A loop over mqtune's workers for Ax's Client: every report reaches it, its early stopping works, and it goes on after a kill."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import pytest
import trainables

import mqtune
from mqtune.core.errors import ConfigurationError

pytest.importorskip("ax")

from ax.api.client import Client
from ax.api.configs import RangeParameterConfig
from ax.core.trial_status import TrialStatus as Status
from ax.early_stopping.strategies import PercentileEarlyStoppingStrategy

from mqtune.integrations.ax_client import run_client

# Of what Ax does by itself.
pytestmark = pytest.mark.filterwarnings(r"ignore:::(ax|botorch|gpytorch|linear_operator)\b")

STRATEGY: Final = PercentileEarlyStoppingStrategy(percentile_threshold=50.0, min_curves=2, min_progression=2)


@pytest.fixture
def client() -> Client:
    client = Client()
    client.configure_experiment([RangeParameterConfig("x", (0.0, 1.0), "float")], name="tuned by Ax")
    client.configure_optimization("-loss")
    client.configure_generation_strategy("random_search", initialization_random_seed=1, initialize_with_center=False)
    client.set_early_stopping_strategy(STRATEGY)
    return client


def statuses(client: Client) -> list[str]:
    return [trial.status.name for trial in client._experiment.trials.values()]


def curves(client: Client) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for row in client._experiment.data._data_rows:
        found.setdefault(row.trial_index, []).append(row.step)
    return found


def test_all_trials_run_each_with_its_whole_curve_and_the_worse_are_stopped_early(
    client: Client, fleet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending = []
    ask = client.get_next_trials

    def get_next_trials(*arguments: Any) -> Any:
        pending.append(statuses(client).count("RUNNING"))
        return ask(*arguments)

    monkeypatch.setattr(client, "get_next_trials", get_next_trials)

    run_client(client, trainables.dawdles, 7, backend=fleet)

    found = statuses(client)
    assert [index for index, status in enumerate(found) if status == "EARLY_STOPPED"] == [1, 5, 6]
    assert [index for index, status in enumerate(found) if status == "COMPLETED"] == [0, 2, 3, 4]
    # Two slots, and one ahead.
    assert max(pending) == 2
    for index, steps in curves(client).items():
        assert steps == list(range(1, len(steps) + 1))
        assert len(steps) == 30 or found[index] == "EARLY_STOPPED"


def test_a_trial_that_fails_or_lacks_the_metric_is_what_ax_calls_that(client: Client, fleet: str) -> None:
    client.attach_trial({"x": 0.9})
    # What it reported before counts, so that the name of the metric is right.
    run_client(client, trainables.fails_above_a_half, 1, backend=fleet, name=f"fails-{os.getpid()}")
    client.attach_trial({"x": 0.9})
    run_client(client, trainables.reports_something_else, 2, backend=fleet, name=f"lacks-{os.getpid()}")

    assert statuses(client) == ["FAILED", "ABANDONED"]
    assert "0.9 is too much" in client._experiment.trials[0].status_reason


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"max_trials": 0}, "max_trials=0 is not a whole number of at least 1"),
        ({"ahead": -1}, "ahead=-1 is not a whole number of at least 0"),
        ({"save_to": "/nowhere/at all.json"}, "there is no folder /nowhere"),
        ({"client": Client()}, "the client has no objective; call configure_experiment"),
    ],
)
def test_arguments_that_can_not_be_meant_are_refused_before_anything_runs(
    client: Client, arguments: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"run_client: .*{told}"):
        run_client(**{"client": client, "trainable": trainables.learns, "max_trials": 1, **arguments})
    assert statuses(client) == []


def test_a_script_that_was_killed_goes_on_with_what_it_saved_and_the_trials_that_ran_on(
    client: Client, fleet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(index: int) -> None:
        raise KeyboardInterrupt(index)

    monkeypatch.setattr(client, "complete_trial", killed)
    path = tmp_path / "client.json"
    with pytest.raises(KeyboardInterrupt):
        run_client(client, trainables.learns, 4, 2, backend=fleet, early_stopping=False, save_to=path)

    loaded = Client.load_from_json_file(str(path))
    assert statuses(loaded) == ["RUNNING"] * 3
    run_client(loaded, trainables.learns, 4, 2, backend=fleet, early_stopping=False, save_to=path)

    assert statuses(Client.load_from_json_file(str(path))) == ["COMPLETED"] * 4
    assert {len(steps) for steps in curves(loaded).values()} == {30}
    experiments = [each for each in mqtune.Client(fleet).experiments() if each.name.startswith("tuned-by-Ax")]
    (experiment,) = [
        each for each in experiments if loaded._experiment.trials[0].run_metadata["mqtune_experiment"] == each.name
    ]
    found = experiment.results(tmp_path)
    assert [(each.config, len(each.attempts)) for each in found] == [
        (trial.arm.parameters, 1) for trial in loaded._experiment.trials.values()
    ]
    assert loaded._experiment.trials[0].status is Status.COMPLETED
