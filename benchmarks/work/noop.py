"""Trials that report once and end: the cost of running a trial at all."""

from __future__ import annotations

from typing import Final

from benchmarks.measurement import Figures
from benchmarks.work.base import Figure, Workload

__all__ = ["WORKLOAD", "figures"]

WORKLOAD: Final = Workload(
    name="noop",
    sizes={"trials": 200},
    quick_sizes={"trials": 10},
    figures={"trials_per_s": Figure("no-op trials", "1/s")},
)


def figures(trials: int, *, first_start: float, last_end: float) -> Figures:
    """Return the rate of trials, from the first start to the last end known to the driver."""
    return {"trials_per_s": trials / (last_end - first_start)}
