"""Two trials that report as fast as they can: the cost of a report."""

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
    sizes={"reports": 2_000},
    quick_sizes={"reports": 200},
    figures={"reports_per_s": Figure("reports decided", "1/s")},
)


def figures(folder: Path, *, reports: int, last_decision: float) -> Figures:
    """Return the rate of reports, from the first report to the driver's last decision."""
    first_report = min(trace.started for trace in read_traces(folder).values())
    return {"reports_per_s": PARTIES * reports / (last_decision - first_report)}
