"""What a report costs under PBT: the scheduler, and the driver from the report's entry to what was decided, written and dropped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from benchmarks.measurement import Context, Figures
from benchmarks.systems.mqtune_simulated import run, simulated_driver
from benchmarks.work.population import INTERVAL, POPULATIONS

__all__ = ["measure"]

#: Members go on for ever.
_EPOCHS: Final = 10**9


def measure(context: Context) -> Figures:
    """Measure the median of the thread's processor time, by population and by whether the report is at a milestone."""
    figures: Figures = {}
    for population in POPULATIONS:
        for name, costs in _costs(context, population).items():
            figures[f"{name}_{population}_us"] = sorted(costs)[len(costs) // 2] * 1e6
    return figures


def _costs(context: Context, population: int) -> dict[str, list[float]]:
    from mqtune.core.events import Reports, decode_event
    from mqtune.schedulers.pbt import PBT
    from mqtune.search.domains import uniform

    scheduler = PBT(INTERVAL, {"lr": uniform(0, 1)})
    costs: dict[str, list[float]] = {"scheduler": [], "scheduler_milestone": [], "driver": [], "driver_milestone": []}

    def note(what: str, step: int, seconds: float) -> None:
        costs[what if step % INTERVAL else f"{what}_milestone"].append(seconds)

    decide = scheduler.on_report

    def decided(trial: Any, report: Any) -> Any:
        decision, seconds = _timed(lambda: decide(trial, report))
        note("scheduler", report.metrics["training_iteration"], seconds)
        return decision

    scheduler.on_report = decided  # type: ignore[method-assign]
    driver = simulated_driver(context, population, scheduler, _EPOCHS, checkpoints=True)
    take_each = driver._take_each

    def taken(entries: Any) -> Iterator[Any]:
        taken, seconds = _timed(lambda: list(take_each(entries)))
        events = [decode_event(entry.data) for entry in entries]
        if len(events) == 1 and isinstance(events[0], Reports):
            (report,) = events[0]
            note("driver", report.metrics["training_iteration"], seconds)
        return iter(taken)

    driver._take_each = taken  # type: ignore[method-assign]
    run(driver, max(context.sizes["reports"], 2 * INTERVAL * population))
    driver.close()
    return costs


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.thread_time()
    found = call()
    return found, time.thread_time() - begin
