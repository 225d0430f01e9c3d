"""Scales and colours of parallel coordinates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from mqtune.results.display import short_value
from mqtune.results.plots.data import ParameterAxis, joined
from mqtune.results.plots.panels import COMPLETED, STOPPED, TEXT, Look, Scale, Series, label

#: Groups of trials by rank: the share of the trials at which each ends, its name, and the look of its lines.
_TIERS: Final = (
    (0.0, "best", Look(TEXT, width=2.2)),
    (0.1, "best 10 %", Look(COMPLETED, width=1.7)),
    (0.3, "next 20 %", Look(COMPLETED, width=1, opacity=0.45)),
    (1.0, "the rest", Look(STOPPED, width=1, opacity=0.35)),
)


def scale_of(parameter: ParameterAxis) -> Scale:
    """Return the scale of a parameter's axis."""
    return Scale(parameter.name, *_span(parameter), parameter.is_log, parameter.names)


def height_on(scale: Scale, place: float) -> float:
    """Return the height of a position on an axis, from 0 to 1. Return NaN for NaN."""
    low, high = scale.low, scale.high
    of: Callable[[float], float] = math.log if scale.is_log else float
    if low == high:
        return place if math.isnan(place) else 0.5
    return (of(place) - of(low)) / (of(high) - of(low))


def names_on(scale: Scale, parameter: ParameterAxis) -> Iterator[tuple[float, str]]:
    """Yield the heights, from 0 to 1, and the names of some values on a parameter's axis."""
    low, high = scale.low, scale.high
    if low == high:
        yield 0.5, label(scale.names[0]) if scale.names else short_value(low)
    elif scale.names:
        yield from ((place / high, label(name)) for place, name in enumerate(scale.names))
    else:
        middle = math.sqrt(low) * math.sqrt(high) if scale.is_log else low / 2 + high / 2
        # If all trials have whole numbers, the middle is rounded to one.
        if all(math.isnan(place) or float(place).is_integer() for place in parameter.places):
            middle = float(round(middle))
        for place in dict.fromkeys((low, middle, high)):
            yield height_on(scale, place), short_value(place)


def in_tiers(
    lines: Sequence[tuple[str, Sequence[float], Sequence[float]]], ranks: Sequence[int], total: int
) -> list[Series]:
    """Return a series for each group of trials, from the best group on.

    Args:
        lines: the trial, x and y of each line.
        ranks: the rank of each line's trial, from 0.
        total: the number of ranked trials. Some may have no line.
    """
    tiers, begin = [], -1
    for share, name, look in _TIERS:
        end = max(0, math.ceil(share * total) - 1)
        if span := [line for line, rank in zip(lines, ranks, strict=True) if begin < rank <= end]:
            tiers.append(joined(name, look, span))
        begin = max(begin, end)
    return tiers


def _span(parameter: ParameterAxis) -> tuple[float, float]:
    if parameter.names:
        return 0.0, len(parameter.names) - 1.0
    places = np.asarray(parameter.places)
    return float(np.nanmin(places)), float(np.nanmax(places))
