"""The life of a slot on real GPUs: what a trial takes comes back when it is killed, and what does not come back takes no trial.

Skipped where there is no NVIDIA GPU with its driver.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest
import trainables_gpus as trainables
from running import HERE, running_worker, tuner_on
from trainables_gpus import TAKEN_BYTES
from waiting import eventually

import mqtune
from mqtune.core.timing import Timing
from mqtune.core.trial import AttemptEnd, Trial, TrialStatus
from mqtune.core.worker_info import WorkerInfo
from mqtune.journal import Fleet, connect
from mqtune.testing.backends.world import Nothing
from mqtune.worker import Gpu, GpuProbe

TIMING: Final = Timing()
RETURN_S: Final = TIMING.gpu_return_s
ROUND_S: Final = TIMING.round_s

#: A GPU takes its time to begin, and a machine with GPUs has others on it.
WAIT_S: Final = 120.0
#: By how much a device's memory may differ from what trials take: a context takes some 600 MB more, other programs come and go.
SLACK_BYTES: Final = TAKEN_BYTES // 4

pytestmark = pytest.mark.timeout(600)


class Machine:
    """A GPU, or a part of one, and a broker whose worker has it."""

    def __init__(self, device: str, probe: GpuProbe, broker: str, folder: Path) -> None:
        self.device = device
        self.probe = probe
        self.broker = broker
        self.folder = folder
        self.before = self.used()

    def used(self) -> int:
        return self.probe.used([self.device])[self.device]

    def is_taken(self, times: int = 1) -> bool:
        return self.used() > self.before + times * TAKEN_BYTES - SLACK_BYTES

    def is_free(self) -> bool:
        return self.used() < self.before + SLACK_BYTES

    @contextlib.contextmanager
    def worker(self, *options: str) -> Iterator[None]:
        environment = {trainables.FOLDER: str(self.folder)}
        # The comma tells a list of one from a number of them.
        given = ("--gpus", f"{self.device},", "--cpus", "2", *options)
        with running_worker(self.broker, self.folder / "worker.log", *given, name="gpus", environment=environment):
            yield

    def info(self) -> WorkerInfo:
        with contextlib.closing(connect(self.broker)) as client:
            (info,) = Fleet(client, patience_s=5).workers()
        return info

    @property
    def log(self) -> str:
        return (self.folder / "worker.log").read_text()


def the_gpus(probe: GpuProbe) -> list[Gpu]:
    if shutil.which("nvidia-smi") is None and find_spec("pynvml") is None:
        pytest.skip("there is no NVIDIA driver here: neither nvidia-smi nor nvidia-ml-py")
    try:
        found = probe.gpus()
    except Exception as error:
        pytest.skip(f"NVIDIA's driver lists no GPU: {error}")
    if not found:
        pytest.skip("this machine has no NVIDIA GPU")
    return found


@pytest.fixture(scope="module")
def probe() -> Iterator[GpuProbe]:
    with contextlib.closing(GpuProbe()) as probe:
        yield probe


@pytest.fixture
def device(probe: GpuProbe) -> str:
    """The GPU with the most free memory of those that are not divided."""
    free = {gpu.number: gpu.total - probe.used([gpu.number]).get(gpu.number, gpu.total) for gpu in the_gpus(probe)}
    whole = [number for number in free if number not in divided_gpus()]
    if not whole or free[best := max(whole, key=free.__getitem__)] < 3 * TAKEN_BYTES:
        pytest.skip("no GPU has 6 GiB of memory free that trials may take: all are divided (MIG), or in use")
    return best


def divided_gpus() -> set[str]:
    """The numbers of the GPUs that are divided (MIG), as nvidia-smi lists them; none without that."""
    if shutil.which("nvidia-smi") is None:
        return set()
    listed = subprocess.run(["nvidia-smi", "-L"], stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout
    return set(re.findall(r"^GPU (\d+):.*\n +MIG ", listed, re.MULTILINE))


@pytest.fixture
def machine(device: str, probe: GpuProbe, own_broker: str, tmp_path: Path) -> Machine:
    return Machine(device, probe, own_broker, tmp_path)


@contextlib.contextmanager
def tuner(machine: Machine, trainable: Any = trainables.holds, gpus: float = 1) -> Iterator[mqtune.Tuner]:
    made = tuner_on(
        machine.broker,
        trainable,
        {"number": mqtune.randint(0, 1000)},
        name="gpus",
        searcher=Nothing(),
        resources=mqtune.Resources(gpus=gpus, cpus=1),
        failures=mqtune.Failures(max_failures=0),
    )
    with contextlib.closing(made):
        yield made


def stepped(tuner: mqtune.Tuner, until: Any, why: str = "", within_s: float = WAIT_S) -> None:
    def step() -> Any:
        tuner.step(0.05)
        return until()

    eventually(step, within_s, f"{why or until}\n{tuner.debug_string()}")


def begun(tuner: mqtune.Tuner, number: int) -> Trial:
    trial = tuner.add({"number": number})
    stepped(tuner, lambda: trial.reports or trial.status.is_terminal)
    if "libcuda" in trial.attempt.error:
        pytest.skip(f"trials can't use CUDA here: {trial.attempt.error}")
    assert trial.reports, trial.attempt.error
    return trial


def let_go(machine: Machine, *numbers: int) -> None:
    for number in numbers:
        (machine.folder / f"end-{number}").touch()


def test_what_a_killed_trial_has_taken_is_free_before_the_next_one_begins(machine: Machine) -> None:
    with machine.worker(), tuner(machine) as gpus:
        killed = begun(gpus, 1)
        assert machine.is_taken()
        os.kill(int(killed.last_metrics["pid"]), signal.SIGKILL)
        stepped(gpus, lambda: killed.status is TrialStatus.FAILED)
        assert (killed.attempt.signal, killed.attempt.devices) == (signal.SIGKILL, (machine.device,))
        # The slot is vacant only when the memory is back.
        following = begun(gpus, 2)
        assert machine.is_taken()
        assert not machine.is_taken(2)
        let_go(machine, 2)
        stepped(gpus, lambda: following.status is TrialStatus.COMPLETED)

        eventually(machine.is_free, WAIT_S)
        assert (machine.info().note, machine.info().slots) == ("", 1)
        assert "quarantined" not in machine.log


def test_a_gpu_whose_memory_somebody_else_has_takes_no_trial_until_it_is_back(machine: Machine) -> None:
    command = [sys.executable, str(HERE / "trainables_gpus.py")]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": machine.device, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    with machine.worker(), tuner(machine) as gpus:
        first = begun(gpus, 1)
        # As what a trial has left behind would, it has begun after the trial.
        with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            try:
                assert other.stdout is not None
                assert other.stdout.readline() == b"taken\n"
                let_go(machine, 1, 2)
                stepped(gpus, lambda: first.status is TrialStatus.COMPLETED)
                eventually(lambda: not machine.info().slots, RETURN_S + WAIT_S)
                assert machine.info().note.startswith(f"device {machine.device} is quarantined, ")
                second = gpus.add({"number": 2})
                stepped(gpus, lambda: f"device {machine.device} is quarantined" in gpus.debug_string())
                assert second.status is TrialStatus.QUEUED
            finally:
                other.kill()
        eventually(lambda: machine.info().slots == 1, ROUND_S + WAIT_S)
        stepped(gpus, lambda: second.status is TrialStatus.COMPLETED)
        assert second.attempt.number == 1
        assert f"device {machine.device} is in use again" in machine.log


def test_of_two_trials_on_one_gpu_the_death_of_one_does_not_concern_the_other(machine: Machine) -> None:
    with machine.worker("--slots-per-gpu", "2"), tuner(machine, gpus=0.5) as gpus:
        killed, other = begun(gpus, 1), begun(gpus, 2)
        assert machine.is_taken(2)
        os.kill(int(killed.last_metrics["pid"]), signal.SIGKILL)
        stepped(gpus, lambda: killed.status is TrialStatus.FAILED)
        eventually(lambda: not machine.is_taken(2), WAIT_S)
        assert machine.is_taken()
        assert other.status is TrialStatus.RUNNING
        let_go(machine, 2)
        stepped(gpus, lambda: other.status is TrialStatus.COMPLETED)

        eventually(machine.is_free, WAIT_S)
        assert "quarantined" not in machine.log


def test_a_trial_that_computes_has_the_figures_of_its_gpu(machine: Machine) -> None:
    with machine.worker(), tuner(machine, trainables.computes) as gpus:
        trial = begun(gpus, 1)
        command = [sys.executable, "-m", "mqtune", "show", "gpus", "1", "--broker", machine.broker]

        def shown() -> str:
            return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

        stepped(gpus, lambda: f"now device {machine.device}: " in shown(), within_s=2 * ROUND_S + WAIT_S)
        # A second sample: before the first the trial may not have computed all the time.
        before = shown()
        stepped(gpus, lambda: sampled(shown()) != sampled(before), within_s=ROUND_S + WAIT_S)
        let_go(machine, 1)
        stepped(gpus, lambda: trial.attempt.end is AttemptEnd.COMPLETED)

    usage = trial.attempt.usage
    assert usage["gpu_percent_peak"] > 50
    assert usage["gpu_memory_bytes_peak"] > TAKEN_BYTES
    assert usage["gpu_power_w"] > 0
    assert "gpu_idle_s" not in usage


def sampled(shown: str) -> str:
    """For how long a trial was sampled, of what the command shows."""
    found = re.search(r"sampled for (.*)", shown)
    return found[1] if found else ""
