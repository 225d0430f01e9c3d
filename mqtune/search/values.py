"""The plain values that a config may have."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, Final, SupportsFloat, TypeVar

from mqtune.core import checks
from mqtune.core.errors import SpaceError

T = TypeVar("T")

#: The smallest and the largest integer of msgpack.
LOWEST_INT: Final = -(2**63)
HIGHEST_INT: Final = 2**64 - 1

#: Largest number of nested lists and dicts. A deeper value contains itself, or is a mistake.
MAX_DEPTH: Final = 64


def plain_value(value: object, where: str, depth: int = 0) -> Any:
    """Return a copy of *value* in plain types, as a trial will get it.

    Plain types are None, bool, int, float, str, bytes, list and dict. Tuples become lists, and NumPy scalars become
    numbers, so that the driver, the results and the trial have equal configs.

    Args:
        where: the value's place in the config, for errors.
        depth: number of enclosing lists and dicts.

    Raises:
        SpaceError: the value can't be sent to a worker.
    """
    if depth > MAX_DEPTH:
        raise SpaceError(
            f"{where}: the value has more than {MAX_DEPTH} levels of lists and dicts; does it hold itself?"
        )
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, where)
    if isinstance(value, Integral | Real):
        return _plain_number(value, where)
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, list | tuple):
        return [plain_value(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)]
    if isinstance(value, dict):
        return _plain_dict(value, where, depth)
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return plain_value(value.item(), where, depth + 1)
    raise SpaceError(
        f"{where}: {value!r} is of type {type(value).__qualname__}, which can't be sent to a worker; {_way_out(value)}"
    )


def _plain_dict(value: Mapping[object, object], where: str, depth: int) -> dict[str, object]:
    plain = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise SpaceError(f"{where}: the key {key!r} is not a string; a config's dicts have strings for keys")
        plain[_text(key, where)] = plain_value(item, f"{where}/{key}", depth + 1)
    return plain


def _plain_number(value: SupportsFloat, where: str) -> int | float:
    if not isinstance(value, Integral):
        return float(value)
    whole = int(value)
    if not LOWEST_INT <= whole <= HIGHEST_INT:
        raise SpaceError(f"{where}: {whole} does not fit in 64 bits; give a float or a string")
    return whole


def _text(value: str, where: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise SpaceError(f"{where}: {value!r} is not valid Unicode text; give bytes") from None
    return str.__str__(value)


def _way_out(value: object) -> str:
    if callable(value):
        return "give a name that the trainable looks up, or sample_from(function) to compute a value"
    return "give None, bool, int, float, str, bytes, or a list or dict of those"


def copy_value(value: T) -> T:
    """Return *value*, or a copy if it is mutable."""
    return copy.deepcopy(value) if isinstance(value, list | dict) else value


def is_same(left: object, right: object) -> bool:
    """Return whether two plain values are the same: 1 is 1.0 but not True, and NaN is NaN."""
    if isinstance(left, bool) != isinstance(right, bool):
        return False
    return bool(left == right) or repr(left) == repr(right)


def number(call: str, name: str, value: object) -> int | float:
    """Return the argument *name* of the domain *call* as an int or a float.

    Raises:
        SpaceError: it is not a finite number.
    """
    return _plain_number(checks.number(call, name, value, error=SpaceError), f"{call}: {name}")


def integer(call: str, name: str, value: object) -> int:
    """Return the argument *name* of the domain *call* as an int.

    Raises:
        SpaceError: it is not an integer. A float is refused even if it is whole.
    """
    return int(_plain_number(checks.whole_number(call, name, value, error=SpaceError), f"{call}: {name}"))
