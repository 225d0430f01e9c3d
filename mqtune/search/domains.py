"""Functions that return the domains of a search space."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, Final

from mqtune.core.errors import SpaceError
from mqtune.core.names import OF_DOMAINS, with_hints
from mqtune.search.kinds import (
    Choice,
    Derived,
    Domain,
    Entries,
    Grid,
    Interval,
    Multiples,
    Normal,
    Ordinal,
    ReverseInterval,
    RoundedNormal,
    between,
    has_domain,
    plain_definition,
    written,
)
from mqtune.search.values import integer, number

#: Largest number of steps from 0. Up to this every integer is a float, so k * q and (k + 1) * q differ.
MAX_STEPS: Final = 2**53
#: Beyond this number of standard deviations, the tail of a normal distribution is 0 as a float.
_FAR_SDS: Final = 40
#: Largest number of values, because a definition has a list of them.
MAX_VALUES: Final = 10_000


def _interval(name: str, low: object, high: object, *, log: bool) -> Interval:
    low, high = float(number(name, "low", low)), float(number(name, "high", high))
    _check_bounds(name, low, high, log=log)
    return Interval(name, low, high, log)


def _multiples(name: str, low: object, high: object, q: object, *, log: bool = False, whole: bool = False) -> Multiples:
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


def _options(name: str, values: object) -> tuple[object, ...]:
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise SpaceError(f"{name}: {values!r} is not a list; write {name}([first, second, …])")
    if not values:
        raise SpaceError(f"{name}: the list {values!r} is empty; give at least one value")
    return tuple(plain_definition(value, f"{name}: value {index}") for index, value in enumerate(values))


def _chosen(kind: type[Choice], name: str, values: object) -> Domain:
    options = _options(name, values)
    return Entries(name, options) if has_domain(options) else kind(options)


def _different(name: str, values: Sequence[object]) -> Sequence[object]:
    """Return the values of a domain. Values may repeat, but equal ones must be written alike.

    Raises:
        SpaceError: two values are equal, but of different types. A config would not say which of them it has.
    """
    seen: dict[object, object] = {}
    for option in _options(name, values):
        known = option if has_domain(option) else seen.setdefault(_hashable(option), option)
        if repr(known) != repr(option):
            raise SpaceError(
                f"{name}: {known!r} and {option!r} are equal, so a config would not say which of them it has; leave "
                "one out, or give both as texts"
            )
    return values


def _hashable(value: object, depth: int = 0) -> object:
    """Return an object that equals another one if the plain values are equal.

    A flag equals 0 or 1 inside of lists and dicts only, as in ``is_same``.
    """
    if isinstance(value, list):
        return tuple(_hashable(item, depth + 1) for item in value)
    if isinstance(value, dict):
        return frozenset((key, _hashable(inner, depth + 1)) for key, inner in value.items())
    return (bool, value) if isinstance(value, bool) and not depth else value


@with_hints({}, OF_DOMAINS)
def uniform(low: float, high: float) -> Domain:
    """Return a domain of floats from *low* to *high*, uniformly distributed."""
    return _interval("uniform", low, high, log=False)


def loguniform(low: float, high: float) -> Domain:
    """Return a domain of floats from *low* (above 0) to *high*, uniform in a log scale."""
    return _interval("loguniform", low, high, log=True)


def reverseloguniform(low: float, high: float) -> Domain:
    """Return a domain of floats x from *low* to *high*, with 1 - x uniform in a log scale.

    *low* is at least 0, and *high* below 1. Use it for values close to 1, such as a momentum:
    ``reverseloguniform(0.9, 0.999)``.
    """
    _check_bounds(
        "reverseloguniform",
        number("reverseloguniform", "low", low),
        number("reverseloguniform", "high", high),
        log=False,
    )
    if low < 0 or high >= 1:
        raise SpaceError(f"reverseloguniform: low={low!r} and high={high!r} must lie from 0 up to, and without, 1")
    return ReverseInterval("reverseloguniform", float(low), float(high), log=True)


def quniform(low: float, high: float, q: float) -> Domain:
    """Return a domain of float multiples of *q* from *low* to *high*, each equally likely.

    ``quniform(0.25, 1, 0.1)`` has 0.3, 0.4, … 1.0.
    """
    return _multiples("quniform", low, high, q)


def qloguniform(low: float, high: float, q: float) -> Domain:
    """Return a domain of float multiples of *q* from *low* (above 0) to *high*, log-uniform."""
    return _multiples("qloguniform", low, high, q, log=True)


def normal(mean: float, sd: float) -> Domain:
    """Return a domain of normally distributed floats with this mean and standard deviation.

    Raises:
        SpaceError: *sd* is not above 0, or an argument is not a finite number.
    """
    return Normal(*_moments("normal", mean, sd))


def qrandn(mean: float, sd: float, q: float) -> Domain:
    """Return a domain of floats from a normal distribution, rounded to multiples of *q*.

    Raises:
        SpaceError: *sd* or *q* is not above 0, an argument is not finite, or *q* is too small for such floats.
    """
    plain_mean, plain_sd = _moments("qrandn", mean, sd)
    plain_q = float(number("qrandn", "q", q))
    if plain_q <= 0:
        raise SpaceError(f"qrandn: q={q!r} must be above 0")
    if (abs(plain_mean) + _FAR_SDS * plain_sd) / plain_q > MAX_STEPS:
        raise SpaceError(f"qrandn: q={q!r} is too small for floats around {mean!r} ± {sd!r}; use normal")
    return RoundedNormal(plain_mean, plain_sd, plain_q)


def _moments(name: str, mean: object, sd: object) -> tuple[float, float]:
    plain_mean, plain_sd = float(number(name, "mean", mean)), float(number(name, "sd", sd))
    if plain_sd <= 0:
        raise SpaceError(f"{name}: sd={sd!r} must be above 0; for one value, give the value itself")
    return plain_mean, plain_sd


@with_hints({}, OF_DOMAINS)
def randint(low: int, high: int) -> Domain:
    """Return a domain of integers from *low* to *high*, **included**, each equally likely.

    Ray Tune's ``randint`` and ``lograndint`` exclude *high*: ``randint(0, 10)`` there is ``randint(0, 9)`` here.
    """
    return _multiples("randint", low, high, 1, whole=True)


def qrandint(low: int, high: int, q: int) -> Domain:
    """Return a domain of integer multiples of *q* from *low* to *high*, each equally likely.

    **high is included** if it is a multiple.
    """
    return _multiples("qrandint", low, high, q, whole=True)


def lograndint(low: int, high: int) -> Domain:
    """Return a domain of integers from *low* (above 0) to *high*, **included**, log-uniform."""
    return _multiples("lograndint", low, high, 1, log=True, whole=True)


def qlograndint(low: int, high: int, q: int) -> Domain:
    """Return a domain of integer multiples of *q* from *low* (above 0) to *high*, log-uniform.

    **high is included** if it is a multiple.
    """
    return _multiples("qlograndint", low, high, q, log=True, whole=True)


def choice(values: Sequence[object]) -> Domain:
    """Return a domain of *values*, each equally likely. Values may be lists and dicts.

    A value may contain domains, which are sampled if the value is chosen:
    ``choice([{"name": "adam", "lr": loguniform(1e-5, 1e-1)}, {"name": "sgd", "momentum": uniform(0, 1)}])``.
    """
    return _chosen(Choice, "choice", _different("choice", values))


def ordinal(values: Sequence[object]) -> Domain:
    """Return a domain of *values* in a meaningful order, each equally likely.

    Models and PBT treat neighbours as similar.
    """
    return _ordered(_different("ordinal", values))


def _ordered(values: object) -> Domain:
    options = _options("ordinal", values)
    if has_domain(options):
        raise SpaceError(f"ordinal: {written(options)} holds a domain, and has no order; use choice")
    return Ordinal(options)


def finrange(low: float, high: float, size: int, *, cast_int: bool = False) -> Domain:
    """Return a domain of *size* evenly spaced floats from *low* to *high*, both included.

    With *cast_int*, each one is rounded to an integer.
    """
    _check_bounds("finrange", number("finrange", "low", low), number("finrange", "high", high), log=False)
    shares = _evenly("finrange", size)
    return _range("finrange", [between(float(low), float(high), share) for share in shares], cast_int)


def logfinrange(low: float, high: float, size: int, *, cast_int: bool = False) -> Domain:
    """Return a domain of *size* floats from *low* to *high*, evenly spaced in a log scale.

    Both bounds are included. With *cast_int*, each float is rounded to an integer:
    ``logfinrange(8, 512, 7, cast_int=True)`` has the powers of 2.
    """
    interval = _interval("logfinrange", low, high, log=True)
    middle = _evenly("logfinrange", size)[1:-1]
    return _range("logfinrange", [interval.low, *map(interval.at, middle), interval.high], cast_int)


def _range(name: str, values: Sequence[float], cast_int: bool) -> Domain:
    options = tuple(dict.fromkeys(map(round, values))) if cast_int else tuple(values)
    if len(options) < len(values):
        raise SpaceError(f"{name}: size={len(values)} gives {len(options)} different integers; give that or less")
    return Ordinal(options)


def _evenly(name: str, size: int) -> list[float]:
    if integer(name, "size", size) < 2:  # noqa: PLR2004 - both bounds
        raise SpaceError(f"{name}: size={size!r} must be at least 2, for both bounds")
    if size > MAX_VALUES:
        raise SpaceError(f"{name}: size={size!r} is more than {MAX_VALUES:,}; use quniform or uniform")
    return [index / (size - 1) for index in range(size)]


def grid_search(values: Sequence[object]) -> Domain:
    """Return a domain: *values*, all of which are tried.

    A grid has each combination of ``grid_search`` values once. A value may contain domains, as in :func:`choice`, and
    further ``grid_search`` entries.
    """
    return _chosen(Grid, "grid_search", _different("grid_search", values))


def sample_from(function: Callable[[Mapping[str, object]], object]) -> Domain:
    """Return a domain whose value *function* computes from the rest of the config.

    The function gets a read-only view of the whole config: ``sample_from(lambda config: config["width"] * 2)``, or in
    Ray Tune's form ``sample_from(lambda spec: spec.config.width * 2)``. It may read other ``sample_from`` values,
    unless they depend on its own. Only the driver calls it: once when the space is created, and once for each config.
    For reproducible runs the result must depend only on the view.

    Raises:
        SpaceError: *function* can't be called.
    """
    if not callable(function):
        raise SpaceError(f"sample_from: {function!r} is not a function; a plain value needs no sample_from")
    return Derived(function)


_FUNCTIONS: Final[dict[str, Callable[..., Domain]]] = {
    function.__name__: function
    for function in (
        normal,
        randint,
        lograndint,
        qrandint,
        qlograndint,
        qrandn,
        reverseloguniform,
        uniform,
        loguniform,
        quniform,
        qloguniform,
    )
} | {
    # A stored space may have equal values.
    "choice": partial(_chosen, Choice, "choice"),
    "grid_search": partial(_chosen, Grid, "grid_search"),
    "ordinal": _ordered,
}


def domain_of(description: Mapping[str, object], unknown: Domain | None = None) -> Domain:
    """Rebuild a domain from the result of ``Domain.describe``.

    Args:
        unknown: the domain to return if the domain can't be rebuilt.

    Raises:
        SpaceError: the domain can't be rebuilt without the user's code, and *unknown* is None.
    """
    arguments = dict(description)
    name = arguments.pop("domain", "")
    if isinstance(entries := arguments.get("entries"), list):
        arguments = {"values": [definition_of(entry, unknown) for entry in entries]}
    if name not in _FUNCTIONS:
        if unknown is not None:
            return unknown
        raise SpaceError(f"{name}({', '.join(map(str, arguments.values()))}) can't be made without your code")
    return _FUNCTIONS[name](**arguments)


def definition_of(description: Mapping[str, Any], unknown: Domain | None = None) -> object:
    """Rebuild a part of a space from the result of ``describe_definition``.

    Raises:
        SpaceError: as :func:`domain_of`.
    """
    if "constant" in description:
        return description["constant"]
    if "dict" in description:
        return {key: definition_of(inner, unknown) for key, inner in description["dict"].items()}
    if "list" in description:
        return [definition_of(inner, unknown) for inner in description["list"]]
    return domain_of(description, unknown)
