"""What schedulers are given: checked and made plain, with errors that name the scheduler."""

from __future__ import annotations

import math
from fractions import Fraction
from numbers import Integral, Real
from typing import Any

from mqtune.core.errors import ConfigurationError

__all__ = ["count", "exact", "flag", "name", "number", "plain"]


def exact(value: float) -> Fraction:
    """Return the decimal number that *value* is written as: 1.1 is 11/10."""
    return Fraction(str(value))


def plain(value: float | Fraction) -> float:
    """Return *value* as an int if it is whole, else as the nearest float."""
    return int(value) if value == int(value) else float(value)


def number(scheduler: str, argument: str, value: Any) -> float:
    """Return the argument as an int or a float of Python's own.

    Raises:
        ConfigurationError: it is not a finite number.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ConfigurationError(f"{scheduler}: {argument}={value!r} is not a finite number")
    return int(value) if isinstance(value, Integral) else float(value)


def count(scheduler: str, argument: str, value: Any, least: int) -> int:
    """Return the argument as an int.

    Raises:
        ConfigurationError: it is not an integer of at least *least*.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ConfigurationError(f"{scheduler}: {argument}={value!r} is not an integer of at least {least}")
    return int(value)


def flag(scheduler: str, argument: str, value: Any) -> bool:
    """Return the argument if it is True or False.

    Raises:
        ConfigurationError: it is neither.
    """
    if not isinstance(value, bool):
        raise ConfigurationError(f"{scheduler}: {argument}={value!r} is neither True nor False")
    return value


def name(scheduler: str, argument: str, value: Any, what: str) -> str:
    """Return the argument if it is a name.

    Raises:
        ConfigurationError: it is empty or no string.
    """
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{scheduler}: {argument}={value!r} is not a name; give {what}")
    return value
