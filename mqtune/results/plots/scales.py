"""The axes of parallel coordinates: a parameter's places as heights from 0 to 1, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from mqtune.results.display import short_value
from mqtune.results.plots.data import Parameter
from mqtune.results.plots.panels import Scale, label


def scale_of(parameter: Parameter) -> Scale:
    """Return what heights on a parameter's axis stand for."""
    return Scale(parameter.name, *_span(parameter), parameter.is_log, parameter.names)


def heights_of(parameter: Parameter) -> list[float]:
    """Return the places of trials as shares of the parameter's range."""
    low, high = _span(parameter)
    of: Callable[[float], float] = math.log if parameter.is_log else float
    if low == high:
        return [place if math.isnan(place) else 0.5 for place in parameter.places]
    return [(of(place) - of(low)) / (of(high) - of(low)) for place in parameter.places]


def names_on(parameter: Parameter) -> Iterator[tuple[float, str]]:
    """Yield the heights and the names of some places on a parameter's axis."""
    low, high = _span(parameter)
    if low == high:
        yield 0.5, label(parameter.names[0]) if parameter.names else short_value(low)
    elif parameter.names:
        yield from ((place / high, label(name)) for place, name in enumerate(parameter.names))
    else:
        middle = math.sqrt(low) * math.sqrt(high) if parameter.is_log else low / 2 + high / 2
        yield from zip((0.0, 0.5, 1.0), map(short_value, (low, middle, high)), strict=True)


def _span(parameter: Parameter) -> tuple[float, float]:
    if parameter.names:
        return 0.0, len(parameter.names) - 1.0
    there = [place for place in parameter.places if not math.isnan(place)]
    return min(there), max(there)
