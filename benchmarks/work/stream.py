"""Two trials that report as fast as they can: what a report costs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks.measurement import Figures
from benchmarks.trace import read_traces
from benchmarks.work.base import Figure, Workload

__all__ = ["PARTIES", "WORKLOAD", "figures"]

PARTIES: Final = 2

WORKLOAD: Final = Workload(
    name="stream",
    title="2 trials that report as fast as they can, first come first served",
    sizes={"reports": 2_000},
    quick_sizes={"reports": 200},
    figures={
        "reports_per_s": Figure(
            unit="1/s",
            higher_is_better=True,
            title="reports decided",
            bar=150_000.0,
            bars={"lockstep": 5_000.0},
        ),
        "trial_reports_per_s": Figure(unit="1/s", higher_is_better=True, shown=False),
    },
)


def figures(folder: Path, *, reports: int, last_decision: float) -> Figures:
    """Return the figures, from the first report of the two trials to the driver's decision on the last."""
    traces = read_traces(folder).values()
    first_report = min(trace.started for trace in traces)
    return {
        "reports_per_s": PARTIES * reports / (last_decision - first_report),
        "trial_reports_per_s": PARTIES * reports / (max(trace.beat for trace in traces) - first_report),
    }
