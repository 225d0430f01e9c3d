"""The functions that make domains, after checking what they are given.

One rule for bounds: **every domain includes both of its bounds, low and high**, the integer ones too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

from mqtune.core.errors import SpaceError
from mqtune.search.space.domains import Choice, Derived, Domain, Grid, Interval, Multiples, Normal
from mqtune.search.space.values import integer, number, plain_value

__all__ = [
    "choice",
    "grid_search",
    "lograndint",
    "loguniform",
    "normal",
    "qloguniform",
    "qrandint",
    "quniform",
    "randint",
    "sample_from",
    "uniform",
]

#: Up to here every whole number has a float of its own, so that k * q and (k + 1) * q differ.
MAX_STEPS: Final = 2**53


def _interval(name: str, low: Any, high: Any, *, log: bool) -> Interval:
    low, high = float(number(name, "low", low)), float(number(name, "high", high))
    _check_bounds(name, low, high, log=log)
    return Interval(name, low, high, log)


def _multiples(name: str, low: Any, high: Any, q: Any, *, log: bool = False, whole: bool = False) -> Multiples:
    read = integer if whole else number
    low, high, q = read(name, "low", low), read(name, "high", high), read(name, "q", q)
    _check_bounds(name, low, high, log=log)
    if q <= 0:
        raise SpaceError(f"{name}: q={q!r} must be above 0")
    if Fraction(str(q)) > Fraction(str(high)) - Fraction(str(low)):
        raise SpaceError(f"{name}: q={q!r} is larger than the range from {low!r} to {high!r}; give a smaller one")
    if not whole and max(abs(low), abs(high)) / q > MAX_STEPS:
        raise SpaceError(f"{name}: q={q!r} is too small for floats from {low!r} to {high!r}; leave q out")
    return Multiples(name, low, high, q, log, whole)


def _check_bounds(name: str, low: float, high: float, *, log: bool) -> None:
    if low >= high:
        raise SpaceError(f"{name}: low={low!r} must be below high={high!r}; for one value, give the value itself")
    if log and low <= 0:
        raise SpaceError(f"{name}: low={low!r} must be above 0, as a log scale has no other numbers")


def _options(name: str, values: Any) -> tuple[Any, ...]:
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise SpaceError(f"{name}: {values!r} is not a list; write {name}([first, second, …])")
    if not values:
        raise SpaceError(f"{name}: the list {values!r} is empty; give at least one value")
    for value in values:
        if isinstance(value, Domain):
            raise SpaceError(f"{name}: {value} is a domain, and nothing samples it inside a {name}; give values")
    return tuple(plain_value(value, f"{name}: value {index}") for index, value in enumerate(values))


def uniform(low: float, high: float) -> Domain:
    """Return the floats from *low* to *high*, evenly spread."""
    return _interval("uniform", low, high, log=False)


def loguniform(low: float, high: float) -> Domain:
    """Return the floats from *low* (above 0) to *high*, evenly spread in a log scale."""
    return _interval("loguniform", low, high, log=True)


def quniform(low: float, high: float, q: float) -> Domain:
    """Return the multiples of *q* from *low* to *high* as floats, each equally likely.

    The bounds need not be multiples themselves: ``quniform(0.25, 1, 0.1)`` gives 0.3, 0.4, … 1.0.
    """
    return _multiples("quniform", low, high, q)


def qloguniform(low: float, high: float, q: float) -> Domain:
    """Return the multiples of *q* from *low* (above 0) to *high* as floats, spread as in a log scale."""
    return _multiples("qloguniform", low, high, q, log=True)


def normal(mean: float, sd: float) -> Domain:
    """Return floats from the normal distribution with this mean and standard deviation.

    Raises:
        SpaceError: *sd* is not above 0, or one of the two is no finite number.
    """
    plain_mean, plain_sd = float(number("normal", "mean", mean)), float(number("normal", "sd", sd))
    if plain_sd <= 0:
        raise SpaceError(f"normal: sd={sd!r} must be above 0; for one value, give the value itself")
    return Normal(plain_mean, plain_sd)


def randint(low: int, high: int) -> Domain:
    """Return the integers from *low* to *high*, **high included**, each equally likely.

    As ``random.randint`` of the standard library does, and as all other domains here do. Mind when you come from
    Ray Tune, where ``randint`` and ``lograndint`` leave *high* out: ``randint(0, 10)`` there is ``randint(0, 9)`` here.
    """
    return _multiples("randint", low, high, 1, whole=True)


def qrandint(low: int, high: int, q: int) -> Domain:
    """Return the multiples of *q* from *low* to *high*, **high included** if it is one, each equally likely."""
    return _multiples("qrandint", low, high, q, whole=True)


def lograndint(low: int, high: int) -> Domain:
    """Return the integers from *low* (above 0) to *high*, **high included**, spread as in a log scale."""
    return _multiples("lograndint", low, high, 1, log=True, whole=True)


def choice(values: Sequence[Any]) -> Domain:
    """Return one of *values*, each equally likely; any values that a config can hold, lists and dicts included."""
    return Choice(_options("choice", values))


def grid_search(values: Sequence[Any]) -> Domain:
    """Return one of *values*, taken in turn: a grid visits each combination of its ``grid_search`` entries once."""
    return Grid(_options("grid_search", values))


def sample_from(function: Callable[[Mapping[str, Any]], Any]) -> Domain:
    """Return the value that *function* computes from the rest of the config.

    It is given a read-only view of the whole config, as in ``sample_from(lambda config: config["width"] * 2)``. It may
    read other ``sample_from`` values, in whatever order they stand, if they don't need each other. It is called by
    the driver alone, once when the space is built and once for each config; for a run that can be repeated its
    result must depend on the view and on nothing else.

    Raises:
        SpaceError: *function* can't be called.
    """
    if not callable(function):
        raise SpaceError(f"sample_from: {function!r} is not a function; a plain value needs no sample_from")
    return Derived(function)
