"""Journals of weeks on one Redis, whose oldest entries move to a store."""

from __future__ import annotations

from typing import Final

from benchmarks.work.base import Figure, Workload

__all__ = ["FLEETS", "WORKLOAD"]

#: Experiments that have the slots.
FLEETS: Final = {"one": 1, "many": 100}


def _memory(title: str, bar: float | None = None) -> Figure:
    return Figure(unit="MB", higher_is_better=False, title=title, bar=bar)


WORKLOAD: Final = Workload(
    name="retention",
    title="a week of a report a minute on one Redis",
    sizes={"slots": 8_000, "minutes": 7 * 24 * 60},
    quick_sizes={"slots": 8_000, "minutes": 60},
    figures={
        "one_peak_mb": _memory("one experiment has all slots: memory of Redis, at most", bar=2_000.0),
        "one_half_mb": _memory("… at most in the first half of the time"),
        "one_store_mb": _memory("… entries in its store at the end"),
        "many_peak_mb": _memory("a hundred experiments share them: memory of Redis, at most", bar=2_000.0),
        "many_half_mb": _memory("… at most in the first half of the time"),
        "many_store_mb": _memory("… entries in their stores at the end"),
    },
)
