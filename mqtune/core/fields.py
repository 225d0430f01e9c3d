"""What the fields of messages, and definitions of experiments, must be: what came over the wire is checked before anything is made of it."""

from __future__ import annotations

import dataclasses
import reprlib
from types import UnionType
from typing import Any, Final, cast

from mqtune.core.codec import decode_value
from mqtune.core.errors import MessageVersionError

__all__ = ["decode_definition", "fields_of", "known_fields"]

#: What a field's value must be, by the field's annotation; richer ones are as plain as they travel.
_SHAPES: Final[dict[str, type | UnionType]] = {
    "AttemptEnd": str,
    "Config": dict,
    "Cursor": list | tuple,
    "Cursor | None": list | tuple | None,
    "Intent": str,
    "TrialId": str,
    "bool": bool,
    "dict[str, Any]": dict,
    "dict[str, object]": dict,
    "float": float | int,
    "float | None": float | int | None,
    "int": int,
    "int | None": int | None,
    "list[str]": list,
    "str": str,
}
#: The least that a number may be, by its field's name; where it counts from.
_LEAST: Final = {"attempt": 1, "sequence": 0, "slots": 0}

_FIELDS: Final[dict[type, tuple[tuple[str, type | UnionType], ...]]] = {}


def fields_of(kind: type) -> tuple[tuple[str, type | UnionType], ...]:
    """Return the names of a message's fields, and what their values must be; looked up once for each kind of message."""
    fields = _FIELDS.get(kind)
    if fields is None:
        found = dataclasses.fields(cast("Any", kind))
        fields = _FIELDS[kind] = tuple((each.name, _SHAPES[cast("str", each.type)]) for each in found)
    return fields


def known_fields(kind: type, body: Any) -> dict[str, Any]:
    """Return the fields of a message's body that this version knows.

    Raises:
        TypeError: a value can't be that, or there is no body.
    """
    known = {}
    for name, shape in fields_of(kind):
        if name in body:
            value = known[name] = body[name]
            # A list is always one of texts.
            if not (isinstance(value, shape) and (shape is not list or _are_texts(value))):
                raise TypeError(f"{name}={reprlib.repr(value)}")
            if name in _LEAST and known[name] < _LEAST[name]:
                raise TypeError(f"{name}={value!r}, which is less than {_LEAST[name]}")
    return known


def _are_texts(values: Any) -> bool:
    return all(type(each) is str for each in values)


def decode_definition(experiment: str, kept: bytes | None) -> dict[str, Any]:
    """Return an experiment's definition, as it is kept beside its journal; None stands for that nothing is kept.

    Raises:
        MessageVersionError: it is none.
    """
    if kept is None:
        raise MessageVersionError(f"there is no experiment {experiment!r}, or nothing of it is left")
    try:
        definition = decode_value(kept)
    except ValueError as error:
        raise MessageVersionError(f"experiment {experiment!r} has a definition that can't be read: {error}") from None
    if not isinstance(definition, dict):
        raise MessageVersionError(f"experiment {experiment!r} has {reprlib.repr(definition)} for a definition")
    return definition
