"""A worker samples what its attempts use: which figures come of it, when it warns, and that nobody waits for it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from mqtune.core.errors import AccessDenied
from mqtune.core.resources import Resources
from mqtune.core.timing import Timing
from mqtune.core.trial import TrialId
from mqtune.core.usage import DeviceUse, LiveUse, Usage
from mqtune.journal import Claim
from mqtune.worker import ProcessUse, Sample, SlotPlan, UsageMeter, UsageSampler

IDLE_S = Timing().idle_s

GB = 10**9
BUSY, IDLE, UNKNOWN = DeviceUse(90.0, 30 * GB, 400.0), DeviceUse(1.0, 30 * GB, 70.0), DeviceUse(None, 30 * GB, None)


def metered(*samples: Sample) -> UsageMeter:
    meter = UsageMeter()
    meter.begin(0.0)
    for sample in samples:
        meter.take(sample)
    return meter


def warned_at(use: Callable[[float], DeviceUse], until_s: float, *, reports_at: float = 0.0) -> list[float]:
    """When a meter warns of a device that is used so from one sample to the next."""
    meter, found = UsageMeter(), []
    meter.begin(0.0)
    for at in range(10, int(until_s) + 1, 10):
        found += [float(at) for _ in meter.take(Sample(at, {"0": use(at)}, has_reported=at >= reports_at))]
    return found


def test_figures_are_means_over_time_and_peaks() -> None:
    meter = metered(
        Sample(10.0, {"0": BUSY, "1": DeviceUse(50.0, 10 * GB, 100.0)}, ProcessUse(5.0, 2 * GB)),
        Sample(40.0, {"0": IDLE, "1": IDLE}, ProcessUse(65.0, GB)),
    )

    assert meter.figures() == {
        "sampled_s": 40.0,
        "gpu_percent": (70 * 10 + 1 * 30) / 40,
        "gpu_power_w": (500 * 10 + 140 * 30) / 40,
        "gpu_energy_j": 500 * 10 + 140 * 30,
        "cpus": 2.0,
        "gpu_percent_peak": 90.0,
        "gpu_memory_bytes_peak": 60 * GB,
        "memory_bytes_peak": 2 * GB,
    }


def test_what_a_device_does_not_say_is_no_figure_and_counts_for_nothing() -> None:
    part = metered(Sample(10.0, {"MIG-1": UNKNOWN})).figures()
    at_times = metered(Sample(10.0, {"0": BUSY}), Sample(20.0, {"0": DeviceUse()}), Sample(30.0, {"0": BUSY})).figures()

    assert metered().figures() == UsageMeter().figures() == {}
    assert part == {"sampled_s": 10.0, "gpu_memory_bytes_peak": 30 * GB}
    assert (at_times["gpu_percent"], at_times["gpu_energy_j"], at_times["sampled_s"]) == (90.0, 8_000.0, 30.0)


def test_an_idle_device_is_warned_of_once_in_a_spell_and_not_if_it_computes_now_and_then() -> None:
    busy_at = {1_000.0, 1_010.0}

    assert warned_at(lambda at: BUSY if at in busy_at else IDLE, 2_500) == [IDLE_S, 1_010 + IDLE_S]
    assert warned_at(lambda at: BUSY if at % (IDLE_S - 20) == 0 else IDLE, 10 * IDLE_S) == []


ONE = Claim(TrialId("0001"), 1, "token")


@dataclass
class Run:
    """An attempt, as the sampler sees it."""

    experiment: str = "mine"
    claim: Claim = ONE
    devices: tuple[str, ...] = ("0",)
    process: int | None = field(default_factory=os.getpid)
    has_reported: bool = True
    meter: UsageMeter = field(default_factory=UsageMeter)
    gpu_memory_bytes: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)
    #: Called when it is failed; its processes may be gone at once.
    on_fail: Callable[[], None] = lambda: None

    def fail(self, error_type: str, error: str) -> None:
        self.on_fail()
        self.failed.append((error_type, error))

    @property
    def journal(self) -> Any:
        return SimpleNamespace(experiment=self.experiment)


class Board:
    """What was written, and by whom it was refused."""

    def __init__(self) -> None:
        self.written: list[tuple[tuple[str, str], dict[str, LiveUse]]] = []
        self.tries = 0
        self.refuses = False

    def write(self, whose: tuple[str, str], uses: dict[str, LiveUse]) -> None:
        self.tries += 1
        if self.refuses:
            raise AccessDenied("NOPERM")
        self.written.append((whose, uses))


class Devices:
    """Devices that are used as a test says."""

    def __init__(self, **uses: DeviceUse) -> None:
        self.uses = {name.removeprefix("d"): use for name, use in uses.items()}
        self.asked: list[list[str]] = []
        self.on_use: Callable[[], None] = lambda: None
        self.there: dict[str, dict[int, int]] = {}

    def use(self, devices: Sequence[str]) -> dict[str, DeviceUse]:
        self.asked.append([*devices])
        self.on_use()
        return {device: self.uses[device] for device in devices if device in self.uses}

    def processes(self, devices: Sequence[str]) -> dict[str, dict[int, int]]:
        return {device: self.there[device] for device in devices if device in self.there}

    def close(self) -> None:
        """Nothing is open."""


def sampler(
    runs: list[Run],
    devices: Devices,
    board: Board,
    slots: Sequence[tuple[str, ...]] = (("0",),),
    *,
    shares_memory: bool = False,
    is_strict: bool = False,
    clock: Any = time,
) -> UsageSampler:
    plan = SlotPlan(offer=Resources(gpu_memory_gb=80 * shares_memory), devices=tuple(slots), is_strict=is_strict)
    return UsageSampler("w@h", plan, devices, lambda: runs, board, clock=clock)  # type: ignore[arg-type]


def test_an_account_that_may_not_write_it_is_told_once_and_trials_go_on(caplog: pytest.LogCaptureFixture) -> None:
    board, run = Board(), Run()
    board.refuses = True
    looks = sampler([run], Devices(d0=BUSY), board)
    for _ in range(3):
        looks.sample()

    assert board.tries == 1
    assert [record.getMessage() for record in caplog.records] == [
        (
            "this worker's account may not write what its trials use, which is seen only when they have ended: make it again with what "
            "`mqtune acl` of this version prints"
        )
    ]
    assert run.meter.figures()["gpu_percent_peak"] == 90.0


@pytest.mark.parametrize("is_strict", [False, True])
def test_where_trials_share_a_gpu_by_memory_one_that_takes_more_than_it_asked_for_is_named_and_ended_where_that_is_strict(
    caplog: pytest.LogCaptureFixture, is_strict: bool
) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        family = {os.getpid(): 3_000_000_000, child.pid: 5_100_000_000}
        devices = Devices(d0=DeviceUse(90.0, 70 * GB, 400.0))
        greedy, modest = Run(gpu_memory_bytes=8_000_000_000), Run(gpu_memory_bytes=9_000_000_000)
        unknown = Run("other", devices=("1",), gpu_memory_bytes=1)
        runs = [greedy, modest, unknown]
        for run in runs:
            run.meter.begin(0.0)
        # Of another namespace of processes, as in a container, no number is one of the trial's.
        devices.there = {"0": {**family, 1: 60_000_000_000}, "1": {1: 60_000_000_000}}
        ends: list[list[Usage]] = []
        greedy.on_fail = lambda: ends.append([run.meter.figures() for run in runs])
        looks = sampler(runs, devices, Board(), (("0",), ("0",), ("1",)), shares_memory=True, is_strict=is_strict)
        looks.sample()
        looks.sample()
        child.communicate(b"\n")

    (told,) = [record.getMessage() for record in caplog.records]
    assert (
        "experiment mine, trial 0001 attempt 1: the trial took 8.1 GB of its GPU's memory, and it had asked for 8.0 GB"
        in told
    )
    assert [bool(run.failed) for run in runs] == [is_strict, False, False]
    assert all(error_type == "GpuMemoryExceeded" and "8.1 GB" in error for error_type, error in greedy.failed)
    # The sample for which it is failed is in its end, and that of the same moment in the ends of others.
    for figures in ([run.meter.figures() for run in runs], *ends[:1]):
        assert [(each.get("gpu_memory_bytes_peak"), each.get("gpu_memory_bytes_asked")) for each in figures] == [
            (8.1e9, 8e9),
            (8.1e9, None),
            (None, None),
        ]


def test_the_worker_warns_of_an_idle_device_in_its_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seconds = iter(range(0, 100_000, 20))
    clock = SimpleNamespace(monotonic=lambda: next(seconds))
    quiet, without = (
        Run(claim=Claim(TrialId("0002"), 1, "t"), devices=("1",), has_reported=False),
        Run("other", devices=()),
    )
    looks = sampler([Run(), quiet, without], Devices(d0=IDLE, d1=IDLE), Board(), (("0",), ("0",), ("1",)), clock=clock)
    for _ in range(40):
        looks.sample()

    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        (
            "experiment mine, trial 0001 attempt 1 holds device 0 and leaves it idle, as do the other trials there (2 slots share it): "
            "it has computed for less than 5 % of the time for 10 minutes"
        )
    ]
    for _ in range(60):
        looks.sample()
    assert caplog.records[-1].getMessage() == (
        "experiment mine, trial 0002 attempt 1 holds device 1 and leaves it idle: it has computed for less than 5 % of the time for 30 "
        "minutes, and the trial has not reported yet"
    )
