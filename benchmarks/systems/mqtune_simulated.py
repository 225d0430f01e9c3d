"""mqtune's driver on simulated workers: the whole loop, journal, fold, scheduler and the local copy on disk included."""

from __future__ import annotations

import itertools
import random
import time
import tracemalloc
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from benchmarks.measurement import Context, Figures
from benchmarks.work import simulated

if TYPE_CHECKING:
    from mqtune.driver.loop import Driver
    from mqtune.schedulers.base import Scheduler

__all__ = ["measure", "run", "simulated_driver"]

#: The mean of a report's virtual seconds; they are drawn, so that no two reports come at one instant.
MEAN_S: Final = 10.0
_BLOCK_S: Final = 60.0


def measure(context: Context) -> Figures:
    """Measure reports a second; memory in a run of its own, since tracing slows it."""
    reports, work = context.sizes["reports"], simulated
    figures: Figures = {
        f"reports_{workers}_per_s": _reports_per_s(context, workers, work.MAX_EPOCHS, work.GRACE_PERIOD)
        for workers in work.WORKERS
    }
    figures["short_reports_64_per_s"] = _reports_per_s(context, 64, work.SHORT_MAX_EPOCHS, work.SHORT_GRACE_PERIOD)
    figures["report_bytes"] = _report_bytes(context, reports // 10)
    return figures


def _reports_per_s(context: Context, workers: int, max_epochs: int, grace_period: int) -> float:
    from mqtune.schedulers.asha import ASHA

    driver = simulated_driver(context, workers, ASHA(max_epochs, grace_period=grace_period), max_epochs)
    begin = time.perf_counter()
    run(driver, context.sizes["reports"])
    rate: float = driver.experiment.reports / (time.perf_counter() - begin)
    driver.close()
    return rate


def _report_bytes(context: Context, reports: int) -> float:
    """Return by how much memory grows for one more report of trials that go on for ever."""
    from mqtune.schedulers.base import FIFO

    driver = simulated_driver(context, 64, FIFO(), reports)
    run(driver, reports)
    tracemalloc.start()
    run(driver, 2 * reports)
    before, _ = tracemalloc.get_traced_memory()
    run(driver, 3 * reports)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    driver.close()
    return max(0.0, (after - before) / reports)


def run(driver: Driver, reports: int) -> None:
    """Have a driver go on until it has so many reports."""
    while driver.experiment.reports < reports:
        driver.step(_BLOCK_S)


def _curve(epochs: int) -> Any:
    def reports(config: dict[str, Any]) -> Iterator[tuple[float, dict[str, Any]]]:
        rng = random.Random(config["seed"])
        for epoch in range(1, epochs + 1):
            yield (
                rng.expovariate(1 / MEAN_S),
                {"loss": config["lr"] + rng.random() / epoch, "training_iteration": epoch},
            )

    return reports


def simulated_driver(
    context: Context, workers: int, scheduler: Scheduler, epochs: int, *, checkpoints: bool = False
) -> Driver:
    """Return a driver of an experiment on so many simulated workers, which has begun."""
    from mqtune.backends.simulated import Simulated
    from mqtune.core.experiment import Experiment
    from mqtune.core.timing import Timing
    from mqtune.driver.checkpoints import CheckpointGC
    from mqtune.driver.loop import Driver
    from mqtune.driver.retention import Retention
    from mqtune.driver.settings import Limits
    from mqtune.journal.copy import JournalFile
    from mqtune.results.callbacks import CallbackDispatcher
    from mqtune.search.domains import uniform
    from mqtune.search.random import RandomSearcher
    from mqtune.search.space import Space

    backend = Simulated(_curve(epochs), slots=workers, checkpoints=checkpoints).open("simulated")
    journal = backend.journal
    journal.lock("benchmark", "benchmark", Timing().lock_s)
    scheduler.bind("loss", "min")
    experiment = Experiment("simulated", metric="loss", mode="min")
    folder = context.folder / f"{workers}-{next(_numbers)}"
    folder.mkdir(parents=True)
    space = Space({"lr": uniform(0, 1), "seed": uniform(0, 1)})
    scheduler.check_space(space)
    driver = Driver(
        journal=journal,
        backend=backend,
        experiment=experiment,
        scheduler=scheduler,
        searcher=RandomSearcher(space, seed=0),
        space=space,
        limits=Limits(),
        checkpoints=CheckpointGC(experiment, Retention(), None, delete_checkpoints=False),
        is_lockstep=False,
        copy=JournalFile(folder / "journal.msgpack"),
        callbacks=CallbackDispatcher([]),
        holder="benchmark",
        clock=backend.clock,
    )
    driver.begin("simulated", {}, is_new=True, driver="benchmark")
    return driver


_numbers: Final = itertools.count()
