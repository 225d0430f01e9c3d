"""Ax's own loops over mqtune's workers, unmodified: what there is of each trial, whatever is lost, doubled or away."""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import trainables
from restartable import RestartableRedis
from running import running_worker
from waiting import eventually

import mqtune
from mqtune.core.timing import Timing
from mqtune.driver import KnownTrainable

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
from ax.orchestration.orchestrator import Orchestrator, OrchestratorInternalError, OrchestratorOptions
from ax.storage.json_store.load import load_experiment
from ax.storage.json_store.save import save_experiment

from mqtune.driver import BrokerDeployment
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
    return experiment.new_trial().add_arm(Arm({"x": x})).run()


def poll(experiment: Experiment) -> dict[Status, set[int]]:
    found: dict[Status, set[int]] = experiment.runner.poll_trial_status(experiment.trials.values())
    return found


def statuses(trials: list[Trial]) -> set[str]:
    return {trial.run_metadata["mqtune_status"] for trial in trials}


def losses(experiment: Experiment) -> dict[int, list[tuple[int, float]]]:
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


def test_what_is_queued_or_paused_runs_one_that_ax_has_forgotten_is_abandoned_and_stopping_fetches_all(
    new: New,
) -> None:
    experiment = new("slow")
    runner = experiment.runner
    # No trial is staged, and the room is Ax's own to limit.
    assert (runner.staging_required, runner.poll_available_capacity()) == (False, -1)
    trials = [trial_of(experiment, x) for x in (0.5, 0.6, 0.7)]
    assert runner.run_multiple([trials[0]]) == {0: trials[0].run_metadata}, (
        "one that Ax runs again is the one that runs"
    )
    eventually(lambda: poll(experiment) and statuses(trials) == {"RUNNING", "QUEUED"}, DONE_S)
    assert poll(experiment) == {Status.RUNNING: {0, 1, 2}}
    driven = runner.tuner_of(experiment)
    copied = runner.clone()
    assert (copied, copied.tuner_of(experiment)) == (runner, driven)
    driven.do(lambda tuner: tuner.trial("0001").pause())
    eventually(lambda: poll(experiment) and "PAUSED" in statuses(trials), DONE_S)
    assert poll(experiment) == {Status.RUNNING: {0, 1, 2}}

    first, second, _ = driven.do(lambda tuner: tuner.get_trials())
    trials[0].arm._parameters["x"] = 0.25
    assert runner.run(trials[0])["mqtune_trials"] == {"0_0": "0004"}
    eventually(lambda: first.status.name == "ABANDONED", DONE_S)

    eventually(lambda: second.reports > 3, DONE_S)
    trials[1].stop(Status.EARLY_STOPPED, reason="enough")
    assert trials[1].stop_metadata == {"mqtune_stopped": ["0002"]}
    eventually(lambda: second.status.is_terminal, DONE_S)
    assert (len(losses(experiment)[1]), second.reason) == (second.reports, "enough")
    assert runner.stop(trials[1]) == {"mqtune_stopped": []}


def test_a_group_whose_submission_fails_half_way_is_submitted_again_and_no_trial_is_doubled(
    new: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment, add, calls = new("steady"), mqtune.Tuner.add, itertools.count(1)

    def fails_once(tuner: mqtune.Tuner, *arguments: Any, **named: Any) -> Any:
        added = add(tuner, *arguments, **named)
        if next(calls) == 2:
            raise ConnectionError("the network blinked")
        return added

    monkeypatch.setattr(mqtune.Tuner, "add", fails_once)
    loop(experiment, max_pending_trials=3, run_trials_in_batches=True).run_n_trials(3)

    assert next(calls) == 6
    assert {trial.status for trial in experiment.trials.values()} == {Status.COMPLETED}
    found = experiment.runner.tuner_of(experiment).do(lambda tuner: [each.config for each in tuner.get_trials()])
    assert found == [trial.arm.parameters for trial in experiment.trials.values()]


@pytest.mark.parametrize(
    ("trainable", "status", "reason", "reported"),
    [
        ("raises", Status.FAILED, r"Traceback(.|\n)*ValueError: the learning rate exploded", {0: [(1, 1.0)]}),
        ("reports_something_else", Status.ABANDONED, "has reported no 'loss', or has diverged", {}),
        ("reports_nan", Status.ABANDONED, "has reported no 'loss', or has diverged", {}),
    ],
)
def test_a_trial_that_fails_or_has_no_metric_says_why_and_keeps_what_it_reported(
    new: New, trainable: str, status: Status, reason: str, reported: dict[int, list[tuple[int, float]]]
) -> None:
    experiment = new(trainable)
    trial = trial_of(experiment, x=0.1)
    loop(experiment).run_n_trials(0)

    assert trial.status is status
    assert re.search(reason, trial.status_reason)
    assert losses(experiment) == reported


def test_a_trial_that_others_stop_is_what_ax_calls_that(new: New) -> None:
    experiment = new("slow")
    trials = [trial_of(experiment, x / 4) for x in range(4)]
    driven = experiment.runner.tuner_of(experiment)
    eventually(lambda: driven.reports(driven.do(lambda tuner: tuner.get_trials()[0])), DONE_S)

    def act(tuner: mqtune.Tuner) -> None:
        tuner.trial("0001").stop("enough")
        tuner.trial("0002").abandon("its data were wrong")
        tuner.trial("0003").fail("so it is")
        tuner.trial("0004").complete("it has all")

    driven.do(act)
    loop(experiment).run_n_trials(0)

    assert [trial.status.name for trial in trials[:3]] == ["EARLY_STOPPED", "ABANDONED", "FAILED"]
    assert [trial.status_reason for trial in trials[1:3]] == ["its data were wrong", "so it is"]
    assert losses(experiment)[0]


def test_an_experiment_is_saved_as_json_without_a_password_and_goes_on_when_it_is_loaded(
    new: New, fleet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resources = mqtune.Resources(cpus=1)
    checkpoints = mqtune.Checkpoints(tmp_path / "store", keep_last=2)
    options = {"resources": resources, "checkpoints": checkpoints, "failures": mqtune.Failures(max_failures=2)}
    other = MqtuneMetric("other", key="val/loss", step="epoch", lower_is_better=True)
    # JSON needs no SQLAlchemy.
    monkeypatch.setattr("ax.storage.registry_bundle.SQAConfig", None)
    experiment = new("slow", other, **options)
    trial_of(experiment)
    bundle, path = registry_bundle(), str(tmp_path / "ax.json")
    save_experiment(experiment, path, bundle.encoder_registry)
    experiment.runner.close()
    monkeypatch.setenv("MQTUNE_BROKER", fleet)

    loaded = load_experiment(path, bundle.decoder_registry)

    saved = json.loads(Path(path).read_text())
    assert saved["runner"]["backend"] is None or "@" not in fleet
    runner = loaded.runner
    assert isinstance(runner.trainable, KnownTrainable)
    assert (runner.failures, runner.resources, runner.checkpoints.keep_last) == (
        mqtune.Failures(max_failures=2),
        resources,
        2,
    )
    assert loaded.metrics == experiment.metrics
    assert (loaded.metrics["other"].key, loaded.metrics["other"].step) == ("val/loss", "epoch")
    assert poll(loaded) == {Status.RUNNING: {0}}
    assert runner.run(loaded.trials[0])["mqtune_trials"] == {"0_0": "0001"}
    runner.stop_all(loaded, "the night is over")
    eventually(lambda: poll(loaded).keys() <= {Status.EARLY_STOPPED, Status.ABANDONED}, DONE_S)
    runner.close()


def test_a_metric_of_trials_that_others_run_says_whose_they_are() -> None:
    experiment = experiment_of(None)
    trial = experiment.new_trial().add_arm(Arm({"x": 0.5})).mark_running(no_runner_required=True)

    found = experiment.metrics["loss"].fetch_trial_data(trial)

    assert "needs trials of an MqtuneRunner, but the runner of trial" in found.err.message


def test_the_arms_of_a_batch_are_trials_of_one_group_and_those_that_fail_are_abandoned(new: New) -> None:
    experiment = new("fails_above_a_half")
    batch = experiment.new_batch_trial().add_arms_and_weights([Arm({"x": x}) for x in (0.1, 0.9, 0.2)]).run()
    failing = experiment.new_batch_trial().add_arms_and_weights([Arm({"x": x}) for x in (0.7, 0.8)]).run()
    assert batch.run_metadata["mqtune_trials"] == {"0_0": "0001", "0_1": "0002", "0_2": "0003"}

    loop(experiment).run_n_trials(0)

    assert (batch.status, failing.status) == (Status.COMPLETED, Status.FAILED)
    assert {arm.name for arm in batch.abandoned_arms} == {"0_1"}
    assert "0.9 is too much" in batch.abandoned_arms_metadata[0].reason
    assert failing.status_reason.startswith("1_0: ValueError: 0.7 is too much")
    results = experiment.runner.tuner_of(experiment).do(lambda tuner: tuner.results())
    assert [result.config["x"] for result in results.find("ax-0")] == [0.1, 0.9, 0.2]


def test_a_redis_that_is_away_abandons_no_trial_and_its_return_doubles_none(tmp_path: Path) -> None:
    with (
        RestartableRedis(tmp_path) as server,
        running_worker(server.url, tmp_path / "log", "--gpus", "0", "--slots", "2"),
        MqtuneRunner(trainables.learns, backend=server.url) as runner,
    ):
        experiment = experiment_of(runner)
        for x in (0.1, 0.2, 0.3):
            trial_of(experiment, x)
        eventually(lambda: poll(experiment) and "RUNNING" in statuses([experiment.trials[0]]), DONE_S)
        server.kill()
        for _ in range(20):
            assert poll(experiment) == {Status.RUNNING: {0, 1, 2}}
            time.sleep(0.05)
        back = threading.Timer(0.5, server.start)
        back.start()

        loop(experiment).run_n_trials(1)

        back.join()
        found = runner.tuner_of(experiment).do(lambda tuner: [each.config["x"] for each in tuner.get_trials()])
    assert {trial.status for trial in experiment.trials.values()} == {Status.COMPLETED}
    assert {len(curve) for curve in losses(experiment).values()} == {30}
    assert found[:3] == [0.1, 0.2, 0.3]
    assert len(found) == 4


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
        found = loaded.runner.tuner_of(loaded).do(lambda tuner: tuner.get_trials())

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


def test_what_can_not_be_reached_ends_the_loop_and_no_trial(tmp_path: Path) -> None:
    away: Any = BrokerDeployment("redis://127.0.0.1:1/0", timing=Timing(patience_s=0.0))
    with MqtuneRunner(trainables.slow, backend=away) as runner:
        experiment = experiment_of(runner)
        trial = experiment.new_trial().add_arm(Arm({"x": 0.5})).mark_running()

        with pytest.raises(OrchestratorInternalError, match="BrokerUnavailable: "):
            loop(experiment).run_n_trials(1)

    assert trial.status is Status.RUNNING
