"""Simulated slots for systems that have no clock of their own to simulate, and the record of what was reported when."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from typing import Final, Protocol, TypeVar

from benchmarks.quality.tasks import EPOCH_S, EPOCHS, Config, Task

__all__ = ["BUDGET_S", "SLOTS", "Record", "Steered", "run_on_slots"]

SLOTS: Final = 8
#: How long an experiment runs, in virtual seconds: for as many mean trainings to the end as stand here, over all slots.
BUDGET_S: Final = 20 * EPOCHS * EPOCH_S / SLOTS

T = TypeVar("T")


class Steered(Protocol[T]):
    """A tuner that is driven from outside, over trials of its own kind."""

    def start(self) -> tuple[T, Config]:
        """Return a new trial and its config."""

    def report(self, trial: T, epoch: int, loss: float) -> bool:
        """Take a report, and return whether the trial goes on; it has ended if not, or if this was the last epoch."""


class Record:
    """What was reported in one experiment: the time in virtual seconds, the config, the epoch and the loss."""

    def __init__(self) -> None:
        self._reports: list[tuple[float, Config, int, float]] = []

    def add(self, at_s: float, config: Config, epoch: int, loss: float) -> None:
        self._reports.append((at_s, config, epoch, loss))

    def regret(self, task: Task, until_s: float) -> float:
        """Return the regret of the config that was chosen by then: of those that came furthest, the one with the least loss."""
        known = [report for report in self._reports if report[0] <= until_s]
        _, config, _, _ = min(known, key=lambda report: (-report[2], report[3]))
        return task.regret(config)

    def __len__(self) -> int:
        return len(self._reports)


def run_on_slots(tuner: Steered[T], task: Task, seed: int, budget_s: float) -> Record:
    """Run trials, each as long as *tuner* lets it, until the time is over; between reports no time passes."""
    record, numbers = Record(), itertools.count()
    waiting: list[tuple[float, int, Callable[[float], None]]] = []

    def at(due_s: float, call: Callable[[float], None]) -> None:
        heapq.heappush(waiting, (due_s, next(numbers), call))

    def start(now_s: float) -> None:
        trial, config = tuner.start()
        go_on(now_s, trial, config, enumerate(task.curve(config, seed), 1))

    def go_on(now_s: float, trial: T, config: Config, rest: Iterator[tuple[int, tuple[float, float]]]) -> None:
        epoch, (epoch_s, loss) = next(rest)

        def report(now_s: float) -> None:
            record.add(now_s, config, epoch, loss)
            if tuner.report(trial, epoch, loss) and epoch < EPOCHS:
                go_on(now_s, trial, config, rest)
            else:
                start(now_s)

        at(now_s + epoch_s, report)

    for _ in range(SLOTS):
        start(0.0)
    while waiting and waiting[0][0] <= budget_s:
        now_s, _, call = heapq.heappop(waiting)
        call(now_s)
    return record
