"""The simulated backend: how fast the driver goes through an experiment whose workers live in virtual time."""

from __future__ import annotations

from typing import Final

from benchmarks.work.base import Figure, Workload

__all__ = [
    "GRACE_PERIOD",
    "MAX_EPOCHS",
    "SHORT_GRACE_PERIOD",
    "SHORT_MAX_EPOCHS",
    "WORKERS",
    "WORKLOAD",
]

#: How many simulated workers each figure is for.
WORKERS: Final = (4, 64, 10_000)
#: Of trials of at most 81 epochs with rungs at 9, 27 and 81: some 20 reports each.
MAX_EPOCHS: Final = 81
GRACE_PERIOD: Final = 9
#: Of trials of at most 27 epochs with rungs at 1, 3, 9 and 27: some 3 reports each, so that starts and ends are the work.
SHORT_MAX_EPOCHS: Final = 27
SHORT_GRACE_PERIOD: Final = 1


def _rate(workers: int, bar: float | None = None, *, more: str = "") -> Figure:
    title = f"simulated reports decided under ASHA, {workers:,} workers{more}"
    return Figure(unit="1/s", higher_is_better=True, title=title, bar=bar)


WORKLOAD: Final = Workload(
    name="simulated",
    title="an experiment in virtual time",
    sizes={"reports": 200_000},
    quick_sizes={"reports": 5_000},
    figures={
        "reports_4_per_s": _rate(4),
        "reports_64_per_s": _rate(64, bar=60_000),
        "reports_10000_per_s": _rate(10_000, bar=40_000),
        "short_reports_64_per_s": _rate(64, more=", short trials"),
        "report_bytes": Figure(
            unit="B", higher_is_better=False, title="memory that a simulated report leaves behind", shown=False
        ),
    },
)
