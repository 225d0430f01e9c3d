"""The line of the best value so far in a picture's history."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mqtune.results.plots.data import PlottedCurve, spread

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Points(NamedTuple):
    """The times and values of some reports."""

    at: NDArray[np.float64]
    value: NDArray[np.float64]


def candidates(curves: Sequence[PlottedCurve], bests: Sequence[float], *, is_min: bool) -> Points:
    """Return the reports of all curves that may have had the best value so far.

    A curve can't have had it if it is no better than a curve that ended before it began. So the cost grows with the
    number of curves and not of reports, unless most curves run at the same time.

    Args:
        curves: the curves, each with a report at least, and in the order of time.
        bests: the best value of each curve.
    """
    first, last = np.asarray([curve.at[0] for curve in curves]), np.asarray([curve.at[-1] for curve in curves])
    best = np.asarray(bests)
    by_end = np.argsort(last, kind="stable")
    so_far = _best_so_far(best[by_end], is_min=is_min)
    ended = np.searchsorted(last[by_end], first)
    # The last element stands for curves that began before any other one had ended.
    to_beat = np.append(so_far, math.inf if is_min else -math.inf)[ended - 1]
    at, value = array("d"), array("d")
    for place in np.flatnonzero(best < to_beat if is_min else best > to_beat).tolist():
        curve = curves[place]
        # ``PlottedCurve.add`` appends the value last, so only reports with a value are complete.
        count = len(curve.value)
        at += curve.at[:count]
        value += curve.value[:count]
    return Points(np.frombuffer(at), np.frombuffer(value))


def steps(points: Points, *, is_min: bool, until: float, most: int) -> tuple[list[float], list[float]]:
    """Return x and y of the best value so far as a stepped line.

    It ends at *until*, and has at most *most* steps.
    """
    is_number = ~np.isnan(points.value)
    order = np.argsort(points.at[is_number], kind="stable")
    times, best = points.at[is_number][order], _best_so_far(points.value[is_number][order], is_min=is_min)
    changes = np.flatnonzero(np.diff(best, prepend=math.nan))
    changes = changes[spread(len(changes), most)]
    return np.append(np.repeat(times[changes], 2)[1:], until).tolist(), np.repeat(best[changes], 2).tolist()


def _best_so_far(values: NDArray[np.float64], *, is_min: bool) -> NDArray[np.float64]:
    best: NDArray[np.float64] = (np.minimum if is_min else np.maximum).accumulate(values)
    return best
