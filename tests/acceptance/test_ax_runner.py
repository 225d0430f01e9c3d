"""Ax's own loops over mqtune's workers, unmodified: what there is of each trial, whatever is lost, doubled or away."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import trainables

pytest.importorskip("ax")

from ax.adapter.registry import Generators
from ax.core.arm import Arm
from ax.core.experiment import Experiment
from ax.core.objective import Objective
from ax.core.optimization_config import OptimizationConfig
from ax.core.parameter import ParameterType, RangeParameter
from ax.core.search_space import SearchSpace
from ax.core.trial import Trial
from ax.core.trial_status import TrialStatus as Status
from ax.early_stopping.strategies import PercentileEarlyStoppingStrategy
from ax.generation_strategy.generation_node import GenerationNode
from ax.generation_strategy.generation_strategy import GenerationStrategy
from ax.generation_strategy.generator_spec import GeneratorSpec
from ax.orchestration.orchestrator import (
    Orchestrator,
    OrchestratorOptions,
)
from ax.storage.json_store.load import load_experiment

from mqtune.integrations.ax_runner import MqtuneMetric, MqtuneRunner, registry_bundle

# Of what Ax does by itself.
pytestmark = pytest.mark.filterwarnings(r"ignore:::(ax|botorch|gpytorch|linear_operator)\b")

#: Stops the worse half, by their curves.
STOPS: Final = PercentileEarlyStoppingStrategy(percentile_threshold=50.0, min_curves=2, min_progression=2)
#: Longer than anything takes here, on a machine that runs other tests.
DONE_S: Final = 60.0

_names = itertools.count(1)
New = Callable[..., Experiment]


def experiment_of(runner: MqtuneRunner, *metrics: MqtuneMetric) -> Experiment:
    return Experiment(
        name=f"ax/{os.getpid()} {next(_names)}",
        search_space=SearchSpace([RangeParameter("x", ParameterType.FLOAT, 0.0, 1.0)]),
        optimization_config=OptimizationConfig(Objective("-loss", metric_name_to_signature={"loss": "loss"})),
        metrics=[MqtuneMetric("loss", lower_is_better=True), *metrics],
        runner=runner,
    )


@pytest.fixture
def new(fleet: str) -> Iterator[New]:
    """Begin one of Ax's experiments with a trainable of trainables.py."""
    begun = []

    def new(trainable: str, *metrics: MqtuneMetric, **options: Any) -> Experiment:
        runner = MqtuneRunner(getattr(trainables, trainable), **{"backend": fleet, **options})
        begun.append(experiment_of(runner, *metrics))
        return begun[-1]

    yield new
    for each in begun:
        each.runner.stop_all(each)
        each.runner.close()


def loop(experiment: Experiment, **options: Any) -> Orchestrator:
    sobol = GenerationNode(name="Sobol", generator_specs=[GeneratorSpec(Generators.SOBOL, {"seed": 1})])
    quick = {
        "init_seconds_between_polls": 0.05,
        "min_seconds_before_poll": 0.0,
        "seconds_between_polls_backoff_factor": 1.0,
        "logging_level": logging.WARNING,
    }
    return Orchestrator(experiment, GenerationStrategy(nodes=[sobol]), OrchestratorOptions(**{**quick, **options}))


def trial_of(experiment: Experiment, x: float = 0.5) -> Trial:
    """Have a trial run."""
    return experiment.new_trial().add_arm(Arm({"x": x})).run()


def poll(experiment: Experiment) -> dict[Status, set[int]]:
    found: dict[Status, set[int]] = experiment.runner.poll_trial_status(experiment.trials.values())
    return found


def statuses(trials: list[Trial]) -> set[str]:
    """What they are at mqtune."""
    return {trial.run_metadata["mqtune_status"] for trial in trials}


def losses(experiment: Experiment) -> dict[int, list[tuple[int, float]]]:
    """The steps and values that Ax has, by trial."""
    found: dict[int, list[tuple[int, float]]] = {}
    for row in experiment.data._data_rows:
        if row.metric_name == "loss":
            found.setdefault(row.trial_index, []).append((row.step, row.mean))
    return found


def test_axs_loop_runs_its_trials_with_every_report_and_what_waits_in_a_queue_runs_for_it(new: New) -> None:
    experiment = new("steady", MqtuneMetric("epoch"))

    loop(experiment, max_pending_trials=4).run_n_trials(6)

    assert {trial.status for trial in experiment.trials.values()} == {Status.COMPLETED}
    for index, trial in experiment.trials.items():
        x = trial.arm.parameters["x"]
        assert losses(experiment)[index] == [(step, pytest.approx(x / step)) for step in range(1, 10)]
    epochs = [row.mean for row in experiment.data._data_rows if row.metric_name == "epoch" and row.trial_index == 3]
    assert epochs == list(range(1, 10))
    metadata = experiment.trials[5].run_metadata
    assert (metadata["mqtune_trials"], metadata["mqtune_status"]) == ({"5_0": "0006"}, "COMPLETED")
    assert abs(metadata["start_time"] - experiment.trials[5].time_run_started.timestamp()) < DONE_S


def test_a_trial_that_fails_says_why_and_keeps_what_it_reported(new: New) -> None:
    experiment = new("raises")
    trial_of(experiment)

    loop(experiment).run_n_trials(0)

    assert experiment.trials[0].status is Status.FAILED
    assert "ValueError: the learning rate exploded" in experiment.trials[0].status_reason
    assert "Traceback" in experiment.trials[0].status_reason
    assert losses(experiment) == {0: [(1, 1.0)]}


#: Runs four trials under Ax's loop, of which it saves all that there is whenever it looks, and is killed while they run.
KILLED: Final = """
import os, signal, sys
import trainables
from ax.storage.json_store.save import save_experiment
from test_ax_runner import STOPS, experiment_of, loop
from mqtune.integrations.ax_runner import MqtuneRunner, registry_bundle

path, broker = sys.argv[1:]

def save(orchestrator):
    curves = {row.trial_index for row in orchestrator.experiment.data._data_rows}
    save_experiment(orchestrator.experiment, path, registry_bundle().encoder_registry)
    if curves:
        os.kill(os.getpid(), signal.SIGKILL)

experiment = experiment_of(MqtuneRunner(trainables.dawdles, backend=broker, name=f"killed-{os.getpid()}"))
loop(experiment, max_pending_trials=3, early_stopping_strategy=STOPS).run_n_trials(4, idle_callback=save)
"""


def test_a_loop_that_was_killed_goes_on_from_its_json_with_the_trials_that_ran_on_and_stops_the_worse(
    fleet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "ax.json")
    here = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])}
    killed = subprocess.run([sys.executable, "-c", KILLED, path, fleet], env=here, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    monkeypatch.setenv("MQTUNE_BROKER", fleet)
    loaded = load_experiment(path, registry_bundle().decoder_registry)
    assert Status.RUNNING in {trial.status for trial in loaded.trials.values()}

    with loaded.runner:
        loop(loaded, early_stopping_strategy=STOPS).run_n_trials(1)
        found = loaded.runner.driven(loaded).do(lambda tuner: tuner.get_trials())

    # By Sobol's sequence the second has the highest x, and takes 12 s where nobody stops it.
    assert loaded.trials[1].status is Status.EARLY_STOPPED
    assert {trial.status for trial in loaded.trials.values()} == {Status.COMPLETED, Status.EARLY_STOPPED}
    assert {index: len(curve) for index, curve in losses(loaded).items()} == {
        index: trial.reports for index, trial in enumerate(found)
    }
    assert found[0].reports == 30
    assert [(trial.config, len(trial.attempts)) for trial in found] == [
        (trial.arm.parameters, 1) for trial in loaded.trials.values()
    ]
