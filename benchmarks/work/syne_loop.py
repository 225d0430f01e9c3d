"""Syne Tune's own Tuner over its LocalBackend and over mqtune: what a trial and a report cost, how late a decision is."""

from __future__ import annotations

from typing import Final

from benchmarks.work.base import Figure, Workload

__all__ = ["LOCAL", "WORKLOAD"]

#: Begins the names of the figures of Syne Tune's own backend, which is measured in the same process.
LOCAL: Final = "local_"


def _both(name: str, unit: str, title: str, *, higher_is_better: bool, bar: float | None = None) -> dict[str, Figure]:
    return {
        name: Figure(unit=unit, higher_is_better=higher_is_better, title=f"Syne Tune's Tuner: {title}", bar=bar),
        LOCAL + name: Figure(
            unit=unit, higher_is_better=higher_is_better, title=f"Syne Tune's Tuner: {title}, over its LocalBackend"
        ),
    }


WORKLOAD: Final = Workload(
    name="syne_loop",
    title="Syne Tune's Tuner with 2 workers, over its LocalBackend and over mqtune in one process",
    sizes={"trials": 200, "local_trials": 50, "reports": 2_000, "stopped": 20, "ended": 2_000},
    quick_sizes={"trials": 10, "local_trials": 4, "reports": 100, "stopped": 3, "ended": 40},
    figures={
        **_both("trials_per_s", "1/s", "no-op trials", higher_is_better=True),
        "times_local": Figure(
            unit="×",
            higher_is_better=True,
            title="Syne Tune's Tuner: no-op trials, mqtune / its LocalBackend",
            bars={"function": 5.0, "script": 2.0, "bare script": 1.0},
        ),
        **_both("reports_per_s", "1/s", "reports decided", higher_is_better=True),
        **_both("decision_p50_ms", "ms", "report → decision, p50", higher_is_better=False, bar=10.0),
        **{
            f"{prefix}decision_p99_ms": Figure(unit="ms", higher_is_better=False, shown=False) for prefix in ("", LOCAL)
        },
        "fetch_ratio": Figure(
            unit="×",
            higher_is_better=False,
            title="Syne Tune's Tuner: time of a fetch, many ended trials / 10",
            bar=1.5,
        ),
        "fetch_ms": Figure(unit="ms", higher_is_better=False, shown=False),
    },
)
