"""Conversions between plain values, as in messages, and checked objects."""

from __future__ import annotations

import dataclasses
import re
import reprlib
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, TypeVar, get_type_hints

import msgspec

from mqtune.core.codec import Body, as_number

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
#: A number of things.
Count = Annotated[int, msgspec.Meta(ge=0)]
#: The number of an attempt, from 1.
AttemptNumber = Annotated[int, msgspec.Meta(ge=1)]
#: The part of msgspec's error text that names the field.
_PLACE: Final = re.compile(r" - at .*?`\$\.(\w+).*", re.DOTALL)


def from_plain(kind: type[T], plain: object) -> T:
    """Make an object of *kind* from plain values. Unknown fields are ignored.

    Raises:
        TypeError: a field is missing, or its value has the wrong type. The text has the field and the value.
    """
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        text = str(error)
        if isinstance(plain, dict) and (place := _PLACE.search(text)) is not None:
            text = f"{place[1]}={reprlib.repr(plain.get(place[1]))}: {text[: place.start()]}"
        raise TypeError(text) from None


def field_values(value: DataclassInstance) -> Body:
    """Return the values of a dataclass's fields, by their names."""
    return {name: getattr(value, name) for name in _defaults(type(value))}


def to_plain(value: object) -> Any:
    """Return dataclasses as dicts, enums as their values, and NumPy scalars as numbers.

    Raises:
        TypeError: *value* contains something else.
    """
    return msgspec.to_builtins(value, builtin_types=(bytes,), enc_hook=as_number)


def unusual_fields(value: DataclassInstance) -> Body:
    """Return the fields that differ from their defaults, for messages that are sent often."""
    defaults = _defaults(type(value))
    return {name: own for name, own in field_values(value).items() if own != defaults[name]}


@cache
def _defaults(kind: type[DataclassInstance]) -> Body:
    """Return the defaults of a dataclass's fields, by their names."""
    return {
        attribute.name: attribute.default
        if attribute.default_factory is dataclasses.MISSING
        else attribute.default_factory()
        for attribute in dataclasses.fields(kind)
    }


class RowConverter(Generic[T]):
    """Converts dataclass objects to lists of their values and back, faster than as dicts.

    Args:
        types: the types of those fields that have another type in rows, by name.
    """

    def __init__(self, kind: type[T], **types: object) -> None:
        hints = get_type_hints(kind) | types
        self.names = [attribute.name for attribute in dataclasses.fields(kind)]  # type: ignore[arg-type]
        self._kind = kind
        row = msgspec.defstruct("Row", [(name, hints[name]) for name in self.names], array_like=True)
        self._list = list[row]  # type: ignore[valid-type]

    def rows(self, objects: Iterable[T]) -> list[list[Any]]:
        """Return the values of each object."""
        return [[getattr(thing, name) for name in self.names] for thing in objects]

    def objects(self, rows: object) -> list[T]:
        """Return an object for each row of plain values.

        Raises:
            TypeError: as ``from_plain``.
        """
        return [self._kind(*msgspec.structs.astuple(row)) for row in from_plain(self._list, rows)]
