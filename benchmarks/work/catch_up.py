"""A new driver that catches up with a long journal."""

from __future__ import annotations

from typing import Final

from benchmarks.work.base import Figure, Workload

__all__ = ["BATCHES", "WORKLOAD"]

#: Trials, and reports in an entry: some that report in a flood, many that report at once, and a report at a time.
BATCHES: Final = {"flood": (64, 640), "fleet": (1_000, 64), "single": (64, 1)}


def _seconds(title: str, bar: float | None = None) -> Figure:
    return Figure(unit="s", higher_is_better=False, title=title, bar=bar)


def _microseconds(title: str) -> Figure:
    return Figure(unit="µs", higher_is_better=False, title=title, bar=3.0)


WORKLOAD: Final = Workload(
    name="catch_up",
    title="a new driver catches up",
    sizes={"reports": 1_000_000},
    quick_sizes={"reports": 10_000},
    figures={
        "flood_s": _seconds("64 trials, 640 reports an entry, no copy", bar=5.0),
        "flood_copy_s": _seconds("64 trials, 640 reports an entry, with the copy", bar=5.0),
        "fleet_s": _seconds("1,000 trials, 64 reports an entry, no copy", bar=5.0),
        "fleet_copy_s": _seconds("1,000 trials, 64 reports an entry, with the copy", bar=5.0),
        "single_s": _seconds("64 trials, a report an entry, no copy"),
        "single_copy_s": _seconds("64 trials, a report an entry, with the copy"),
        "entry_us": _microseconds("an entry with one report, over a report in an entry of 640, no copy"),
        "entry_copy_us": _microseconds("the same, with the copy"),
        "peak_mb": Figure(unit="MB", higher_is_better=False, title="memory of the driver afterwards, at most"),
    },
)
