"""Converts the parameters in the file of a W&B sweep to a search space."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Final

from mqtune.cli.tune.domains import domain_of, hint_for
from mqtune.core import checks
from mqtune.core.errors import SpaceError
from mqtune.core.text import names_in_words
from mqtune.search.domains import (
    MAX_VALUES,
    choice,
    grid_search,
    loguniform,
    normal,
    qlograndint,
    qloguniform,
    qrandint,
    qrandn,
    quniform,
    randint,
    uniform,
)
from mqtune.search.kinds import Domain

_KEYS: Final = ("value", "values", "min", "max", "mu", "sigma", "q", "distribution", "probabilities", "parameters")
#: Distributions that mqtune doesn't have, with replacements.
_MISSING: Final = {
    "log_normal": "give log_uniform_values with a min and a max",
    "q_log_normal": "give q_log_uniform_values with a min and a max",
    "beta": "give uniform with a min and a max",
    "q_beta": "give q_uniform with a min and a max",
}
#: A number such as 1e-5. YAML 1.1 reads it as text, as it has no dot.
_SCIENTIFIC: Final = re.compile(r"[-+]?\d+[eE][-+]?\d+", re.ASCII)
#: The most entries of the choice that stands for values with probabilities.
_MOST_ENTRIES: Final = 1_000


class Parameters:
    """The search space in the key ``parameters`` of a sweep's file.

    Args:
        described: the parameters by name.
        is_grid: whether each combination of values is tried once.

    Raises:
        SpaceError: a parameter is invalid, or mqtune has no domain for it.
    """

    def __init__(self, described: Mapping[str, object], *, is_grid: bool = False) -> None:
        self._is_grid = is_grid
        #: Lines for the user about distributions that were changed.
        self.notes: list[str] = []
        self.space = self._group(described, "parameters")

    def _group(self, described: object, place: str) -> dict[str, object]:
        if not isinstance(described, Mapping) or not described:
            raise SpaceError(f"{place}: {described!r} is not a mapping of names to parameters")
        return {str(name): self._parameter(part, f"{place}.{name}") for name, part in described.items()}

    def _parameter(self, described: object, place: str) -> object:
        if isinstance(described, str) and described.startswith("~"):
            try:
                domain = domain_of(described[1:])
            except SpaceError as error:
                raise SpaceError(f"{place}: {error}") from None
            return self._as_grid(domain, place)
        if not isinstance(described, Mapping):
            raise SpaceError(f"{place}: {described!r} is not a parameter; write value: {described!r} below it")
        for key in described:
            if key not in _KEYS:
                hint = hint_for(str(key), _KEYS, f"a parameter has {names_in_words(_KEYS)}")
                raise SpaceError(f"{place}: there is no key {key!r}; {hint}")
        if "parameters" in described:
            _refuse_others(described, {"parameters"}, place)
            return self._group(described["parameters"], f"{place}.parameters")
        parameter = _Described(described, place)
        kind = parameter.distribution
        if kind in _MISSING:
            raise SpaceError(f"{place}: mqtune has no distribution {kind}; {_MISSING[kind]}")
        if kind not in _MAKERS:
            hint = hint_for(kind, _MAKERS, f"distributions are {names_in_words(_MAKERS)}")
            raise SpaceError(f"{place}: there is no distribution {kind!r}; {hint}")
        keys, make = _MAKERS[kind]
        _refuse_others(described, {*keys, "distribution"}, place)
        try:
            made = make(parameter)
        except SpaceError as error:
            raise SpaceError(f"{place}: {error}") from None
        self.notes += parameter.notes
        return self._as_grid(made, place) if isinstance(made, Domain) else made

    def _as_grid(self, domain: Domain, place: str) -> Domain:
        """Return the domain, or a grid of its values if the sweep's method is grid."""
        if not self._is_grid:
            return domain
        if domain.size is None:
            raise SpaceError(f"{place}: method grid needs values that can be counted; give values, or method: random")
        if domain.size > MAX_VALUES:
            raise SpaceError(
                f"{place}: a grid of {domain.size:,} values is too long; give fewer values, or method: random"
            )
        return grid_search(list(domain.values()))


def _refuse_others(described: Mapping[str, object], known: set[str], place: str) -> None:
    for key in described:
        if key not in known:
            first = next(iter(sorted(known - {"distribution"})))
            raise SpaceError(f"{place}: {key} has no meaning beside {first}; leave one of them out")


class _Described:
    """Reads the keys of one parameter of the file.

    Args:
        described: the parameter in the file.
        place: the parameter's path in the file, for errors.
    """

    def __init__(self, described: Mapping[str, object], place: str) -> None:
        self._described = described
        self._place = place
        self.notes: list[str] = []

    @property
    def distribution(self) -> str:
        """The name of the distribution. If it is not given, it follows from the other keys."""
        given = self._described
        if "distribution" in given:
            return str(given["distribution"])
        if "value" in given:
            return "constant"
        if "values" in given:
            return "categorical_w_probabilities" if "probabilities" in given else "categorical"
        if "min" in given and "max" in given:
            if "q" in given:
                raise SpaceError(f"{self._place}: q needs a distribution; give distribution: q_uniform")
            return "int_uniform" if self.are_whole("min", "max") else "uniform"
        raise SpaceError(f"{self._place}: give value, values, min and max, or a distribution")

    def are_whole(self, *keys: str) -> bool:
        """Return whether the values of these keys are whole numbers, without a dot or an exponent."""
        return all(isinstance(self._described.get(key, 1), int) for key in keys)

    def number(self, key: str, default: float | None = None) -> float:
        """Return the number of a key, or *default* if the key is missing.

        Raises:
            SpaceError: the key is missing without a default, or its value is not a finite number.
        """
        value = self._described.get(key, default)
        if value is None:
            raise SpaceError(f"{key} is missing; give a number")
        return number_of("", key, value)

    @property
    def bounds(self) -> tuple[float, float]:
        return self.number("min"), self.number("max")

    @property
    def exponents(self) -> tuple[float, float]:
        """The bounds whose natural logarithms are given as min and max."""
        low, high = self.bounds
        return _power(low), _power(high)

    @property
    def values(self) -> list[object]:
        values = self._described.get("values")
        if not isinstance(values, list) or not values:
            raise SpaceError(f"values: {values!r} is not a list of values")
        return [_with_numbers(value) for value in values]

    @property
    def value(self) -> object:
        if "value" not in self._described:
            raise SpaceError("value is missing")
        return _with_numbers(self._described["value"])

    def weighted(self) -> list[object]:
        """Return a list in which each value is repeated in proportion to its probability."""
        values, given = self.values, self._described.get("probabilities")
        if not isinstance(given, list) or len(given) != len(values):
            raise SpaceError(f"probabilities: {given!r} is not a list with a number for each of {len(values)} values")
        are_numbers = all(isinstance(weight, int | float) and not isinstance(weight, bool) for weight in given)
        if not are_numbers or not all(0 <= weight < math.inf for weight in given) or not any(given):
            raise SpaceError(f"probabilities: {given!r} are not numbers of at least 0 with a sum above 0")
        shares = [Fraction(str(weight)) / sum(Fraction(str(other)) for other in given) for weight in given]
        parts = math.lcm(*(share.denominator for share in shares))
        if parts > _MOST_ENTRIES:
            parts = _MOST_ENTRIES
            self.notes.append(f"{self._place}: the probabilities are rounded to multiples of {1 / parts:g}")
        return list(_repeated(values, [round(share * parts) for share in shares]))


def _repeated(values: list[object], counts: list[int]) -> Iterator[object]:
    for value, count in zip(values, counts, strict=True):
        yield from [value] * count


def number_of(place: str, key: str, value: object) -> float:
    """Return a value of the file as a finite number. It may be a text, as 1e-5 is in YAML 1.1.

    Raises:
        SpaceError: the value is not a finite number. The error names *place* and *key*.
    """
    return checks.number(place, key, _with_numbers(value), error=SpaceError)


def _power(exponent: float) -> float:
    """Return e to the power of a bound."""
    try:
        return math.exp(exponent)
    except OverflowError:
        raise SpaceError(
            f"e to the power of {exponent!r} is too large; if the bounds are not exponents, give log_uniform_values"
        ) from None


def _with_numbers(value: object) -> object:
    """Return a value in which texts such as 1e-5 are numbers, also within lists."""
    if isinstance(value, str) and _SCIENTIFIC.fullmatch(value):
        return float(value)
    if isinstance(value, list):
        return [_with_numbers(part) for part in value]
    return value


def _multiples(parameter: _Described, low: float, high: float, *, log: bool) -> Domain:
    q = parameter.number("q", 1)
    if not isinstance(q, int):
        return qloguniform(low, high, q) if log else quniform(low, high, q)
    # If the step q is a whole number, so are the values.
    whole_low, whole_high = max(1, math.ceil(low)) if log else math.ceil(low), math.floor(high)
    if whole_low + q > whole_high:
        raise SpaceError(f"q: {q!r} leaves at most one value from {low!r} to {high!r}; give a smaller q, such as 0.1")
    return qlograndint(whole_low, whole_high, q) if log else qrandint(whole_low, whole_high, q)


def _inverse(parameter: _Described) -> Domain:
    low, high = parameter.bounds
    return loguniform(_power(-high), _power(-low))


def _whole(parameter: _Described) -> Domain:
    if not parameter.are_whole("min", "max"):
        raise SpaceError("int_uniform needs whole numbers as min and max")
    low, high = parameter.bounds
    return randint(int(low), int(high))


_BOUNDS: Final = ("min", "max")
_MOMENTS: Final = ("mu", "sigma")
#: The keys of each distribution, and the function that makes its domain or constant.
_MAKERS: Final[dict[str, tuple[tuple[str, ...], Callable[[_Described], object]]]] = {
    "constant": (
        ("value",),
        lambda parameter: tuple(parameter.value) if isinstance(parameter.value, list) else parameter.value,
    ),
    "categorical": (("values",), lambda parameter: choice(parameter.values)),
    "categorical_w_probabilities": (("values", "probabilities"), lambda parameter: choice(parameter.weighted())),
    "int_uniform": (_BOUNDS, _whole),
    "uniform": (_BOUNDS, lambda parameter: uniform(*parameter.bounds)),
    "q_uniform": ((*_BOUNDS, "q"), lambda parameter: _multiples(parameter, *parameter.bounds, log=False)),
    "log_uniform": (_BOUNDS, lambda parameter: loguniform(*parameter.exponents)),
    "log_uniform_values": (_BOUNDS, lambda parameter: loguniform(*parameter.bounds)),
    "q_log_uniform": ((*_BOUNDS, "q"), lambda parameter: _multiples(parameter, *parameter.exponents, log=True)),
    "q_log_uniform_values": ((*_BOUNDS, "q"), lambda parameter: _multiples(parameter, *parameter.bounds, log=True)),
    "inv_log_uniform": (_BOUNDS, _inverse),
    "inv_log_uniform_values": (_BOUNDS, lambda parameter: loguniform(*parameter.bounds)),
    "normal": (_MOMENTS, lambda parameter: normal(parameter.number("mu", 0.0), parameter.number("sigma", 1.0))),
    "q_normal": (
        (*_MOMENTS, "q"),
        lambda parameter: qrandn(parameter.number("mu", 0.0), parameter.number("sigma", 1.0), parameter.number("q", 1)),
    ),
}
