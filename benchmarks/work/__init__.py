"""The work: what is done, how much of it, and which figures come out."""

from __future__ import annotations

from typing import Final

from benchmarks.work import (
    asha,
    catch_up,
    checkpoint,
    fleet,
    limits,
    memory,
    noop,
    opened,
    pause,
    population,
    quality,
    retention,
    scaling,
    shares,
    simulated,
    start,
    stop,
    stream,
    studies,
    syne_loop,
    training,
)
from benchmarks.work.base import Figure, Workload

__all__ = ["WORKLOADS", "Figure", "Workload"]

WORKLOADS: Final[dict[str, Workload]] = {
    module.WORKLOAD.name: module.WORKLOAD
    for module in (
        start,
        noop,
        stream,
        stop,
        asha,
        pause,
        checkpoint,
        memory,
        scaling,
        simulated,
        quality,
        studies,
        catch_up,
        opened,
        population,
        fleet,
        syne_loop,
        limits,
        shares,
        retention,
    )
} | training.WORKLOADS
