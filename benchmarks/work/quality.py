"""How good the configs are that a tuner finds, at equal time on eight simulated slots; how soon; and how long its thinking takes."""

from __future__ import annotations

import itertools
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
#: The regret to be reached on each task: the least that the median of another system than mqtune was at the end, in a run of 30 seeds. Tasks
#: with conditions have none, as not all systems know these.
TARGETS: Final = {
    "branin": 0.19,
    "hartmann6": 1.40,
    "curves": 0.063,
    "crossing": 0.072,
    "noisy": 0.099,
    "digits": 0.008,
}
#: When the target was reached: in virtual time, and as if all slots had stood still while the tuner was thinking.
SUMMED: Final = ("reached_s", "reached_with_thinking_s")


def _figures() -> Iterator[tuple[str, Figure]]:
    for share in reversed(SHARES):
        for task in TASKS:
            title = f"regret on {task.name}{_WHEN[share]}"
            yield (
                f"{task.name}_{share}",
                Figure(unit="", higher_is_better=False, title=title, against_best=share == "regret"),
            )
    for task, name in itertools.product(TARGETS, SUMMED):
        yield f"{task}_{name}", Figure(unit="s", higher_is_better=False, shown=False)
    title = "virtual time until as good as the best other at the end, all tasks with a target"
    yield "reached_s", Figure(unit="s", higher_is_better=False, title=title, against_best=True)
    title = f"{title}, thinking added"
    yield "reached_with_thinking_s", Figure(unit="s", higher_is_better=False, title=title, against_best=True)
    title = "an experiment's thinking, processor time"
    yield "thinking_s", Figure(unit="s", higher_is_better=False, title=title)
    yield "trial_ms", Figure(unit="ms", higher_is_better=False, title="the same for each trial, with all its reports")
    yield "wall_s", Figure(unit="s", higher_is_better=False, shown=False)
    yield "reports", Figure(unit="", higher_is_better=None, shown=False)
    yield "trials", Figure(unit="", higher_is_better=None, shown=False)


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
        seeds = context.sizes["seeds"]
        for seed in range(context.run * seeds, (context.run + 1) * seeds):
            for name, value in _each_task(run, context, seed):
                samples.setdefault(name, []).append(value)
            print(
                f"seed {seed}: " + ", ".join(f"{name} {statistics.median(all_):.4g}" for name, all_ in samples.items())
            )
        return samples

    return measure


def _each_task(
    run: Callable[[Context, Task, int, float], Record], context: Context, seed: int
) -> Iterator[tuple[str, float]]:
    """Yield the figures of each task's experiment with a seed, then those that are summed over the tasks."""
    budget_s, sums = BUDGET_S * context.sizes["budget"] / 100, dict.fromkeys(SUMMED, 0.0)
    for task in TASKS[: context.sizes["tasks"]]:
        begin, begin_cpu = time.perf_counter(), time.process_time()
        record = run(context, task, seed, budget_s)
        yield "wall_s", time.perf_counter() - begin
        yield "thinking_s", (thinking_s := time.process_time() - begin_cpu)
        yield "trial_ms", 1e3 * thinking_s / record.trials
        yield "trials", record.trials
        yield "reports", len(record)
        for name, share in SHARES.items():
            yield f"{task.name}_{name}", record.regret(task, share * budget_s)
        if task.name not in TARGETS:
            continue
        for name, value in zip(SUMMED, _reached(record, task, budget_s), strict=True):
            yield f"{task.name}_{name}", value
            sums[name] += value
    yield from sums.items()


def _reached(record: Record, task: Task, budget_s: float) -> tuple[float, float]:
    """Return when the target was reached, without and with the tuner's thinking; the whole time where it was not."""
    at_s = min(budget_s, record.good_from_s(task, TARGETS[task.name]))
    return at_s, at_s + record.thought_s(at_s)
