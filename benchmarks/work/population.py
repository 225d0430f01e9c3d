"""Population-based training whose members save a checkpoint with each report."""

from __future__ import annotations

from typing import Final

from benchmarks.work.base import Figure, Workload

__all__ = ["INTERVAL", "POPULATIONS", "WORKLOAD"]

POPULATIONS: Final = (10, 100, 1_000)
#: Reports of a member from milestone to milestone.
INTERVAL: Final = 10


def _figures(population: int) -> dict[str, Figure]:
    who = f"{population:,} members"
    kinds = (
        ("scheduler", "PBT alone: a report", "that is no milestone", None),
        ("scheduler_milestone", "PBT alone: a report", "at a milestone", None),
        ("driver", "the driver: a report with a checkpoint", "that is no milestone", 20.0),
        ("driver_milestone", "the driver: a report with a checkpoint", "at a milestone", 200.0),
    )
    figures = {
        f"{kind}_{population}_us": Figure(unit="µs", higher_is_better=False, title=f"{what} {where}, {who}", bar=bar)
        for kind, what, where, bar in kinds
    }
    title = f"of that: dropping checkpoints after the round, {who}"
    return {**figures, f"drops_{population}_us": Figure(unit="µs", higher_is_better=False, title=title)}


WORKLOAD: Final = Workload(
    name="population",
    title="population-based training",
    sizes={"reports": 100_000},
    quick_sizes={"reports": 2_000},
    figures={name: figure for population in POPULATIONS for name, figure in _figures(population).items()},
)
