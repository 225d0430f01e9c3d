"""A worker samples the use of its attempts: figures, warnings, and no wait for them."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from mqtune.core.errors import AccessDenied
from mqtune.core.resources import Resources
from mqtune.core.timing import Timing
from mqtune.core.trial import TrialId
from mqtune.core.usage import DeviceUse, Usage
from mqtune.journal import Claim
from mqtune.services.usage.worker import ProcessUse, Sample, UsageMeter, UsageSampler
from mqtune.worker import SlotPlan

IDLE_S = Timing().idle_s

GB = 10**9
BUSY, IDLE, UNKNOWN = DeviceUse(90.0, 30 * GB, 400.0), DeviceUse(1.0, 30 * GB, 70.0), DeviceUse(None, 30 * GB, None)


def metered(*samples: Sample) -> UsageMeter:
    meter = UsageMeter()
    meter.begin(0.0)
    for sample in samples:
        meter.take(sample)
    return meter


def warned_at(use: Callable[[float], DeviceUse], until_s: float) -> list[float]:
    """When a meter warns of a device that is used so from one sample to the next."""
    meter = metered()
    return [at for at in range(10, int(until_s) + 1, 10) for _ in meter.take(Sample(at, {"0": use(at)}))]


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


@dataclass(eq=False)
class Run:
    """An attempt, as the sampler sees it."""

    experiment: str = "mine"
    claim: Claim = ONE
    devices: tuple[str, ...] = ("0",)
    process: int | None = field(default_factory=os.getpid)
    has_reported: bool = True
    began_at: float | None = None
    waited_s: float = 0.0
    shared_bytes: int = 0
    #: After it, its processes may be gone.
    fail: Mock = field(default_factory=Mock)

    @property
    def journal(self) -> Any:
        return SimpleNamespace(experiment=self.experiment)


def sampler(
    runs: list[Run],
    uses: dict[str, DeviceUse],
    slots: Sequence[tuple[str, ...]] = (("0",),),
    *,
    processes: Mapping[str, dict[int, int]] | None = None,
    board: Any = None,
    is_strict: bool = False,
    clock: Any = time,
) -> UsageSampler:
    """The sampler of devices with this use. Slots share devices with known processes."""
    offer = Resources(gpu_memory_gb=0 if processes is None else 80)
    plan = SlotPlan(offer=offer, devices=tuple(slots))
    devices = Mock(**{"use.return_value": uses, "processes.return_value": processes or {}})
    return UsageSampler("w@h", plan, devices, lambda: runs, board or Mock(), clock=clock, is_strict=is_strict)  # type: ignore[arg-type]


def test_an_account_that_may_not_write_it_is_told_once_and_trials_go_on(caplog: pytest.LogCaptureFixture) -> None:
    board, run = Mock(**{"write.side_effect": AccessDenied("NOPERM")}), Run()
    looks = sampler([run], {"0": BUSY}, board=board)
    for _ in range(3):
        looks.sample()

    assert board.write.call_count == 1
    assert [record.getMessage() for record in caplog.records] == [
        (
            "this worker's account may not write the resource use of running trials, so it is known only after they "
            "have ended: create the account again with the rules that `mqtune fleet acl` of this version prints"
        )
    ]
    run.waited_s = 7.0
    measured = looks.measured(run)
    assert (measured["gpu_percent_peak"], measured["redis_wait_s"]) == (90.0, 7.0)


@pytest.mark.parametrize("is_strict", [False, True])
def test_a_trial_with_too_much_gpu_memory_is_named_or_ended(caplog: pytest.LogCaptureFixture, is_strict: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        family = {os.getpid(): 3_000_000_000, child.pid: 5_100_000_000}
        greedy, modest = Run(shared_bytes=8_000_000_000), Run(shared_bytes=9_000_000_000)
        unknown = Run("other", devices=("1",), shared_bytes=1)
        runs = [greedy, modest, unknown]
        # Of another namespace of processes, as in a container, no number is one of the trial's.
        there = {"0": {**family, 1: 60_000_000_000}, "1": {1: 60_000_000_000}}
        ends: list[list[Usage]] = []
        greedy.fail.side_effect = lambda *_: ends.append([looks.meter_of(run).figures() for run in runs])
        used = {"0": DeviceUse(90.0, 70 * GB, 400.0)}
        looks = sampler(runs, used, (("0",), ("0",), ("1",)), processes=there, is_strict=is_strict)
        for run in runs:
            run.began_at = 0.0
            looks.started(run)
        looks.sample()
        looks.sample()
        child.communicate(b"\n")

    (told,) = [record.getMessage() for record in caplog.records]
    assert (
        "experiment mine, trial 0001 attempt 1: the trial took 8.1 GB of its GPU's memory, and it had asked for 8.0 GB"
        in told
    )
    assert [run.fail.called for run in runs] == [is_strict, False, False]
    for call in greedy.fail.call_args_list:
        assert call.args[0] == "GpuMemoryExceeded"
        assert "8.1 GB" in call.args[1]
    # The sample of that moment is in the end of each attempt, also of the failed one.
    for figures in ([looks.meter_of(run).figures() for run in runs], *ends[:1]):
        assert [(each.get("gpu_memory_bytes_peak"), each.get("gpu_memory_bytes_asked")) for each in figures] == [
            (8.1e9, 8e9),
            (8.1e9, None),
            (None, None),
        ]


def test_the_worker_warns_of_an_idle_device_in_its_log(caplog: pytest.LogCaptureFixture) -> None:
    clock = Mock(**{"monotonic.side_effect": range(0, 100_000, 20)})
    quiet = Run(claim=Claim(TrialId("0002"), 1, "t"), devices=("1",), has_reported=False)
    runs = [Run(), quiet, Run("other", devices=())]
    looks = sampler(runs, {"0": IDLE, "1": IDLE}, (("0",), ("0",), ("1",)), clock=clock)
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
