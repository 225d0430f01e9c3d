"""The work: what is done, how much of it, and which figures come out."""

from __future__ import annotations

from typing import Final

from benchmarks.work import (
    asha,
    catch_up,
    checkpoint,
    limits,
    memory,
    noop,
    pause,
    quality,
    scaling,
    simulated,
    stop,
    stream,
    studies,
    syne_loop,
)
from benchmarks.work.base import Figure, Workload

__all__ = ["WORKLOADS", "Figure", "Workload"]

WORKLOADS: Final[dict[str, Workload]] = {
    module.WORKLOAD.name: module.WORKLOAD
    for module in (
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
        syne_loop,
        limits,
    )
}
