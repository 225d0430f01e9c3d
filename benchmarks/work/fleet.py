"""A fleet of up to a thousand workers with eight slots each, one Redis, and one to a hundred drivers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.work.base import Figure, Over, Workload

__all__ = ["WORKLOAD"]


#: The variant of a fleet that many share, in which what drivers read of each other counts.
_MANY: Final = "1,000 workers, 100 drivers"


def _low(
    unit: str,
    title: str,
    bar: float | None = None,
    bars: Mapping[str, float] | None = None,
    over: Mapping[str, Sequence[Over]] | None = None,
) -> Figure:
    return Figure(unit=unit, higher_is_better=False, title=title, bar=bar, bars=bars, over=over)


WORKLOAD: Final = Workload(
    name="fleet",
    title="a thousand workers",
    sizes={"workers": 1_000, "slots": 8, "reports_per_s": 5_000, "seconds": 20},
    quick_sizes={"workers": 10, "slots": 2, "reports_per_s": 100, "seconds": 2},
    figures={
        "idle_redis_share": _low("cores", "Redis, no trial runs", bar=0.05),
        "held_redis_share": _low("cores", "Redis, each slot has a trial that doesn't report", bar=0.05),
        "connections": _low("", "connections to Redis"),
        "all_slots_s": _low("s", "until each slot has a trial", bar=30.0, bars={_MANY: 10.0}),
        "decision_p50_ms": _low("ms", "report → decision, p50"),
        "decision_p99_ms": _low("ms", "report → decision, p99", bar=20.0),
        "sent_p50_ms": _low("ms", "report → handed to Redis by what plays the workers, p50"),
        "sent_p99_ms": _low("ms", "report → handed to Redis by what plays the workers, p99"),
        "reports_per_s": Figure(unit="1/s", higher_is_better=True, title="reports decided"),
        "driver_us": _low(
            "µs",
            "all drivers' processor time for a report",
            over={"1,000 workers, 1 driver": [Over(system="mqtune", variant="10 workers, 1 driver", bar=1.3)]},
        ),
        "driver_mb": _low("MB", "memory of a driver, at most"),
        "busy_redis_share": _low("cores", "Redis, while they report"),
        "idle_bytes_per_s": _low("B/s", "traffic, no trial runs"),
        "busy_bytes_per_s": _low("B/s", "traffic, while they report", bars={_MANY: 1e6}),
        "back_s": _low("s", "after a restart of Redis, until each worker's heartbeat is answered", bar=30.0),
        "lost": _low("", "attempts lost by it", bar=0.0),
        "late_ms": _low("ms", "reports made later than they were due, at most"),
        "load_share": _low("cores", "what plays the workers"),
    },
)
