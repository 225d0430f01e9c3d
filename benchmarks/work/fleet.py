"""A fleet of up to a thousand workers on one Redis, with one to a hundred drivers."""

from __future__ import annotations

from typing import Final

from benchmarks.work.base import Figure, Workload

__all__ = ["WORKLOAD"]

WORKLOAD: Final = Workload(
    name="fleet",
    sizes={"workers": 1_000, "slots": 8, "reports_per_s": 5_000, "seconds": 20},
    quick_sizes={"workers": 10, "slots": 2, "reports_per_s": 100, "seconds": 2},
    figures={
        "idle_redis_share": Figure("Redis, no trial runs", "cores"),
        "held_redis_share": Figure("Redis, each slot has a trial that doesn't report", "cores"),
        "all_slots_s": Figure("until each slot has a trial", "s"),
        "decision_p50_ms": Figure("report → decision, p50", "ms"),
        "decision_p99_ms": Figure("report → decision, p99", "ms"),
        "sent_p50_ms": Figure("report → handed to Redis by the simulated workers, p50", "ms"),
        "sent_p99_ms": Figure("report → handed to Redis by the simulated workers, p99", "ms"),
        "reports_per_s": Figure("reports decided", "1/s"),
        "driver_us": Figure("all drivers' processor time for a report", "µs"),
        "driver_mb": Figure("memory of a driver, at most", "MB"),
        "busy_redis_share": Figure("Redis, while trials report", "cores"),
        "idle_bytes_per_s": Figure("traffic, no trial runs", "B/s"),
        "busy_bytes_per_s": Figure("traffic, while trials report", "B/s"),
        "back_s": Figure("after a restart of Redis, until each worker's heartbeat is answered", "s"),
        "lost": Figure("attempts lost by the restart"),
        "late_ms": Figure("delay of simulated reports, at most", "ms"),
        "load_share": Figure("the simulated workers", "cores"),
    },
)
