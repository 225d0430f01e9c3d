"""The domains that a search space is made of."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from mqtune.core.errors import SpaceError
from mqtune.search.space.values import copy_value, integer, is_same, number, plain_value

__all__ = ["Choice", "Constant", "Derived", "Domain", "Grid", "Interval", "Multiples", "Normal"]


class Domain(ABC):
    """The values that one entry of a config may have; immutable, so that several spaces may share it."""

    @abstractmethod
    def sample(self, rng: random.Random) -> Any:
        """Return one value; the same state of *rng* gives the same value."""

    @abstractmethod
    def check(self, value: Any) -> Any:
        """Return *value* as :meth:`sample` would have given it.

        Raises:
            SpaceError: it is not in this domain.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return what defines it, in values that a message can carry."""

    @property
    def size(self) -> int | None:
        """The number of different values, or None when they can't be counted."""
        return None

    def values(self) -> Iterator[Any]:
        """Yield each different value once; only where ``size`` is a number."""
        raise SpaceError(f"the values of {self} can't be counted")


@dataclass(frozen=True)
class Constant(Domain):
    """One value, which every config has."""

    value: Any

    def sample(self, rng: random.Random) -> Any:
        return copy_value(self.value)

    def check(self, value: Any) -> Any:
        if not is_same(plain_value(value, "the value"), self.value):
            raise SpaceError(f"{value!r} is not {self}")
        return copy_value(self.value)

    def describe(self) -> dict[str, Any]:
        return {"constant": copy_value(self.value)}

    @property
    def size(self) -> int:
        return 1

    def values(self) -> Iterator[Any]:
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

    def sample(self, rng: random.Random) -> float:
        if not self.log:
            return _between(rng, self.low, self.high)
        value = math.exp(_between(rng, math.log(self.low), math.log(self.high)))
        return min(max(value, self.low), self.high)

    def check(self, value: Any) -> float:
        plain = number(str(self), "value", value)
        if not self.low <= plain <= self.high:
            raise SpaceError(f"{value!r} is outside {self}")
        return float(plain)

    def describe(self) -> dict[str, Any]:
        return {"domain": self.name, "low": self.low, "high": self.high}

    def __str__(self) -> str:
        return f"{self.name}({self.low!r}, {self.high!r})"


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
    def _first(self) -> int:
        return math.ceil(Fraction(str(self.low)) / self._step)

    @cached_property
    def _last(self) -> int:
        return math.floor(Fraction(str(self.high)) / self._step)

    def _value(self, steps: int) -> int | float:
        return int(steps * self._step) if self.whole else float(steps * self._step)

    def sample(self, rng: random.Random) -> int | float:
        if not self.log:
            return self._value(rng.randint(self._first, self._last))
        steps = math.exp(_between(rng, math.log(self._first - 0.5), math.log(self._last + 0.5)))
        return self._value(min(max(round(steps), self._first), self._last))

    def check(self, value: Any) -> int | float:
        plain = (integer if self.whole else number)(str(self), "value", value)
        steps = round(Fraction(str(plain)) / self._step)
        if not self.low <= plain <= self.high:
            raise SpaceError(f"{value!r} is outside {self}")
        if self._value(steps) != plain:
            raise SpaceError(
                f"{value!r} is not a multiple of q={self.q!r} in {self}; the nearest is {self._value(steps)!r}"
            )
        return self._value(steps)

    def describe(self) -> dict[str, Any]:
        described = {"domain": self.name, "low": self.low, "high": self.high}
        return described | {"q": self.q} if self.name.startswith("q") else described

    @property
    def size(self) -> int:
        return self._last - self._first + 1

    def values(self) -> Iterator[Any]:
        return map(self._value, range(self._first, self._last + 1))

    def __str__(self) -> str:
        return f"{self.name}({', '.join(repr(part) for part in list(self.describe().values())[1:])})"


@dataclass(frozen=True)
class Normal(Domain):
    """Floats from a normal distribution; any finite number may come."""

    mean: float
    sd: float

    def sample(self, rng: random.Random) -> float:
        return rng.normalvariate(self.mean, self.sd)

    def check(self, value: Any) -> float:
        return float(number(str(self), "value", value))

    def describe(self) -> dict[str, Any]:
        return {"domain": "normal", "mean": self.mean, "sd": self.sd}

    def __str__(self) -> str:
        return f"normal({self.mean!r}, {self.sd!r})"


@dataclass(frozen=True)
class Choice(Domain):
    """One of the values of a list, each as likely as the others; a value that stands twice is twice as likely."""

    options: tuple[Any, ...]
    name: str = "choice"

    def sample(self, rng: random.Random) -> Any:
        return copy_value(rng.choice(self.options))

    def check(self, value: Any) -> Any:
        plain = plain_value(value, "the value")
        for option in self.options:
            if is_same(plain, option):
                return copy_value(option)
        raise SpaceError(f"{value!r} is not one of {self}")

    def describe(self) -> dict[str, Any]:
        return {"domain": self.name, "values": copy_value(list(self.options))}

    @property
    def size(self) -> int:
        return sum(1 for _ in self.values())

    def values(self) -> Iterator[Any]:
        different = {repr(option): option for option in self.options}
        return map(copy_value, different.values())

    def __str__(self) -> str:
        return f"{self.name}({list(self.options)!r})"


@dataclass(frozen=True)
class Grid(Choice):
    """A choice of which a grid takes each value in turn."""

    name: str = "grid_search"


@dataclass(frozen=True)
class Derived(Domain):
    """A value that a function computes from the rest of the config; only the driver ever calls it."""

    function: Callable[[Mapping[str, Any]], Any]

    def sample(self, rng: random.Random) -> Any:
        raise SpaceError(f"{self} has no value of its own; a Space computes it")

    def check(self, value: Any) -> Any:
        return plain_value(value, "the value")

    def describe(self) -> dict[str, Any]:
        return {
            "domain": "sample_from",
            "function": getattr(self.function, "__qualname__", type(self.function).__name__),
        }

    @property
    def size(self) -> int:
        return 1

    def __str__(self) -> str:
        return f"sample_from({self.describe()['function']})"


def _between(rng: random.Random, low: float, high: float) -> float:
    """Return a float from *low* to *high*; unlike ``rng.uniform``, it never rounds or overflows past them."""
    share = rng.random()
    return min(max((1 - share) * low + share * high, low), high)
