"""The domains that a search space is made of, and the functions that make them."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from statistics import NormalDist
from typing import Any, Final

from mqtune.core.errors import SpaceError
from mqtune.search.values import MAX_DEPTH, copy_value, integer, is_same, number, plain_value


class Domain(ABC):
    """The values that one entry of a config may have; immutable, so that several spaces may share it."""

    def sample(self, rng: random.Random) -> object:
        """Return one value; the same state of *rng* gives the same value."""
        return self.at(rng.random())

    @abstractmethod
    def at(self, share: float) -> object:
        """Return the value below which *share*, from 0 to 1, of all that is sampled lies."""

    def share(self, value: object) -> float:
        """Return a share at which *value* lies, from 0 to 1: the inverse of :meth:`at`."""
        raise SpaceError(f"{self} has no order of its values")

    @abstractmethod
    def check(self, value: object) -> object:
        """Return *value* as :meth:`sample` would have given it.

        Raises:
            SpaceError: it is not in this domain.
        """

    @abstractmethod
    def describe(self) -> dict[str, object]:
        """Return what defines it, in values that a message can carry."""

    @property
    def size(self) -> int | None:
        """The number of different values, or None when they can't be counted."""
        return None

    def values(self) -> Iterator[object]:
        """Yield each different value once; only where ``size`` is a number."""
        raise SpaceError(f"the values of {self} can't be counted")


@dataclass(frozen=True)
class Constant(Domain):
    """One value, which every config has."""

    value: object

    def sample(self, rng: random.Random) -> object:
        return copy_value(self.value)

    def at(self, share: float) -> object:
        return copy_value(self.value)

    def check(self, value: object) -> object:
        if not is_same(plain_value(value, "the value"), self.value):
            raise SpaceError(f"{value!r} is not {self}")
        return copy_value(self.value)

    def describe(self) -> dict[str, object]:
        return {"constant": copy_value(self.value)}

    @property
    def size(self) -> int:
        return 1

    def values(self) -> Iterator[object]:
        yield copy_value(self.value)

    def __str__(self) -> str:
        return f"the constant {self.value!r}"


@dataclass(frozen=True)
class Interval(Domain):
    """The floats from low to high, evenly spread over their values or over their logarithms."""

    name: str
    low: float
    high: float
    log: bool

    def at(self, share: float) -> float:
        if not self.log:
            return _between(self.low, self.high, share)
        return min(max(math.exp(_between(*self._logs, share)), self.low), self.high)

    def share(self, value: Any) -> float:
        if self.log:
            low, high = self._logs
            return _share(math.log(value), low, high)
        return _share(value, self.low, self.high)

    @cached_property
    def _logs(self) -> tuple[float, float]:
        return math.log(self.low), math.log(self.high)

    def check(self, value: object) -> float:
        plain = number(str(self), "value", value)
        if not self.low <= plain <= self.high:
            raise SpaceError(f"{value!r} is outside {self}")
        return float(plain)

    def describe(self) -> dict[str, object]:
        return {"domain": self.name, "low": self.low, "high": self.high}

    def __str__(self) -> str:
        return f"{self.name}({self.low!r}, {self.high!r})"


@dataclass(frozen=True)
class ReverseInterval(Interval):
    """The floats from low to high, below 1, whose distances to 1 are evenly spread over their logarithms."""

    def at(self, share: float) -> float:
        return min(max(1 - math.exp(_between(*self._logs, 1 - share)), self.low), self.high)

    def share(self, value: Any) -> float:
        return 1 - _share(math.log(1 - value), *self._logs)

    @cached_property
    def _logs(self) -> tuple[float, float]:
        return math.log(1 - self.high), math.log(1 - self.low)


@dataclass(frozen=True)
class Multiples(Domain):
    """The multiples of q from low to high, ints if ``whole`` and floats otherwise.

    q is taken as the decimal number that it is written as, so 3 * 0.1 is 0.3. Without ``log`` each multiple is
    equally likely; with it, k * q is as likely as the stretch from (k - 1/2) * q to (k + 1/2) * q is in a log scale.
    """

    name: str
    low: int | float
    high: int | float
    q: int | float
    log: bool
    whole: bool

    @cached_property
    def _step(self) -> Fraction:
        return Fraction(str(self.q))

    @cached_property
    def _ratio(self) -> tuple[int, int]:
        return self._step.as_integer_ratio()

    @cached_property
    def _logs(self) -> tuple[float, float]:
        return math.log(self.first - 0.5), math.log(self.last + 0.5)

    @cached_property
    def first(self) -> int:
        """How many times q the lowest value is."""
        return math.ceil(Fraction(str(self.low)) / self._step)

    @cached_property
    def last(self) -> int:
        """How many times q the highest value is."""
        return math.floor(Fraction(str(self.high)) / self._step)

    def steps(self, value: float) -> int:
        """Return how many times q a value is."""
        return round(Fraction(str(value)) / self._step)

    def share(self, value: Any) -> float:
        steps = self.steps(value)
        if self.log:
            return _share(math.log(steps), *self._logs)
        return (steps - self.first + 0.5) / self.size

    def value(self, steps: int) -> int | float:
        """Return so many times q."""
        # Python divides whole numbers exactly, and then rounds once.
        numerator, denominator = self._ratio
        return steps * numerator // denominator if self.whole else steps * numerator / denominator

    def sample(self, rng: random.Random) -> int | float:
        if not self.log:
            return self.value(rng.randint(self.first, self.last))
        return self.at(rng.random())

    def at(self, share: float) -> int | float:
        if not self.log:
            return self.value(self.first + _part(share, self.size))
        steps = math.exp(_between(*self._logs, share))
        return self.value(min(max(round(steps), self.first), self.last))

    def check(self, value: object) -> int | float:
        plain = (integer if self.whole else number)(str(self), "value", value)
        steps = self.steps(plain)
        if not self.low <= plain <= self.high:
            raise SpaceError(f"{value!r} is outside {self}")
        if self.value(steps) != plain:
            raise SpaceError(
                f"{value!r} is not a multiple of q={self.q!r} in {self}; the nearest is {self.value(steps)!r}"
            )
        return self.value(steps)

    def describe(self) -> dict[str, object]:
        described: dict[str, object] = {"domain": self.name, "low": self.low, "high": self.high}
        return described | {"q": self.q} if self.name.startswith("q") else described

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    def values(self) -> Iterator[object]:
        return map(self.value, range(self.first, self.last + 1))

    def __str__(self) -> str:
        return f"{self.name}({', '.join(repr(part) for part in list(self.describe().values())[1:])})"


@dataclass(frozen=True)
class Normal(Domain):
    """Floats from a normal distribution; any finite number may come."""

    mean: float
    sd: float

    def sample(self, rng: random.Random) -> float:
        return rng.normalvariate(self.mean, self.sd)

    def at(self, share: float) -> float:
        # At 0 and 1 lie the infinities.
        return self._distribution.inv_cdf(min(max(share, _LEAST_SHARE), 1 - _LEAST_SHARE))

    def share(self, value: Any) -> float:
        return self._distribution.cdf(value)

    @cached_property
    def _distribution(self) -> NormalDist:
        return NormalDist(self.mean, self.sd)

    def check(self, value: object) -> float:
        return float(number(str(self), "value", value))

    def describe(self) -> dict[str, object]:
        return {"domain": "normal", "mean": self.mean, "sd": self.sd}

    def __str__(self) -> str:
        return f"normal({self.mean!r}, {self.sd!r})"


@dataclass(frozen=True)
class RoundedNormal(Normal):
    """Floats from a normal distribution, each rounded to the nearest multiple of q, which is taken as the decimal number that it is written as."""

    q: float

    @cached_property
    def _step(self) -> Fraction:
        return Fraction(str(self.q))

    def _rounded(self, value: float) -> float:
        return float(round(Fraction(str(value)) / self._step) * self._step)

    def sample(self, rng: random.Random) -> float:
        return self._rounded(super().sample(rng))

    def at(self, share: float) -> float:
        return self._rounded(super().at(share))

    def share(self, value: Any) -> float:
        # The middle of the stretch that is rounded to it.
        return (super().share(value - self.q / 2) + super().share(value + self.q / 2)) / 2

    def check(self, value: object) -> float:
        plain = super().check(value)
        if (nearest := self._rounded(plain)) != plain:
            raise SpaceError(f"{value!r} is not a multiple of q={self.q!r} in {self}; the nearest is {nearest!r}")
        return nearest

    def describe(self) -> dict[str, object]:
        return {**super().describe(), "domain": "qrandn", "q": self.q}

    def __str__(self) -> str:
        return f"qrandn({self.mean!r}, {self.sd!r}, {self.q!r})"


@dataclass(frozen=True)
class Choice(Domain):
    """One of the values of a list, each as likely as the others; a value that stands twice is twice as likely."""

    options: tuple[object, ...]
    name: str = "choice"

    def sample(self, rng: random.Random) -> object:
        return copy_value(rng.choice(self.options))

    def at(self, share: float) -> object:
        return copy_value(self.options[_part(share, len(self.options))])

    def share(self, value: object) -> float:
        return (self.place(value) + 0.5) / len(self.options)

    def place(self, value: object) -> int:
        """Return the index of *value*, of the first that is the same.

        Raises:
            SpaceError: it is none of them.
        """
        plain = plain_value(value, "the value")
        for index, option in enumerate(self.options):
            if is_same(plain, option):
                return index
        raise SpaceError(f"{value!r} is not one of {self}")

    def check(self, value: object) -> object:
        return copy_value(self.options[self.place(value)])

    def describe(self) -> dict[str, object]:
        return {"domain": self.name, "values": copy_value(list(self.options))}

    @property
    def size(self) -> int:
        return sum(1 for _ in self.values())

    def values(self) -> Iterator[object]:
        different = {repr(option): option for option in self.options}
        return map(copy_value, different.values())

    def __str__(self) -> str:
        return f"{self.name}({list(self.options)!r})"


@dataclass(frozen=True)
class Ordinal(Choice):
    """A choice whose values stand in an order that means something: neighbours are alike."""

    name: str = "ordinal"


@dataclass(frozen=True)
class Grid(Choice):
    """A choice of which a grid takes each value in turn."""

    name: str = "grid_search"


@dataclass(frozen=True)
class Entries(Domain):
    """The entries of a choice, or of a grid, that have domains of their own; its values are their indexes."""

    name: str
    entries: tuple[object, ...]

    def sample(self, rng: random.Random) -> int:
        return rng.randrange(len(self.entries))

    def at(self, share: float) -> int:
        return _part(share, len(self.entries))

    def share(self, value: Any) -> float:
        return float((value + 0.5) / len(self.entries))

    def check(self, value: object) -> int:
        index = integer(str(self), "index", value)
        if not 0 <= index < len(self.entries):
            raise SpaceError(f"{value!r} is not an index of {self}")
        return index

    def describe(self) -> dict[str, object]:
        return {"domain": self.name, "entries": [describe_definition(entry) for entry in self.entries]}

    @property
    def size(self) -> int:
        return len(self.entries)

    def values(self) -> Iterator[object]:
        return iter(range(len(self.entries)))

    @cached_property
    def names(self) -> list[str | int]:
        """What people may call the entries: by the first text in each dict, if they differ, or else by their indexes."""
        found = [_text_in(each) if isinstance(each, Mapping) else written(each) for each in self.entries]
        return [*range(len(found))] if None in found or len(set(found)) < len(found) else [*map(str, found)]

    def __str__(self) -> str:
        return f"{self.name}({written(list(self.entries))})"


def _text_in(entry: Mapping[str, object]) -> str | None:
    return next((value for value in entry.values() if isinstance(value, str)), None)


@dataclass(frozen=True)
class Derived(Domain):
    """A value that a function computes from the rest of the config; only the driver ever calls it."""

    function: Callable[[Mapping[str, object]], object]

    def at(self, share: float) -> object:
        raise SpaceError(f"{self} has no value of its own; a Space computes it")

    def check(self, value: object) -> object:
        return plain_value(value, "the value")

    def describe(self) -> dict[str, object]:
        return {
            "domain": "sample_from",
            "function": getattr(self.function, "__qualname__", type(self.function).__name__),
        }

    @property
    def size(self) -> int:
        return 1

    def __str__(self) -> str:
        return f"sample_from({self.describe()['function']})"


def _between(low: float, high: float, share: float) -> float:
    """Return the float that lies at *share*, from 0 to 1, of the way; it never rounds or overflows past the bounds."""
    return min(max((1 - share) * low + share * high, low), high)


def _share(value: float, low: float, high: float) -> float:
    """Return how far *value* lies between the bounds, which may be as far apart as floats go."""
    return min(max((value / 2 - low / 2) / (high / 2 - low / 2), 0.0), 1.0)


def _part(share: float, parts: int) -> int:
    """Return in which of so many equal parts *share* lies; where there are more parts than shares, some are left out evenly."""
    return min(int(share * _SHARES) * parts // _SHARES, parts - 1)


#: How many different shares there are from 0 up to 1, as generators of random floats give them, and the least above 0.
_SHARES: Final = 2**53
_LEAST_SHARE: Final = 1 / _SHARES


def has_domain(definition: object, depth: int = 0) -> bool:
    """Return whether there is a domain in a definition, at any depth that one may have."""
    if isinstance(definition, Mapping):
        definition = list(definition.values())
    if not isinstance(definition, list | tuple) or depth > MAX_DEPTH:
        return isinstance(definition, Domain)
    return any(has_domain(each, depth + 1) for each in definition)


def plain_definition(definition: Any, where: str, depth: int = 0) -> Any:
    """Return a copy of a definition: domains in dicts and lists of plain values.

    Raises:
        SpaceError: a message can't carry a value that is no domain; the text names *where* it stands.
    """
    if isinstance(definition, Domain):
        return definition
    if not has_domain(definition, depth):
        return plain_value(definition, where, depth)
    if isinstance(definition, Mapping):
        keys = plain_value(dict.fromkeys(definition), where, depth)
        inner = zip(keys, definition.values(), strict=True)
        return {key: plain_definition(each, f"{where}/{key}", depth + 1) for key, each in inner}
    return [plain_definition(each, f"{where}[{index}]", depth + 1) for index, each in enumerate(definition)]


def describe_definition(definition: Any) -> dict[str, object]:
    """Return a plain definition in values that a message can carry."""
    if isinstance(definition, Domain):
        return definition.describe()
    if not has_domain(definition):
        return {"constant": copy_value(definition)}
    if isinstance(definition, Mapping):
        return {"dict": {key: describe_definition(each) for key, each in definition.items()}}
    return {"list": [describe_definition(each) for each in definition]}


def written(definition: object) -> str:
    """Return a definition as one would write it."""
    if isinstance(definition, Mapping):
        return f"{{{', '.join(f'{key!r}: {written(each)}' for key, each in definition.items())}}}"
    if isinstance(definition, list | tuple):
        return f"[{', '.join(map(written, definition))}]"
    return str(definition) if isinstance(definition, Domain) else repr(definition)


#: Up to here every whole number has a float of its own, so that k * q and (k + 1) * q differ.
MAX_STEPS: Final = 2**53
#: So many standard deviations from its mean a normal distribution has no share that a float could tell from 0.
_FAR_SDS: Final = 40
#: A definition lists the values of a choice.
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


def uniform(low: float, high: float) -> Domain:
    """Return the floats from *low* to *high*, evenly spread."""
    return _interval("uniform", low, high, log=False)


def loguniform(low: float, high: float) -> Domain:
    """Return the floats from *low* (above 0) to *high*, evenly spread in a log scale."""
    return _interval("loguniform", low, high, log=True)


def reverseloguniform(low: float, high: float) -> Domain:
    """Return the floats from *low* (at least 0) to *high* (below 1) with their distance to 1 evenly spread in a log scale.

    For what matters close to 1, such as a momentum: ``reverseloguniform(0.9, 0.999)``.
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
        SpaceError: *sd* is not above 0, or one of the two is not a finite number.
    """
    return Normal(*_moments("normal", mean, sd))


def qrandn(mean: float, sd: float, q: float) -> Domain:
    """Return floats from the normal distribution with this mean and standard deviation, each rounded to the nearest multiple of *q*.

    Raises:
        SpaceError: *sd* or *q* is not above 0, one of the three is not a finite number, or *q* is too small for floats of that size.
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


def qlograndint(low: int, high: int, q: int) -> Domain:
    """Return the multiples of *q* from *low* (above 0) to *high*, **high included** if it is one, spread as in a log scale."""
    return _multiples("qlograndint", low, high, q, log=True, whole=True)


def choice(values: Sequence[object]) -> Domain:
    """Return one of *values*, each equally likely; any values that a config can hold, lists and dicts included.

    A value may have domains of its own, which are sampled where it is the one:
    ``choice([{"name": "adam", "lr": loguniform(1e-5, 1e-1)}, {"name": "sgd", "momentum": uniform(0, 1)}])``.
    """
    return _chosen(Choice, "choice", values)


def ordinal(values: Sequence[object]) -> Domain:
    """Return one of *values*, each equally likely, which stand in their order: a model or PBT takes neighbours for alike."""
    options = _options("ordinal", values)
    if has_domain(options):
        raise SpaceError(f"ordinal: {written(options)} holds a domain, and has no order; use choice")
    return Ordinal(options)


def finrange(low: float, high: float, size: int, *, cast_int: bool = False) -> Domain:
    """Return one of *size* floats that are evenly spaced from *low* to *high*, both included; with *cast_int* each is rounded."""
    _check_bounds("finrange", number("finrange", "low", low), number("finrange", "high", high), log=False)
    shares = _evenly("finrange", size)
    return _range("finrange", [_between(float(low), float(high), share) for share in shares], cast_int)


def logfinrange(low: float, high: float, size: int, *, cast_int: bool = False) -> Domain:
    """Return one of *size* floats that are evenly spaced in a log scale from *low* (above 0) to *high*, both included.

    With *cast_int* each is rounded to an integer, as in Syne Tune: ``logfinrange(8, 512, 7, cast_int=True)`` has the powers of 2.
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
    """Return one of *values*, taken in turn: a grid visits each combination of its ``grid_search`` entries once.

    A value may have domains of its own, and a ``grid_search`` too, as those of :func:`choice`.
    """
    return _chosen(Grid, "grid_search", values)


def sample_from(function: Callable[[Mapping[str, object]], object]) -> Domain:
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


#: What makes each domain again, by its name in a description.
_FUNCTIONS: Final[dict[str, Callable[..., Domain]]] = {
    function.__name__: function
    for function in (
        choice,
        grid_search,
        normal,
        randint,
        lograndint,
        qrandint,
        qlograndint,
        qrandn,
        ordinal,
        reverseloguniform,
        uniform,
        loguniform,
        quniform,
        qloguniform,
    )
}


def domain_of(description: Mapping[str, object], unknown: Domain | None = None) -> Domain:
    """Return the domain that ``Domain.describe`` described, or *unknown*.

    Raises:
        SpaceError: it is a ``sample_from``, or none that this version knows, and there is no *unknown*.
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
    """Return the definition that ``describe_definition`` described.

    Raises:
        SpaceError: as :func:`domain_of`.
    """
    if "constant" in description:
        return description["constant"]
    if "dict" in description:
        return {key: definition_of(each, unknown) for key, each in description["dict"].items()}
    if "list" in description:
        return [definition_of(each, unknown) for each in description["list"]]
    return domain_of(description, unknown)
