"""The driver's time and memory for one report as the number of trials grows."""

from __future__ import annotations

from typing import Final

from benchmarks.measurement import Figures
from benchmarks.work.base import Figure, Workload

__all__ = ["WORKLOAD", "figures"]

WORKLOAD: Final = Workload(
    name="scaling",
    title="driver's cost of one report as trials grow",
    sizes={"few_trials": 1_000, "many_trials": 100_000, "reports_per_trial": 5},
    quick_sizes={"few_trials": 100, "many_trials": 1_000, "reports_per_trial": 5},
    figures={
        # "Flat" with room for the caches that a hundred times the trials no longer fit.
        "time_growth": Figure(unit="×", higher_is_better=False, title="time a report, many / few trials", bar=1.5),
        "memory_growth": Figure(unit="×", higher_is_better=False, title="memory a report, many / few trials", bar=1.5),
        "few_report_us": Figure(unit="µs", higher_is_better=False, shown=False),
        "many_report_us": Figure(unit="µs", higher_is_better=False, shown=False),
        "few_trial_bytes": Figure(unit="B", higher_is_better=False, shown=False),
        "many_trial_bytes": Figure(unit="B", higher_is_better=False, shown=False),
    },
)


def figures(few: tuple[float, float], many: tuple[float, float]) -> Figures:
    """Return the figures from (seconds a report, bytes a trial) with few and with many trials."""
    return {
        "time_growth": many[0] / few[0],
        "memory_growth": many[1] / few[1],
        "few_report_us": few[0] * 1e6,
        "many_report_us": many[0] * 1e6,
        "few_trial_bytes": few[1],
        "many_trial_bytes": many[1],
    }
