"""Simulated slots for systems that have no clock of their own to simulate, and the record of what was reported when."""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol, TypeVar

from benchmarks.quality.tasks import EPOCH_S, EPOCHS, Config, Task

__all__ = ["BUDGET_S", "SLOTS", "Record", "Report", "Steered", "run_on_slots"]

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


class Report(NamedTuple):
    """A report, when it was made in virtual seconds, and how many seconds of processor the tuner had used by then."""

    at_s: float
    thought_s: float
    config: Config
    epoch: int
    loss: float


class Record:
    """What was reported in one experiment, from its beginning on."""

    def __init__(self) -> None:
        self._reports: list[Report] = []
        self._began_s = time.process_time()

    def add(self, at_s: float, config: Config, epoch: int, loss: float) -> None:
        self._reports.append(Report(at_s, time.process_time() - self._began_s, config, epoch, loss))

    def choices(self) -> Iterator[Report]:
        """Yield each report that made its config the chosen one: of those that came furthest, the one with the least loss."""
        best: tuple[int, float] | None = None
        for report in sorted(self._reports, key=lambda report: report.at_s):
            if best is None or (-report.epoch, report.loss) < best:
                best = -report.epoch, report.loss
                yield report

    def regret(self, task: Task, until_s: float) -> float:
        """Return the regret of the config that was chosen by then."""
        *_, chosen = itertools.takewhile(lambda report: report.at_s <= until_s, self.choices())
        return task.regret(chosen.config)

    def good_from_s(self, task: Task, regret: float) -> float:
        """Return the time from which on the chosen config is as good as that, to the end; infinity if it is not then."""
        from_s = math.inf
        for report in reversed([*self.choices()]):
            if task.regret(report.config) > regret:
                break
            from_s = report.at_s
        return from_s

    def thought_s(self, until_s: float) -> float:
        """Return the seconds of processor that the tuner had used by then."""
        return max((report.thought_s for report in self._reports if report.at_s <= until_s), default=0.0)

    @property
    def trials(self) -> int:
        """How many configs have reported."""
        return len({tuple(report.config.values()) for report in self._reports})

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
