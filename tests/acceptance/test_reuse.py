"""Reuse on a real worker: one process and one setup for many trials, and a fresh one whenever that is not safe."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pair import finished, paused, rows
from running import running_worker
from trainables_reusing import Reuses
from waiting import eventually, lives

import mqtune
from mqtune.core.trial import Trial, TrialStatus
from mqtune.testing.backends.world import Nothing, drive

#: Shapes that no other test's workers have; the second is for workers that end.
CPUS = 9
CPUS_OF_ENDING = 10
ENDLESS = 100_000
SPACE = {
    "do": mqtune.choice(["", "fail", "refuse"]),
    "lr": mqtune.uniform(0, 100),
    "steps": mqtune.randint(1, ENDLESS + 1),
    "step_s": mqtune.uniform(0, 1),
}

_names = itertools.count(1)


def options(cpus: int) -> tuple[str, ...]:
    return ("--gpus", "0", "--slots", "1", "--cpus", str(cpus))


class Bench:
    """A tuner that starts trials one behind the other in one slot."""

    def __init__(self, broker: str, folder: Path, cpus: int = CPUS, sync: Any = "stream", **arguments: Any) -> None:
        self.log = folder / "log"
        self.tuner = mqtune.Tuner(
            Reuses,
            {**SPACE, "log": str(self.log)},
            metric="loss",
            mode="min",
            searcher=Nothing(),
            resources=mqtune.Resources(cpus=cpus),
            backend=broker,
            checkpoints=mqtune.Checkpoints(folder / "store"),
            process=mqtune.Process(reuse=True, sync=sync),
            run=mqtune.Run(progress=False),
            name=f"reuse-{os.getpid()}-{next(_names)}",
            **arguments,
        )

    def start(self, *, ttl_s: float | None = None, **config: Any) -> Trial:
        given = {"do": "", "lr": 1.0, "steps": 3, "step_s": 0.0, "log": str(self.log), **config}
        return self.tuner.add(given, ttl_s=ttl_s)

    def run(self, *, ttl_s: float | None = None, **config: Any) -> Trial:
        trial = self.start(ttl_s=ttl_s, **config)
        drive(self.tuner, lambda: trial.status.is_terminal)
        return trial

    def values(self, trial: Trial, name: str = "loss", attempt: int = 1) -> list[Any]:
        return [row[name] for row in rows(self.tuner, trial, attempt)]

    def notes(self, what: str) -> list[int]:
        """The process ids that something was written down for."""
        lines = [line.split() for line in self.log.read_text().splitlines()]
        return [int(pid) for said, pid in lines if said == what]


@pytest.fixture(scope="module")
def worker(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[bytes]]:
    log = tmp_path_factory.mktemp("reuse") / "worker.log"
    with running_worker(broker, log, *options(CPUS), name="reuse") as process:
        yield process


@pytest.fixture
def new_bench(broker: str, tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**arguments: Any) -> Bench:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Bench(broker, folder, **arguments))
        return made[-1]

    yield make
    for bench in made:
        if not bench.tuner._runner._is_closed:
            bench.tuner.stop_all("the test is over")
            finished(bench.tuner)
            bench.tuner.close()


@pytest.fixture
def bench(worker: subprocess.Popen[bytes], new_bench: Callable[..., Bench]) -> Bench:
    return new_bench()


def test_one_setup_serves_all_trials_and_each_has_its_own_config_reports_and_output(bench: Bench):
    trials = [bench.run(lr=float(lr)) for lr in range(1, 11)]

    assert {trial.status for trial in trials} == {TrialStatus.COMPLETED}
    assert len(bench.notes("setup")) == 1
    assert bench.notes("reset") == bench.notes("setup") * 9
    assert bench.notes("cleanup") == []
    assert {trial.attempt.pid for trial in trials} == set(bench.notes("setup"))
    assert [trial.attempt.exit_code for trial in trials] == [0] * 10
    for lr, trial in enumerate(trials, 1):
        assert bench.values(trial) == [-lr, -2 * lr, -3 * lr]
        assert bench.values(trial, "training_iteration") == [1, 2, 3]


def test_trials_that_wait_for_the_slot_are_served_by_one_process_too(bench: Bench):
    trials = [bench.start(lr=float(lr), steps=5) for lr in range(1, 21)]
    drive(bench.tuner, lambda: all(trial.status.is_terminal for trial in trials))

    assert len(bench.notes("setup")) == 1
    assert [bench.values(trial) for trial in trials] == [[-lr * step for step in range(1, 6)] for lr in range(1, 21)]


def test_an_error_in_between_gets_the_next_trial_a_fresh_process(bench: Bench):
    before, failed, after = bench.run(), bench.run(do="fail"), bench.run()

    assert (failed.status, failed.attempt.error_type) == (TrialStatus.FAILED, "ValueError")
    assert before.attempt.pid == failed.attempt.pid != after.attempt.pid
    assert bench.notes("cleanup") == [before.attempt.pid]
    assert after.status is TrialStatus.COMPLETED


def test_trials_whose_config_is_not_taken_get_fresh_processes_and_are_journaled_once(bench: Bench):
    trials = [bench.run(do="refuse", lr=float(lr)) for lr in range(1, 6)]

    assert len(bench.notes("setup")) == 5
    assert bench.notes("setup") == [trial.attempt.pid for trial in trials]
    assert bench.notes("cleanup") == bench.notes("setup")[:-1]
    for lr, trial in enumerate(trials, 1):
        assert len(trial.attempts) == 1
        assert bench.values(trial) == [-lr, -2 * lr, -3 * lr]
    assert any("reset_config returned False" in line for line in bench.tuner.trial(trials[1]).stderr())


def test_trials_are_paused_and_resumed_with_their_checkpoints_in_one_process(bench: Bench):
    one = bench.start(lr=2.0, steps=ENDLESS, step_s=0.005)
    drive(bench.tuner, lambda: one.attempt.reports >= 3)
    paused(bench.tuner, one)
    other = bench.run(lr=7.0)
    done = len(bench.values(one))

    bench.tuner.trial(one).resume()
    drive(bench.tuner, lambda: one.attempt.number == 2 and one.attempt.reports >= 3)
    paused(bench.tuner, one)

    assert bench.values(one, attempt=2)[:2] == [-2.0 * (done + 1), -2.0 * (done + 2)]
    assert bench.values(one, "training_iteration", attempt=2)[0] == done + 1
    assert bench.values(other) == [-7.0, -14.0, -21.0]
    assert {attempt.pid for attempt in one.attempts} == {other.attempt.pid} == set(bench.notes("setup"))


def test_a_process_that_is_killed_while_it_waits_is_not_noticed_by_the_next_trial(bench: Bench):
    for _ in range(5):
        first = bench.run()
        os.kill(first.attempt.pid, signal.SIGKILL)

        second = bench.run()

        assert (second.status, len(second.attempts)) == (TrialStatus.COMPLETED, 1)
        assert second.attempt.pid != first.attempt.pid
        assert len(bench.values(second)) == 3


@pytest.mark.usefixtures("worker")
def test_a_process_whose_trial_has_outlived_its_time_is_not_used_again(new_bench: Callable[..., Bench]):
    bench = new_bench(sync="lockstep")
    first = bench.run()
    outlived = bench.start(steps=ENDLESS, ttl_s=0.5)
    drive(bench.tuner, lambda: outlived.status is TrialStatus.RUNNING)

    # Nobody lets it go on, so that it is stopped between two steps, where its process could stay.
    eventually(lambda: not psutil.pid_exists(first.attempt.pid))
    drive(bench.tuner, lambda: outlived.status.is_terminal)

    assert (outlived.attempt.pid, outlived.attempt.error_type) == (first.attempt.pid, "TimeToLive")
    assert bench.notes("cleanup") == [first.attempt.pid]
    assert bench.run().status is TrialStatus.COMPLETED
    assert len(bench.notes("setup")) == 2


def test_a_process_that_is_killed_in_a_trial_fails_it_and_no_other(bench: Bench):
    first = bench.run()
    killed = bench.start(steps=ENDLESS, step_s=0.002)
    drive(bench.tuner, lambda: killed.attempt.reports)
    os.kill(first.attempt.pid, signal.SIGTERM)
    drive(bench.tuner, lambda: killed.status.is_terminal)

    after = bench.run()

    assert (killed.status, killed.attempt.signal) == (TrialStatus.FAILED, signal.SIGTERM)
    assert after.attempt.pid != first.attempt.pid
    assert after.status is TrialStatus.COMPLETED


def test_another_experiment_has_another_process_and_the_first_one_cleans_up(bench: Bench, new_bench):
    first = bench.run()
    other = new_bench()
    second = other.run()

    assert first.attempt.pid != second.attempt.pid
    assert bench.notes("cleanup") == [first.attempt.pid]
    assert not psutil.pid_exists(first.attempt.pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_worker_that_ends_takes_the_process_along(broker: str, new_bench, tmp_path: Path, number: signal.Signals):
    with running_worker(broker, tmp_path / "worker.log", *options(CPUS_OF_ENDING), name="leaves") as worker:
        bench = new_bench(cpus=CPUS_OF_ENDING)
        trial = bench.run()
        waiting = psutil.Process(trial.attempt.pid)
        worker.send_signal(number)

        eventually(lambda: not lives(waiting))
        assert bench.notes("cleanup") == [trial.attempt.pid]
