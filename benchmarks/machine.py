"""The machine of a figure, and the load of other processes on it."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

__all__ = ["OtherLoad", "describe_machine"]


def describe_machine() -> dict[str, str | int | float]:
    """Return the CPU's model, the cores this process may use, the memory and the kernel."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory_kib = int(Path("/proc/meminfo").read_text().split()[1])
    return {
        "cpu": models[0].partition(":")[2].strip() if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "ram_gb": round(memory_kib * 1024 / 1e9, 1),
        "kernel": platform.release(),
    }


class OtherLoad:
    """The number of cores that other processes have kept busy since this object was made.

    Processor time of this process and of its reaped descendants is not counted.
    """

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._others_s = _machine_cpu_s() - _own_cpu_s()

    def cores(self) -> float:
        """Return the mean number of cores."""
        others_s = _machine_cpu_s() - _own_cpu_s() - self._others_s
        return max(0.0, others_s / (time.monotonic() - self._since))


def _machine_cpu_s() -> float:
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
