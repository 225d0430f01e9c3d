"""Scales and colours of parallel coordinates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from mqtune.results.display import short_value
from mqtune.results.plots.data import ParameterAxis, joined
from mqtune.results.plots.panels import BLACK, BLUE, SKY, Look, Scale, Series, label

#: Shares of the trials by rank, and their lines' colours, from dark to light.
_TIERS: Final = (
    (0.1, BLACK, "best 10 %"),
    (0.25, BLUE, "next 15 %"),
    (0.5, SKY, "next 25 %"),
    (1.0, "#C8C8C8", "the rest"),
)


def scale_of(parameter: ParameterAxis) -> Scale:
    """Return the scale of a parameter's axis."""
    return Scale(parameter.name, *_span(parameter), parameter.is_log, parameter.names)


def heights_of(parameter: ParameterAxis) -> list[float]:
    """Return the places of trials as shares of the parameter's range."""
    span = _span(parameter)
    return [_height(place, *span, is_log=parameter.is_log) for place in parameter.places]


def names_on(parameter: ParameterAxis) -> Iterator[tuple[float, str]]:
    """Yield the heights and the names of some places on a parameter's axis."""
    low, high = _span(parameter)
    if low == high:
        yield 0.5, label(parameter.names[0]) if parameter.names else short_value(low)
    elif parameter.names:
        yield from ((place / high, label(name)) for place, name in enumerate(parameter.names))
    else:
        middle = math.sqrt(low) * math.sqrt(high) if parameter.is_log else low / 2 + high / 2
        # If all trials have whole numbers, the middle is one, too.
        if all(math.isnan(place) or float(place).is_integer() for place in parameter.places):
            middle = float(round(middle))
        for place in dict.fromkeys((low, middle, high)):
            yield _height(place, low, high, is_log=parameter.is_log), short_value(place)


def in_tiers(lines: Sequence[tuple[str, Sequence[float], Sequence[float]]]) -> list[Series]:
    """Return lines, the best first, in the colours of their tiers."""
    tiers = []
    for (begin, _, _), (share, color, name) in zip(((0.0, "", ""), *_TIERS[:-1]), _TIERS, strict=True):
        span = lines[math.ceil(begin * len(lines)) : math.ceil(share * len(lines))]
        if span:
            look = Look(color, width=1.8 if color == BLACK else 1, marker="circle", size=3)
            tiers.append(joined(name, look, span))
    return tiers


def _height(place: float, low: float, high: float, *, is_log: bool) -> float:
    of: Callable[[float], float] = math.log if is_log else float
    if low == high:
        return place if math.isnan(place) else 0.5
    return (of(place) - of(low)) / (of(high) - of(low))


def _span(parameter: ParameterAxis) -> tuple[float, float]:
    if parameter.names:
        return 0.0, len(parameter.names) - 1.0
    places = [place for place in parameter.places if not math.isnan(place)]
    return min(places), max(places)
