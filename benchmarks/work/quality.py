"""Quality of the configs that a tuner finds, at equal time on eight simulated slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from benchmarks.measurement import Context, Samples, Variant
from benchmarks.quality.tasks import EPOCH_S, EPOCHS, TASKS, Config, Task
from benchmarks.work.base import Figure, Workload

__all__ = ["SLOTS", "WORKLOAD", "Record", "variant"]

SLOTS: Final = 8
#: Length of an experiment in virtual seconds: enough for 20 full trainings of mean speed.
BUDGET_S: Final = 20 * EPOCHS * EPOCH_S / SLOTS
#: For all seeds of one repeat.
DEADLINE_S: Final = 3600.0

WORKLOAD: Final = Workload(
    name="quality",
    sizes={"seeds": 10, "budget": 100},
    quick_sizes={"seeds": 1, "budget": 5},
    figures={f"{task.name}_regret": Figure(f"regret on {task.name}") for task in TASKS},
)


class Record:
    """The reports of one experiment."""

    def __init__(self) -> None:
        self._reports: list[tuple[float, Config, int, float]] = []

    def add(self, at_s: float, config: Config, epoch: int, loss: float) -> None:
        """Add a report, made at a time in virtual seconds."""
        self._reports.append((at_s, config, epoch, loss))

    def chosen(self, until_s: float) -> Config:
        """Return the chosen config at a time in virtual seconds.

        It has the least loss among the configs with the most epochs.
        """
        reports = sorted((report for report in self._reports if report[0] <= until_s), key=lambda report: report[0])
        return min(reports, key=lambda report: (-report[2], report[3]))[1]


def variant(name: str, settings: str, run: Callable[[Task, int, float], Record]) -> Variant:
    """Return a variant that runs each task with each seed of a repeat.

    Args:
        name: of the variant.
        settings: in words.
        run: runs one experiment, given a task, a seed and a time in virtual seconds.
    """

    def measure(context: Context) -> Samples:
        seeds, budget_s = context.sizes["seeds"], BUDGET_S * context.sizes["budget"] / 100
        return {
            f"{task.name}_regret": [
                task.regret(run(task, seed, budget_s).chosen(budget_s))
                for seed in range(context.run * seeds, (context.run + 1) * seeds)
            ]
            for task in TASKS
        }

    return Variant(name=name, settings=settings, measure=measure, deadline_s=DEADLINE_S)
