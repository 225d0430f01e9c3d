"""The reports that trials are taken to make beyond their recorded curves, and on a faster or slower machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Final

from mqtune.backends.simulated.reports import Item
from mqtune.core.objective import Objective
from mqtune.core.registry import described
from mqtune.core.trial import ITERATION, TIME_THIS_ITER, TIME_TOTAL, Metrics, is_number
from mqtune.results.curves import Curve
from mqtune.schedulers.base import Scheduler
from mqtune.schedulers.timed import plain

#: The time of a report itself, in seconds.
_TIMES: Final = (TIME_THIS_ITER, TIME_TOTAL)


def scaled(curve: Curve, scale: float) -> Curve:
    """Return a curve whose reports took so many times as long."""
    if scale == 1:
        return curve
    reports = [
        (seconds * scale, {**metrics, **{key: metrics[key] * scale for key in _TIMES if is_number(metrics.get(key))}})
        for seconds, metrics in curve.reports
    ]
    return curve._replace(reports=reports, ending_s=curve.ending_s * scale)


def goes_on(curve: Curve) -> bool:
    """Whether a trial may go on beyond its curve, with what is known of it."""
    return curve.is_cut and bool(curve.reports)


class Beyond:
    """The items of a curve that was cut off, and those of a trial that goes on from there.

    Its counters grow by as much with each report as they did before, on average; all else stays as it was in the last report.

    Args:
        curve: the curve.
        values: what it reports of the metrics, in place of its last values.
        duration_of: returns the duration of a report, from those of its reports so far.
        time_attr: the key of the scheduler's time, which is a counter.
        most: how many reports it has at most; None if its scheduler ends it.
    """

    def __init__(
        self,
        curve: Curve,
        values: Metrics,
        duration_of: Callable[[Iterable[float]], float],
        time_attr: str,
        most: int | None,
    ) -> None:
        reports = curve.reports
        self._reports = reports
        # The first report has the start of its process.
        self._seconds = duration_of([each for each, _ in reports[1:] or reports])
        self._values = values
        self._counters = {ITERATION, TIME_TOTAL, time_attr}
        self._most = most

    def __iter__(self) -> Iterator[Item]:
        reports, seconds = self._reports, self._seconds
        yield from reports
        last = {**reports[-1][1], TIME_THIS_ITER: seconds, **self._values}
        steps = {key: _step(reports, key) for key in self._counters if is_number(last.get(key))}
        for number in count(1) if self._most is None else range(1, self._most - len(reports) + 1):
            yield seconds, {**last, **{key: last[key] + number * step for key, step in steps.items()}}


def most_reports(curves: Sequence[Curve], scheduler: Scheduler) -> int | None:
    """Return how many reports a trial has at most; None if that is its scheduler's to say."""
    longest = max(len(curve.reports) for curve in curves)
    if any(len(curve.reports) == longest and not curve.is_cut and not curve.error for curve in curves):
        return longest
    settings = described(scheduler)
    ends_it = bool(settings.get("max_t")) and settings.get("stop_last_trials", True) is True
    grows = all(_step(curve.reports, scheduler.time_attr) > 0 for curve in curves if goes_on(curve))
    return None if ends_it and grows else longest


def best_values(curves: Iterable[Curve], objective: Objective) -> Metrics:
    """Return the best value of each metric in any report; of a constrained one that which is farthest within its bound."""
    found: Metrics = {}
    bounded = {each.metric: "min" if each.relation == "<=" else "max" for each in objective.constraints}
    for name, mode in (bounded | dict(zip(objective.metrics, objective.modes, strict=True))).items():
        reported = [metrics.get(name) for curve in curves for _, metrics in curve.reports]
        values = [value for value in reported if is_number(value) and not math.isnan(value)]
        if values:
            found[name] = min(values) if mode == "min" else max(values)
    return found


def _step(reports: Sequence[tuple[float, Metrics]], key: str) -> float:
    """Return by how much a counter has grown with each report, on average; a single one has grown from 0. 0 if it is none."""
    first, last = reports[0][1].get(key), reports[-1][1].get(key)
    if not (is_number(first) and is_number(last) and math.isfinite(last - first)):
        return 0
    return plain((last - first) / (len(reports) - 1)) if len(reports) > 1 else last
