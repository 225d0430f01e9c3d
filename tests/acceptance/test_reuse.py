"""Reuse on a real worker: one process and one setup for many trials, and a fresh one whenever that is not safe."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import psutil
import pytest
from click.testing import CliRunner
from pair import finished, paused, rows
from running import running_worker, tuner_on
from trainables_reusing import Reuses
from waiting import eventually, lives

import mqtune
from mqtune.cli import group
from mqtune.core.errors import ConfigurationError
from mqtune.core.keys import DEMANDS
from mqtune.core.trial import Trial, TrialStatus
from mqtune.journal import connect
from mqtune.testing.backends.world import Nothing, drive

#: A shape that no other test's workers have, and what only workers that end here offer: no trial of either goes to the other.
CPUS = 10
LASTING = mqtune.Resources(cpus=CPUS)
ENDING = mqtune.Resources(cpus=9, tags=("ending",))
ENDLESS = 100_000
SPACE = {
    "do": mqtune.choice(["", "thread"]),
    "lr": mqtune.uniform(0, 100),
    "steps": mqtune.randint(1, ENDLESS + 1),
    "step_s": mqtune.uniform(0, 1),
}

_names = itertools.count(1)


def options(cpus: int) -> tuple[str, ...]:
    return ("--gpus", "0", "--slots", "1", "--cpus", str(cpus))


class Bench:
    def __init__(
        self,
        broker: str,
        folder: Path,
        resources: mqtune.Resources = LASTING,
        sync: Literal["stream", "lockstep"] = "stream",
    ) -> None:
        self.log = folder / "log"
        self._broker = broker
        self.tuner = tuner_on(
            broker,
            Reuses,
            {**SPACE, "log": str(self.log)},
            searcher=Nothing(),
            resources=resources,
            checkpoints=mqtune.Checkpoints(folder / "store"),
            process=mqtune.Process(reuse=True, sync=sync),
            name=f"reuse-{os.getpid()}-{next(_names)}",
        )

    def start(self, *, timeout_s: float | None = None, **config: Any) -> Trial:
        given = {"do": "", "lr": 1.0, "steps": 3, "step_s": 0.0, "log": str(self.log), **config}
        return self.tuner.add(given, timeout_s=timeout_s)

    def run(self, *, timeout_s: float | None = None, **config: Any) -> Trial:
        # Other drivers stand still here, and what they wanted last would hold the slot for some seconds.
        with contextlib.closing(connect(self._broker)) as client:
            client.delete(DEMANDS)
        trial = self.start(timeout_s=timeout_s, **config)
        drive(self.tuner, lambda: trial.status.is_terminal)
        return trial

    def values(self, trial: Trial, name: str = "loss", attempt: int = 1) -> list[Any]:
        return [row[name] for row in rows(self.tuner, trial, attempt)]

    def notes(self, what: str) -> list[int]:
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
        # A test may have closed it.
        with contextlib.suppress(ConfigurationError):
            bench.tuner.stop_all("the test is over")
            finished(bench.tuner)
            bench.tuner.close()


@pytest.fixture
def bench(worker: subprocess.Popen[bytes], new_bench: Callable[..., Bench]) -> Bench:
    return new_bench()


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


@pytest.mark.usefixtures("worker")
def test_a_process_whose_trial_has_outlived_its_time_is_not_used_again(new_bench: Callable[..., Bench]):
    bench = new_bench(sync="lockstep")
    first = bench.run()
    outlived = bench.start(steps=ENDLESS, timeout_s=0.5)
    drive(bench.tuner, lambda: outlived.attempt.started_at is not None)

    # Nobody lets it go on, so that it is stopped between two steps, where its process could stay.
    eventually(lambda: not psutil.pid_exists(first.attempt.pid))
    drive(bench.tuner, lambda: outlived.status.is_terminal)

    assert (outlived.attempt.pid, outlived.attempt.error_type) == (first.attempt.pid, "AttemptTimeout")
    assert outlived.attempt.retired == "it ran longer than its timeout_s"
    assert bench.notes("cleanup") == [first.attempt.pid]
    assert bench.run().status is TrialStatus.COMPLETED
    assert len(bench.notes("setup")) == 2


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


def test_a_process_that_was_killed_or_in_which_a_trial_has_left_a_thread_is_replaced_and_the_record_says_why(
    bench: Bench,
):
    killed = bench.run()
    os.kill(killed.attempt.pid, signal.SIGKILL)
    good, bad, after = bench.run(), bench.run(do="thread", lr=2.0), bench.run(lr=3.0)

    assert (good.status, len(good.attempts)) == (TrialStatus.COMPLETED, 1)
    assert good.attempt.pid != killed.attempt.pid
    assert (good.attempt.pid, good.attempt.retired) == (bad.attempt.pid, "")
    assert bad.attempt.retired == "it has left the threads counter"
    assert after.attempt.pid != bad.attempt.pid
    assert not psutil.pid_exists(bad.attempt.pid)
    assert bench.values(bad) == [-2.0, -4.0, -6.0]
    assert bench.values(after) == [-3.0, -6.0, -9.0]
    shown = CliRunner().invoke(group, ["show", str(bench.tuner.results().folder), bad.id]).output
    assert "the process of attempt 1 was not reused: it has left the threads counter" in " ".join(shown.split())
