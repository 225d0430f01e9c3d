"""How good the configs are that a tuner finds, at equal time on eight simulated slots; and how long its thinking takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Final

from benchmarks.measurement import Context, Samples
from benchmarks.quality.slots import BUDGET_S, Record
from benchmarks.quality.tasks import TASKS, Task
from benchmarks.work.base import Figure, Workload

__all__ = ["DEADLINE_S", "WORKLOAD", "measure"]

#: For all seeds of one repeat.
DEADLINE_S: Final = 3600.0

#: The shares of the time at which the chosen config is looked at, besides its end; figures by their names.
SHARES: Final = {"half": 0.5, "regret": 1.0}
_WHEN: Final = {"half": ", half of the time", "regret": ""}


def _figures() -> Iterator[tuple[str, Figure]]:
    for share in reversed(SHARES):
        for task in TASKS:
            title = f"regret on {task.name}{_WHEN[share]}"
            yield (
                f"{task.name}_{share}",
                Figure(unit="", higher_is_better=False, title=title, against_best=share == "regret"),
            )
    yield "wall_s", Figure(unit="s", higher_is_better=False, title="an experiment on 8 simulated slots, real time")
    yield (
        "report_us",
        Figure(unit="µs", higher_is_better=False, title="the same for each report, trials' starts included"),
    )
    yield "reports", Figure(unit="", higher_is_better=None, shown=False)


WORKLOAD: Final = Workload(
    name="quality",
    title="search on functions and tables",
    sizes={"seeds": 10, "tasks": len(TASKS), "budget": 100},
    quick_sizes={"seeds": 1, "budget": 5},
    figures=dict(_figures()),
)


def measure(run: Callable[[Context, Task, int, float], Record]) -> Callable[[Context], Samples]:
    """Return a measurement that runs each task with each seed of this repeat and returns all their figures.

    Args:
        run: runs one experiment, for a task, a seed and a time in virtual seconds.
    """

    def measure(context: Context) -> Samples:
        samples: dict[str, list[float]] = {}
        budget_s = BUDGET_S * context.sizes["budget"] / 100
        seeds = context.sizes["seeds"]
        for seed in range(context.run * seeds, (context.run + 1) * seeds):
            for task in TASKS[: context.sizes["tasks"]]:
                for name, value in _one(run, context, task, seed, budget_s):
                    samples.setdefault(name, []).append(value)
            print(
                f"seed {seed}: " + ", ".join(f"{name} {statistics.median(all_):.4g}" for name, all_ in samples.items())
            )
        return samples

    return measure


def _one(
    run: Callable[[Context, Task, int, float], Record], context: Context, task: Task, seed: int, budget_s: float
) -> Iterator[tuple[str, float]]:
    begin = time.perf_counter()
    record = run(context, task, seed, budget_s)
    wall_s = time.perf_counter() - begin
    for name, share in SHARES.items():
        yield f"{task.name}_{name}", record.regret(task, share * budget_s)
    yield "wall_s", wall_s
    yield "report_us", 1e6 * wall_s / len(record)
    yield "reports", len(record)
