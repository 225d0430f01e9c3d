"""Argument checks.

Each returns the argument as a plain Python value, or raises a ConfigurationError with the argument's name and value. An
*owner*, such as ``ASHA``, precedes the name in the error; it is empty for a direct argument of the user.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import TypeVar

from mqtune.core.errors import ConfigurationError

T = TypeVar("T")


def given_of(**arguments: object) -> dict[str, object]:
    """Return the arguments by name, without those that are None, an empty text or an empty list."""
    return {name: value for name, value in arguments.items() if value is not None and value not in ("", [])}


def number(
    owner: str,
    argument: str,
    value: object,
    *,
    least: float = -math.inf,
    error: type[ConfigurationError] = ConfigurationError,
) -> float:
    """Return a finite number of at least *least*, as an int or a float."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise error(f"{_argument_text(owner, argument, value)} is not a finite number")
    if value < least:
        raise error(f"{_argument_text(owner, argument, value)} must not be below {least:g}")
    return int(value) if isinstance(value, Integral) else float(value)


def positive(owner: str, argument: str, value: object) -> float:
    """Return a finite number above 0, as an int or a float."""
    plain = number(owner, argument, value)
    if plain <= 0:
        raise ConfigurationError(f"{_argument_text(owner, argument, value)} must be above 0")
    return plain


def whole_number(
    owner: str,
    argument: str,
    value: object,
    least: int | None = None,
    *,
    error: type[ConfigurationError] = ConfigurationError,
) -> int:
    """Return an integer of at least *least*, as an int. Floats are refused, even whole ones."""
    if isinstance(value, bool) or not isinstance(value, Integral) or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise error(f"{_argument_text(owner, argument, value)} is not a whole number{bound}")
    return int(value)


def optional_count(argument: str, value: object, least: int) -> int | None:
    """Return an integer of at least *least*, or None for no limit."""
    return None if value is None else whole_number("", argument, value, least)


def optional_seconds(argument: str, value: object) -> float | None:
    """Return a number of seconds above 0 as a float, or None for no limit."""
    return None if value is None else float(positive("", argument, value))


def flag(owner: str, argument: str, value: object) -> bool:
    """Return a boolean."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"{_argument_text(owner, argument, value)} is neither True nor False")
    return value


def name(owner: str, argument: str, value: object, hint: str) -> str:
    """Return a string that is not empty. The error ends with *hint*."""
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{_argument_text(owner, argument, value)} is not a name; give {hint}")
    return value


def one_of(owner: str, argument: str, value: T, known: Sequence[object]) -> T:
    """Return *value* if it is in *known*."""
    if value not in known:
        *others, last = map(repr, known)
        choices = f"neither {others[0]} nor {last}" if len(others) == 1 else f"none of {', '.join(map(repr, known))}"
        raise ConfigurationError(f"{_argument_text(owner, argument, value)} is {choices}")
    return value


def _argument_text(owner: str, argument: str, value: object) -> str:
    return f"{owner}: {argument}={value!r}" if owner else f"{argument}={value!r}"
