"""What the machine, Redis and Celery can do at most: the floor under every figure."""

from __future__ import annotations

from typing import Final

from benchmarks.work.base import Figure, Workload

__all__ = ["WORKLOAD"]


def _rate(title: str) -> Figure:
    return Figure(unit="1/s", higher_is_better=True, title=title)


def _time(title: str, *, shown: bool = True) -> Figure:
    return Figure(unit="ms", higher_is_better=False, title=title, shown=shown)


WORKLOAD: Final = Workload(
    name="limits",
    title="physical limits",
    sizes={"forks": 500, "batches": 1_000, "round_trips": 10_000, "tasks": 2_000, "hops": 500, "kills": 50},
    quick_sizes={"forks": 50, "batches": 50, "round_trips": 500, "tasks": 100, "hops": 50, "kills": 5},
    figures={
        "forks_per_s": _rate("fork + wait of a bare Python"),
        "packed_records_per_s": _rate("records packed by 500, appended and published by a script"),
        "round_trips_per_s": _rate("one record appended by a script a round trip"),
        "celery_tasks_per_s": _rate("Celery no-op tasks on 2 threads"),
        "hop_p50_ms": _time("one pub/sub hop, p50"),
        "hop_p99_ms": _time("one pub/sub hop, p99", shown=False),
        "kill_p50_ms": _time("pub/sub → SIGKILL → dead, p50"),
        "kill_p99_ms": _time("pub/sub → SIGKILL → dead, p99"),
    },
)
