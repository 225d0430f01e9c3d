"""Reuse on a real worker: one process and one setup for many trials, and a fresh one whenever that is not safe."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner
from pair import finished, paused, rows
from running import running_worker
from trainables_reusing import Reuses
from trainables_reusing_function import reuses
from waiting import eventually, lives

import mqtune
from mqtune.cli import group
from mqtune.core.keys import DEMANDS
from mqtune.core.trial import Trial, TrialStatus
from mqtune.journal.connection import connect
from mqtune.testing.backends.world import Nothing, drive

#: A shape that no other test's workers have, and what only workers that end here offer: no trial of either goes to the other.
CPUS = 10
LASTING = mqtune.Resources(cpus=CPUS)
ENDING = mqtune.Resources(cpus=9, tags=("ending",))
ENDLESS = 100_000
#: What a trial of a function does to its process, and what its attempt then says of that.
DEEDS = {
    "exit": "it has ended",
    "close output": "it has closed or replaced the descriptors 1",
    "thread": "it has left the threads reporter",
    "file": "it has left open ",
    "daemon": "it has left processes",
}
#: And what is put back.
PUT_BACK = ("chdir", "ignore SIGTERM")
SPACE = {
    "do": mqtune.choice(["", "fail", "refuse", *DEEDS, *PUT_BACK]),
    "lr": mqtune.uniform(0, 100),
    "steps": mqtune.randint(1, ENDLESS + 1),
    "step_s": mqtune.uniform(0, 1),
}

_names = itertools.count(1)


def options(cpus: int) -> tuple[str, ...]:
    return ("--gpus", "0", "--slots", "1", "--cpus", str(cpus))


class Bench:
    """A tuner that starts trials one behind the other in one slot."""

    def __init__(
        self,
        broker: str,
        folder: Path,
        resources: mqtune.Resources = LASTING,
        sync: Any = "stream",
        tuned: Any = Reuses,
        **arguments: Any,
    ) -> None:
        self.log = folder / "log"
        self._broker = broker
        self.tuner = mqtune.Tuner(
            tuned,
            {**SPACE, "log": str(self.log)},
            metric="loss",
            mode="min",
            searcher=Nothing(),
            resources=resources,
            backend=broker,
            checkpoints=mqtune.Checkpoints(folder / "store"),
            process=mqtune.Process(reuse=True, sync=sync),
            run=mqtune.RunOptions(progress=False),
            name=f"reuse-{os.getpid()}-{next(_names)}",
            **arguments,
        )

    def start(self, *, ttl_s: float | None = None, **config: Any) -> Trial:
        given = {"do": "", "lr": 1.0, "steps": 3, "step_s": 0.0, "log": str(self.log), **config}
        return self.tuner.add(given, ttl_s=ttl_s)

    def run(self, *, ttl_s: float | None = None, **config: Any) -> Trial:
        # Other drivers stand still here, and what they wanted last would hold the slot for some seconds.
        with contextlib.closing(connect(self._broker)) as client:
            client.delete(DEMANDS)
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
    offered = (*options(9), "--tags", "ending")
    with running_worker(broker, tmp_path / "worker.log", *offered, name="leaves") as worker:
        bench = new_bench(resources=ENDING)
        trial = bench.run()
        waiting = psutil.Process(trial.attempt.pid)
        worker.send_signal(number)

        eventually(lambda: not lives(waiting))
        assert bench.notes("cleanup") == [trial.attempt.pid]


# Functions.


@pytest.fixture
def functions(worker: subprocess.Popen[bytes], new_bench: Callable[..., Bench]) -> Bench:
    return new_bench(tuned=reuses)


def pids(trials: list[Trial]) -> set[int]:
    return {trial.attempt.pid for trial in trials}


def test_a_function_has_one_process_for_all_trials_and_each_has_its_own_reports_and_output(functions: Bench):
    trials = [functions.start(lr=float(lr), steps=5) for lr in range(1, 21)]
    drive(functions.tuner, lambda: all(trial.status.is_terminal for trial in trials))

    assert len(pids(trials)) == 1
    for lr, trial in enumerate(trials, 1):
        assert functions.values(trial) == [-lr * step for step in range(1, 6)]
        assert functions.values(trial, "training_iteration") == [1, 2, 3, 4, 5]
        assert functions.tuner.trial(trial).stdout() == [f"lr={lr}"]
        assert (trial.status, trial.attempt.retired) == (TrialStatus.COMPLETED, "")


def test_a_process_that_a_trial_has_changed_is_replaced_and_the_record_says_why(functions: Bench):
    for do, why in DEEDS.items():
        good, bad, after = functions.run(), functions.run(do=do, lr=2.0), functions.run(lr=3.0)

        assert (good.attempt.pid, good.attempt.retired) == (bad.attempt.pid, "")
        assert bad.attempt.retired.startswith(why), (do, bad.attempt.retired)
        assert after.attempt.pid != bad.attempt.pid, do
        assert not psutil.pid_exists(bad.attempt.pid)
        assert set(functions.values(bad)) - {-1e9} == {-2.0, -4.0, -6.0}
        assert functions.values(after) == [-3.0, -6.0, -9.0]

    assert len(pids([functions.run(do=do) for do in PUT_BACK] + [after])) == 1

    folder = functions.tuner.results().folder
    shown = CliRunner().invoke(group, ["show", str(folder), bad.id]).output
    assert "the process of attempt 1 took no other trial: it has left processes" in " ".join(shown.split())


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("sync", ["stream", "lockstep"])
def test_a_process_goes_on_after_trials_that_were_stopped_paused_or_abandoned(
    new_bench: Callable[..., Bench], sync: str
):
    bench = new_bench(tuned=reuses, sync=sync)
    trials = [bench.start(steps=ENDLESS, step_s=0.002) for _ in range(6)]
    for trial, end in zip(trials, ("stop", "pause", "abandon") * 2, strict=True):
        drive(bench.tuner, lambda trial=trial: trial.attempt.reports >= 2)
        getattr(bench.tuner.trial(trial), end)()
    drive(bench.tuner, lambda: all(trial.attempt.end is not None for trial in trials))

    assert [trial.attempt.retired for trial in trials] == [""] * 6
    assert len(pids([*trials, bench.run()])) == 1


@pytest.mark.usefixtures("worker")
def test_two_experiments_in_one_slot_have_processes_of_their_own_and_import_once(new_bench: Callable[..., Bench]):
    one, other = (new_bench(tuned=reuses) for _ in range(2))
    trials, zygotes = [], set()
    for lr in range(1, 5):
        mine = one.run(lr=float(lr))
        zygotes.add(psutil.Process(mine.attempt.pid).ppid())
        theirs = other.run(lr=10.0 * lr)
        zygotes.add(psutil.Process(theirs.attempt.pid).ppid())
        trials.append((mine, theirs))

    assert len(zygotes) == 1
    for lr, (mine, theirs) in enumerate(trials, 1):
        assert mine.attempt.pid != theirs.attempt.pid
        assert one.values(mine) == [-lr, -2 * lr, -3 * lr]
        assert other.values(theirs) == [-10 * lr, -20 * lr, -30 * lr]
        assert not psutil.pid_exists(mine.attempt.pid), "the other experiment has the slot"


def test_a_process_of_a_function_that_is_killed_fails_its_trial_alone(functions: Bench):
    killed = functions.start(steps=ENDLESS, step_s=0.002)
    drive(functions.tuner, lambda: killed.attempt.reports)
    os.kill(functions.values(killed, "pid")[0], signal.SIGKILL)
    drive(functions.tuner, lambda: killed.status.is_terminal)
    outlived, after = functions.run(steps=ENDLESS, step_s=0.002, ttl_s=0.3), functions.run()

    assert (killed.status, killed.attempt.retired) == (TrialStatus.FAILED, "it has ended")
    assert (outlived.status, outlived.attempt.retired) == (TrialStatus.FAILED, "it ran longer than its ttl_s")
    assert len(pids([killed, outlived, after])) == 3
