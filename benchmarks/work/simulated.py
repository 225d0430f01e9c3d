"""The simulated backend: how fast the driver goes through an experiment whose workers live in virtual time."""

from __future__ import annotations

from typing import Final

from benchmarks.work.base import Figure, Workload

__all__ = ["WORKERS", "WORKLOAD"]

#: How many simulated workers each figure is for.
WORKERS: Final = (4, 64, 10_000)


def _rate(workers: int, bar: float | None = None) -> Figure:
    return Figure(
        unit="1/s", higher_is_better=True, title=f"simulated reports decided under ASHA, {workers:,} workers", bar=bar
    )


WORKLOAD: Final = Workload(
    name="simulated",
    title="an experiment in virtual time",
    sizes={"reports": 200_000},
    quick_sizes={"reports": 5_000},
    figures={
        "reports_4_per_s": _rate(4),
        "reports_64_per_s": _rate(64, bar=20_000),
        "reports_10000_per_s": _rate(10_000),
        "report_bytes": Figure(
            unit="B", higher_is_better=False, title="memory that a simulated report leaves behind", shown=False
        ),
    },
)
