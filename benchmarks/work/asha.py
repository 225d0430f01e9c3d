"""64 short trials under ASHA: the share of the wall time without training."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks.bodies import EPOCH_S
from benchmarks.curve import CONFIGS
from benchmarks.measurement import Figures
from benchmarks.trace import read_traces
from benchmarks.work.base import Figure, Workload

__all__ = ["GRACE_PERIOD", "REDUCTION_FACTOR", "SLOTS", "WORKLOAD", "figures"]

SLOTS: Final = 2
GRACE_PERIOD: Final = 1
REDUCTION_FACTOR: Final = 3

WORKLOAD: Final = Workload(
    name="asha",
    sizes={"trials": len(CONFIGS)},
    quick_sizes={"trials": 6},
    figures={"wall_over_ideal": Figure("ASHA: wall / ideal", "×")},
)


def figures(folder: Path, *, first_start: float, last_end: float) -> Figures:
    """Return wall over ideal; the ideal is all trained epochs, at 10 ms each, over two slots."""
    epochs = sum(trace.epochs for trace in read_traces(folder).values())
    return {"wall_over_ideal": (last_end - first_start) / (epochs * EPOCH_S / SLOTS)}
