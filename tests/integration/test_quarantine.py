"""A real worker whose device stays full after a trial, or is broken: nothing more runs there, everybody can see it, and it comes back."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from altered_worker import altered_worker, breaks, let_go, tuner_of
from click.testing import CliRunner
from waiting import eventually

import mqtune
from mqtune.backends import EmbeddedServer
from mqtune.cli import group
from mqtune.core.trial import DEVICE_BROKEN, AttemptEnd, TrialStatus
from mqtune.core.worker_info import WorkerInfo
from mqtune.journal import Fleet, connect
from mqtune.testing.backends.world import drive

GB = 1_000_000_000
ONE_GPU = mqtune.Resources(gpus=1, cpus=1)
#: Answers as the driver would, with what a file says, and notes that it was asked.
DRIVER = """
import json, sys
for line in sys.stdin:
    open({file!r} + ".asked", "a").write("?")
    used = json.load(open({file!r}))
    print(json.dumps({{"used": {{d: used[d] for d in json.loads(line)}}, "unknown": {{}}}}), flush=True)
"""
#: A worker that asks it, and waits for seconds where a real one waits for a minute.
ALTERATION = """
import functools
from mqtune.services.packing import worker as packing
timing = Timing(gpu_return_s={return_s}, round_s=0.2)
packing.GpuProbe = functools.partial(packing.GpuProbe, [{python!r}, {driver!r}])
"""


class Machine:
    """GPUs that have in use what a test says, and a worker that believes it."""

    def __init__(self, broker: str, folder: Path, number: int) -> None:
        self.folder = folder
        self._used = {str(device): 0 for device in range(number)}
        self._file = folder / "used.json"
        self.set("0", 0)
        self._driver = folder / "driver.py"
        self._driver.write_text(DRIVER.format(file=str(self._file)))
        self.gpus = ",".join(self._used) + ","
        self._client = connect(broker)
        self._fleet = Fleet(self._client, patience_s=5)

    def close(self) -> None:
        self._client.close()

    def set(self, device: str, used: int) -> None:
        self._used[device] = used
        new = self._file.with_name("used.new")
        new.write_text(json.dumps(self._used))
        new.replace(self._file)

    @property
    def asked(self) -> int:
        """How many questions the driver was asked."""
        return Path(f"{self._file}.asked").stat().st_size

    def alteration(self, return_s: float) -> str:
        return ALTERATION.format(python=sys.executable, driver=str(self._driver), return_s=return_s)

    def info(self) -> WorkerInfo:
        (info,) = self._fleet.workers()
        return info


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    with EmbeddedServer.start(tmp_path / "server") as server:
        yield server.url


@pytest.fixture
def gpus(request: pytest.FixtureRequest, broker: str, tmp_path: Path) -> Iterator[Machine]:
    """A machine with one GPU, or more."""
    with contextlib.closing(Machine(broker, tmp_path, getattr(request, "param", 1))) as machine:
        yield machine


@pytest.fixture
def tuner(broker: str) -> Iterator[mqtune.Tuner]:
    with tuner_of(broker, "full", ONE_GPU) as tuner:
        yield tuner


def test_memory_that_others_have_from_the_start_closes_a_device_until_it_is_free_and_drivers_can_say_why(
    broker: str, gpus: Machine, tuner: mqtune.Tuner, tmp_path: Path
) -> None:
    gpus.set("0", 60 * GB)
    with altered_worker(broker, tmp_path, gpus.alteration(0.2), "--gpus", gpus.gpus):
        info = gpus.info()
        note = "device 0 is quarantined, others have 60.0 GB of its memory in use"
        assert (info.slots, info.note) == (0, note)
        shown = CliRunner().invoke(group, ["fleet", "--broker", broker]).output
        assert re.search(rf"^{info.name}: {note}; for \d+ s, until its memory is free$", shown, re.MULTILINE)

        let_go(tmp_path, 1)
        trial = tuner.add({"number": 1})
        drive(tuner, lambda: "device 0 is quarantined" in tuner.debug_string())
        assert trial.status is TrialStatus.QUEUED

        gpus.set("0", 0)
        drive(tuner, lambda: trial.status is TrialStatus.COMPLETED)
        assert trial.attempt.number == 1


def test_the_next_trial_waits_for_the_memory_of_the_last_and_a_worker_that_is_told_to_go_does_not(
    broker: str, gpus: Machine, tuner: mqtune.Tuner, tmp_path: Path
) -> None:
    with altered_worker(broker, tmp_path, gpus.alteration(600), "--gpus", gpus.gpus) as worker:

        def wait_for_looks() -> None:
            asked = gpus.asked
            eventually(lambda: gpus.asked > asked + 5, 30, why="a trial has ended, and its memory is waited for")

        first = tuner.add({"number": 1})
        drive(tuner, lambda: first.attempt.reports)
        gpus.set("0", 5 * GB)
        let_go(tmp_path, 1)
        second = tuner.add({"number": 2})
        drive(tuner, lambda: "[full/0002/1] received" in (tmp_path / "worker.log").read_text())
        # Its end need not wait for the memory: a worker that dies meanwhile would lose a trial that is done.
        drive(tuner, lambda: first.status is TrialStatus.COMPLETED)
        wait_for_looks()
        tuner.step(0)
        assert second.status is TrialStatus.QUEUED
        gpus.set("0", 0)
        drive(tuner, lambda: second.attempt.reports)

        family = psutil.Process(worker.pid).children(recursive=True)
        assert any("driver.py" in " ".join(process.cmdline()) for process in family)
        gpus.set("0", 5 * GB)
        let_go(tmp_path, 2)
        wait_for_looks()
        worker.terminate()

        assert worker.wait(30) == os.EX_OK
        eventually(lambda: not any(process.is_running() for process in family), 30)


@pytest.mark.parametrize("gpus", [2], indirect=True)
def test_an_error_that_names_the_device_costs_the_trial_nothing(broker: str, gpus: Machine, tmp_path: Path) -> None:
    (tmp_path / "broken-0").write_text("CUDA error: uncorrectable ECC error encountered")
    with (
        tuner_of(broker, "breaking", ONE_GPU, breaks) as breaking,
        altered_worker(broker, tmp_path, gpus.alteration(0.5), "--gpus", gpus.gpus),
    ):
        for number in range(5):
            breaking.add({"number": number})
        drive(breaking, lambda: not breaking.busy_trials)

        assert {trial.status for trial in breaking.get_trials()} == {TrialStatus.COMPLETED}
        broken = [each for trial in breaking.get_trials() for each in trial.attempts if each.error_type]
        assert broken
        for each in broken:
            assert (each.error_type, each.end, each.devices) == (DEVICE_BROKEN, AttemptEnd.HANDED_BACK, ("0",))
        note = "device 0 is quarantined, an attempt failed there by 'uncorrectable ECC error'"
        assert gpus.info().note == note
