"""What the fields of a message may hold: looked at when it is encoded, and when it comes from somebody else."""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable, Iterable
from functools import cache
from operator import attrgetter
from types import NoneType
from typing import Final, NamedTuple, cast

from mqtune.core.codec import Body

_TEXT: Final = (str,)
_MAP: Final = (dict,)
#: The types of a field's encoded value, by the field's annotation. Not unions, which are slower to look through.
_SHAPES: Final[dict[str, tuple[type, ...]]] = {
    "ActionName": _TEXT,
    "AttemptEnd": _TEXT,
    "Config": _MAP,
    "Cursor": (list, tuple),
    "Cursor | None": (list, tuple, NoneType),
    "Intent": _TEXT,
    "StatusName": _TEXT,
    "CheckpointId": _TEXT,
    "Restart | None": _MAP,
    "TrialId": _TEXT,
    "TrialId | None": (str, NoneType),
    "bool": (bool,),
    "Body": _MAP,
    "dict[str, object]": _MAP,
    "float": (float, int),
    "float | None": (float, int, NoneType),
    "int": (int,),
    "int | None": (int, NoneType),
    "list[str]": (list,),
    "str": _TEXT,
}
#: How many combinations of types are remembered for each kind of message; real ones have a handful.
_MOST_SOUND: Final = 100
#: The lowest value of a number, by its field's name.
_LEAST: Final[dict[str, int]] = {"attempt": 1, "sequence": 0, "slots": 0}


@cache
def fields_of(kind: type) -> dict[str, str]:
    """Return the annotations of a message's fields by their names."""
    return {each.name: str(each.type) for each in dataclasses.fields(kind)}


class Outline(NamedTuple):
    """What of a message's fields is looked at in any body."""

    names: tuple[str, ...]
    #: Which are lists of texts, and the lowest value of each number that has one.
    lists: tuple[str, ...]
    least: tuple[tuple[str, int], ...]
    values: Callable[[object], tuple[object, ...]]
    #: The types of all values, in order, of bodies that were sound.
    sound: set[tuple[type, ...]]


@cache
def outline_of(kind: type) -> Outline:
    """Return what is looked at in a message of this kind; ``values`` takes the values of its fields out of one."""
    fields = fields_of(kind)
    least = tuple((name, _LEAST[name]) for name in fields if name in _LEAST)
    lists = tuple(name for name, annotation in fields.items() if annotation == "list[str]")
    return Outline(tuple(fields), lists, least, attrgetter(*fields), set())


@cache
def _shapes_of(kind: type) -> tuple[tuple[str, tuple[type, ...], bool], ...]:
    """Return, for each field of a message, its name, its types, and whether it is a list, always one of texts."""
    return tuple((name, _SHAPES[annotation], annotation == "list[str]") for name, annotation in fields_of(kind).items())


def known_fields(kind: type, body: Body) -> Body:
    """Return the fields of a message's body that this version knows.

    Raises:
        TypeError: a value has the wrong type, or there is no body.
    """
    names, lists, least, _, sound = outline_of(kind)
    is_whole = body.__class__ is dict and tuple(body) == names
    types = tuple(map(type, body.values())) if is_whole else ()
    if types in sound:
        # The usual case: of such a body only what its values' types don't say is looked at.
        for name in lists:
            if not _are_texts(body[name]):
                raise TypeError(f"{name}={reprlib.repr(body[name])}")
        for name, lowest in least:
            if body[name] < lowest:
                raise TypeError(f"{name}={body[name]!r}, which is less than {lowest}")
        return body.copy()
    known: Body = {}
    for name, shape, is_list in _shapes_of(kind):
        if name in body:
            value = known[name] = body[name]
            if not isinstance(value, shape) or (is_list and not _are_texts(cast("list[object]", value))):
                raise TypeError(f"{name}={reprlib.repr(value)}")
            if name in _LEAST and cast("int", value) < _LEAST[name]:
                raise TypeError(f"{name}={value!r}, which is less than {_LEAST[name]}")
    if is_whole and len(sound) < _MOST_SOUND:
        sound.add(types)
    return known


def _are_texts(values: Iterable[object]) -> bool:
    return all(type(each) is str for each in values)
