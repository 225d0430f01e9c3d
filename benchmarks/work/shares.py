"""A hundred experiments on a thousand slots, in virtual time: what each has of them."""

from __future__ import annotations

from typing import Final

from benchmarks.work.base import Figure, Workload

__all__ = ["WORKLOAD"]


def _fair(title: str) -> Figure:
    return Figure(unit="", higher_is_better=True, title=f"Jain's index over an hour, {title}", bar=0.95)


WORKLOAD: Final = Workload(
    name="shares",
    title="a shared fleet, in virtual time",
    sizes={"experiments": 100, "slots": 1_000, "seconds": 3_600},
    quick_sizes={"experiments": 10, "slots": 60, "seconds": 600},
    figures={
        "jain_alike": _fair("all of one priority, shares of 1 to 3"),
        "jain_high": _fair("high priority among all"),
        "jain_normal": _fair("normal priority among all"),
        "jain_low": _fair("low priority among all, shares of 1 to 3 of what is left"),
        "jain_patient": _fair("all of one priority, and no trial may be paused"),
        "longest_without_s": Figure(
            unit="s", higher_is_better=False, title="longest time that an experiment had no slot", bar=600.0
        ),
        "pauses": Figure(unit="", higher_is_better=False, title="trials paused for others, all priorities"),
        "look_us": Figure(
            unit="µs",
            higher_is_better=False,
            title="what sharing takes for each driver and second, its part of dividing included",
        ),
    },
)
