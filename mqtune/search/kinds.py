"""The classes of domains in a search space."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from statistics import NormalDist
from typing import Any, Final

from mqtune.core.errors import SpaceError
from mqtune.search.values import MAX_DEPTH, copy_value, integer, is_same, number, plain_value


class Domain(ABC):
    """The possible values of one entry of a config, and their distribution. Immutable."""

    def sample(self, rng: random.Random) -> object:
        """Return a random value. The same state of *rng* gives the same value."""
        return self.at(rng.random())

    @abstractmethod
    def at(self, share: float) -> object:
        """Return the value below which a share of all samples lies; *share* is from 0 to 1."""

    def share(self, value: object) -> float:
        """Return the share of samples, from 0 to 1, that are lower than *value*.

        This is the inverse of :meth:`at`.
        """
        raise SpaceError(f"{self} has no order of its values")

    @abstractmethod
    def check(self, value: object) -> object:
        """Return *value* in the type in which :meth:`sample` returns it.

        Raises:
            SpaceError: the value is not in this domain.
        """

    @abstractmethod
    def describe(self) -> dict[str, object]:
        """Return a description of plain values, from which ``domain_of`` rebuilds the domain."""

    @property
    def size(self) -> int | None:
        """Number of different values. None if they can't be counted."""
        return None

    def values(self) -> Iterator[object]:
        """Yield each different value once. Raise SpaceError if they can't be counted."""
        raise SpaceError(f"the values of {self} can't be counted")


@dataclass(frozen=True)
class Constant(Domain):
    """A single value, the same in every config."""

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
    """The floats from low to high, uniform or, with ``log``, log-uniform."""

    name: str
    low: float
    high: float
    log: bool

    def at(self, share: float) -> float:
        if not self.log:
            return between(self.low, self.high, share)
        return min(max(math.exp(between(*self._logs, share)), self.low), self.high)

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
    """The floats from low to high, all below 1, whose difference from 1 is log-uniform."""

    def at(self, share: float) -> float:
        return min(max(1 - math.exp(between(*self._logs, 1 - share)), self.low), self.high)

    def share(self, value: Any) -> float:
        return 1 - _share(math.log(1 - value), *self._logs)

    @cached_property
    def _logs(self) -> tuple[float, float]:
        return math.log(1 - self.high), math.log(1 - self.low)


@dataclass(frozen=True)
class Multiples(Domain):
    """The multiples of q from low to high: ints if ``whole``, else floats.

    q is taken as an exact decimal number, so 3 * 0.1 is 0.3. Without ``log``, each multiple is equally likely. With
    ``log``, k * q has the probability of the log-uniform range from (k - 1/2) * q to (k + 1/2) * q.
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
        """The lowest value, divided by q."""
        return math.ceil(Fraction(str(self.low)) / self._step)

    @cached_property
    def last(self) -> int:
        """The highest value, divided by q."""
        return math.floor(Fraction(str(self.high)) / self._step)

    def steps(self, value: float) -> int:
        """Return a value divided by q, rounded to an integer."""
        return round(Fraction(str(value)) / self._step)

    def share(self, value: Any) -> float:
        steps = self.steps(value)
        if self.log:
            return _share(math.log(steps), *self._logs)
        return (steps - self.first + 0.5) / self.size

    def value(self, steps: int) -> int | float:
        """Return the value that is *steps* times q."""
        # Python's division of two integers rounds only once.
        numerator, denominator = self._ratio
        return steps * numerator // denominator if self.whole else steps * numerator / denominator

    def sample(self, rng: random.Random) -> int | float:
        if not self.log:
            return self.value(rng.randint(self.first, self.last))
        return self.at(rng.random())

    def at(self, share: float) -> int | float:
        if not self.log:
            return self.value(self.first + _part(share, self.size))
        steps = math.exp(between(*self._logs, share))
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
    """Floats from a normal distribution."""

    mean: float
    sd: float

    def sample(self, rng: random.Random) -> float:
        return rng.normalvariate(self.mean, self.sd)

    def at(self, share: float) -> float:
        # Shares of 0 and 1 would give infinity.
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
    """Floats from a normal distribution, each rounded to the nearest multiple of q.

    q is taken as an exact decimal number, so 3 * 0.1 is 0.3.
    """

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
        # The middle of the range of shares that is rounded to this value.
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
    """One of a list of values, each equally likely. A value listed twice is twice as likely."""

    options: tuple[object, ...]
    name: str = "choice"

    def sample(self, rng: random.Random) -> object:
        return copy_value(rng.choice(self.options))

    def at(self, share: float) -> object:
        return copy_value(self.options[_part(share, len(self.options))])

    def share(self, value: object) -> float:
        return (self.place(value) + 0.5) / len(self.options)

    def place(self, value: object) -> int:
        """Return the index of the first option that equals *value*.

        Raises:
            SpaceError: no option equals it.
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
    """A choice whose values have a meaningful order: neighbours are similar."""

    name: str = "ordinal"


@dataclass(frozen=True)
class Grid(Choice):
    """A choice all of whose values are tried by a grid."""

    name: str = "grid_search"


@dataclass(frozen=True)
class Entries(Domain):
    """A choice or grid whose entries contain domains. Its values are the indexes of the entries."""

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
            raise SpaceError(
                f"{value!r} is not the index of an entry of {self}; give a number from 0 to {len(self.entries) - 1}"
            )
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
        """Names of the entries: the first text in each entry, if these differ.

        Else the entries' indexes.
        """
        names = [_text_in(entry) if isinstance(entry, Mapping) else written(entry) for entry in self.entries]
        return [*range(len(names))] if None in names or len(set(names)) < len(names) else [*map(str, names)]

    def __str__(self) -> str:
        return f"{self.name}({written(list(self.entries))})"


def _text_in(entry: Mapping[str, object]) -> str | None:
    return next((value for value in entry.values() if isinstance(value, str)), None)


@dataclass(frozen=True)
class Derived(Domain):
    """A value that a function computes from the rest of the config. Only the driver calls it."""

    function: Callable[[Mapping[str, object]], object]

    def at(self, share: float) -> object:
        raise SpaceError(f"{self} has no values to draw from; a Space computes its value")

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


def between(low: float, high: float, share: float) -> float:
    """Return the float at the position *share* between two bounds: *low* for 0, *high* for 1."""
    return min(max((1 - share) * low + share * high, low), high)


def _share(value: float, low: float, high: float) -> float:
    return min(max((value / 2 - low / 2) / (high / 2 - low / 2), 0.0), 1.0)


def _part(share: float, parts: int) -> int:
    """Return the index of the part of *share* if the range from 0 to 1 has *parts* equal parts."""
    return min(int(share * _SHARES) * parts // _SHARES, parts - 1)


#: Number of different numbers from 0 to 1 that a random generator returns.
_SHARES: Final = 2**53
#: The smallest of them above 0.
_LEAST_SHARE: Final = 1 / _SHARES


def has_domain(definition: object, depth: int = 0) -> bool:
    """Return whether a part of a space contains a domain, down to ``MAX_DEPTH`` levels."""
    if isinstance(definition, Mapping):
        definition = list(definition.values())
    if not isinstance(definition, list | tuple) or depth > MAX_DEPTH:
        return isinstance(definition, Domain)
    return any(has_domain(inner, depth + 1) for inner in definition)


def plain_definition(definition: Any, where: str, depth: int = 0) -> Any:
    """Return a copy of a part of a space, with plain values and domains in dicts and lists.

    *where* names the part, for errors.

    Raises:
        SpaceError: a value can't be sent to a worker.
    """
    if isinstance(definition, Domain):
        return definition
    if not has_domain(definition, depth):
        return plain_value(definition, where, depth)
    if isinstance(definition, Mapping):
        keys = plain_value(dict.fromkeys(definition), where, depth)
        inner = zip(keys, definition.values(), strict=True)
        return {key: plain_definition(value, f"{where}/{key}", depth + 1) for key, value in inner}
    return [plain_definition(value, f"{where}[{index}]", depth + 1) for index, value in enumerate(definition)]


def describe_definition(definition: Any) -> dict[str, object]:
    """Return a description of a part of a space in plain values; ``definition_of`` rebuilds it."""
    if isinstance(definition, Domain):
        return definition.describe()
    if not has_domain(definition):
        return {"constant": copy_value(definition)}
    if isinstance(definition, Mapping):
        return {"dict": {key: describe_definition(inner) for key, inner in definition.items()}}
    return {"list": [describe_definition(inner) for inner in definition]}


def written(definition: object) -> str:
    """Return a part of a space as Python code, for messages."""
    if isinstance(definition, Mapping):
        return f"{{{', '.join(f'{key!r}: {written(inner)}' for key, inner in definition.items())}}}"
    if isinstance(definition, list | tuple):
        return f"[{', '.join(map(written, definition))}]"
    return str(definition) if isinstance(definition, Domain) else repr(definition)
