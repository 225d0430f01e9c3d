"""What a report costs under PBT: the scheduler, and the driver from the report's entry to what was decided, written and dropped."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from benchmarks.measurement import Context, Figures
from benchmarks.systems.mqtune_simulated import run, simulated_driver
from benchmarks.work.population import INTERVAL, POPULATIONS

__all__ = ["measure"]

#: Members go on for ever.
_EPOCHS: Final = 10**9


#: Seconds of the thread's processor time for each report, those elsewhere and those at milestones.
_PerReport = tuple[list[float], list[float]]


def measure(context: Context) -> Figures:
    """Measure processor time, by population and by whether the report is at a milestone; of the driver the mean, with all drops."""
    figures: Figures = {}
    for population in POPULATIONS:
        # One after the other: a look at the clock takes longer than the scheduler does.
        scheduler = _of_scheduler(context, population)
        driver, drops_s = _of_driver(context, population)
        figures[f"drops_{population}_us"] = drops_us = drops_s / sum(map(len, driver)) * 1e6
        for kind, times, with_all in zip(("", "_milestone"), scheduler, driver, strict=True):
            figures[f"scheduler{kind}_{population}_us"] = sorted(times)[len(times) // 2] * 1e6
            figures[f"driver{kind}_{population}_us"] = sum(with_all) / len(with_all) * 1e6 + drops_us
    return figures


def _of_scheduler(context: Context, population: int) -> _PerReport:
    costs: _PerReport = ([], [])

    def decided(trial: Any, report: Any) -> Any:
        decision, seconds = _timed(lambda: decide(trial, report))
        costs[_is_milestone(report)].append(seconds)
        return decision

    scheduler = _pbt()
    decide, scheduler.on_report = scheduler.on_report, decided
    _run(context, simulated_driver(context, population, scheduler, _EPOCHS, checkpoints=True), population)
    return costs


def _of_driver(context: Context, population: int) -> tuple[_PerReport, float]:
    """Return what the driver does for each report, and all that it does for checkpoints that it drops afterwards.

    The latter is to find and to drop them once a round is over, to copy these events when they are read, and to take them in.
    """
    from mqtune.core.events import CheckpointsDropped, Reports, decode_event

    costs: _PerReport = ([], [])
    drops_s = 0.0
    driver: Any = simulated_driver(context, population, _pbt(), _EPOCHS, checkpoints=True)
    put, take_in, keep = driver._intake.put, driver._take_in, driver.reader.keep
    settle, news = driver._checkpoints.settled, iter(())

    def came(entries: Any) -> None:
        nonlocal news
        news = iter(entries)

    def taken(**how: Any) -> None:
        nonlocal drops_s
        for entry in news:
            put([entry])
            _, seconds = _timed(lambda: take_in(**how))
            event = decode_event(entry.data)
            if isinstance(event, Reports):
                (report,) = event
                costs[_is_milestone(report)].append(seconds)
            elif isinstance(event, CheckpointsDropped):
                drops_s += seconds

    def kept(entries: Any) -> None:
        nonlocal drops_s
        _, seconds = _timed(lambda: keep(entries))
        drops = sum(isinstance(decode_event(entry.data), CheckpointsDropped) for entry in entries)
        drops_s += seconds * drops / len(entries)

    def settled(*arguments: Any) -> tuple[()]:
        nonlocal drops_s
        if drops := settle(*arguments):
            _, seconds = _timed(lambda: [driver.carry_out(drop) for drop in drops])
            drops_s += seconds
        return ()

    driver._intake.put, driver._take_in, driver.reader.keep = came, taken, kept
    driver._checkpoints.settled = settled
    _run(context, driver, population)
    return costs, drops_s


def _pbt() -> Any:
    from mqtune.schedulers.pbt import PBT
    from mqtune.search.domains import uniform

    return PBT(INTERVAL, {"lr": uniform(0, 1)})


def _run(context: Context, driver: Any, population: int) -> None:
    run(driver, max(context.sizes["reports"], 2 * INTERVAL * population))
    driver.close()


def _is_milestone(report: Any) -> bool:
    return report.metrics["training_iteration"] % INTERVAL == 0


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.thread_time()
    found = call()
    return found, time.thread_time() - begin
