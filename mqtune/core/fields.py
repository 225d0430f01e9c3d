"""The fields of messages, and of what is kept of trials.

Each has its types, and the conversions to plain values and back.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable, Iterable
from functools import cache
from operator import attrgetter
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from mqtune.core.codec import Body
from mqtune.core.resources import Resources
from mqtune.core.trial import (
    EFFECTS,
    Action,
    AttemptEnd,
    Decision,
    Intent,
    Labels,
    Restart,
    SavedCheckpoint,
    Seat,
    Stop,
    Transition,
    TrialStatus,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Convert = Callable[[Any], Any]
#: The name of an action or a status, which stays a text, and must be one that the fold knows. Attempts, unlike trials,
#: may also be requeued.
ActionName = str
StatusName = str
_ACTIONS: Final = frozenset(EFFECTS)


class Field(NamedTuple):
    """The types of a field's plain value, and the conversions from it and to it.

    A field whose own value is plain has no conversions.
    """

    #: Not a union, which is slower to look through.
    types: tuple[type, ...]
    up: _Convert | None = None
    down: _Convert | None = None


def unusual_fields(value: DataclassInstance) -> dict[str, object]:
    """Return the fields of a dataclass' value that have not their default, of messages that are sent often."""
    usual = _defaults(type(value))
    return {name: own for name, own in dataclasses.asdict(value).items() if own != usual[name]}


@cache
def _defaults(kind: type[DataclassInstance]) -> dict[str, object]:
    made = {each.name: each.default_factory for each in dataclasses.fields(kind)}
    return {
        each.name: each.default if made[each.name] is dataclasses.MISSING else made[each.name]()  # type: ignore[operator]
        for each in dataclasses.fields(kind)
    }


def unless_none(convert: _Convert) -> _Convert:
    """Return a conversion that leaves None as it is."""
    return lambda value: None if value is None else convert(value)


def _action(value: str) -> str:
    if value not in _ACTIONS:
        raise ValueError(f"action={reprlib.repr(value)}")
    return value


def _value(member: TrialStatus | AttemptEnd | Intent) -> str:
    return str(member.value)


def _resources(value: Body) -> Resources | None:
    return Resources.decode(value) if value else None


def _restart(value: Body) -> Restart | None:
    values = known_fields(Restart, value)
    return Restart(**{**values, "source": values.get("source") or None}) if value else None


def _plain_restart(value: Restart | None) -> Body:
    return {} if value is None else {**plain_fields(Restart, value), "source": value.source or ""}


def _decision(values: list[Any]) -> Decision:
    action, *rest = values
    return Decision(Action(action), *rest)


_TEXT: Final = (str,)
_MAP: Final = (dict,)
_LIST: Final = (list,)
_LIST_OR_NONE: Final = (list, NoneType)
#: All fields by their annotations; who defines a type adds those that hold it.
FIELDS: Final[dict[str, Field]] = {
    "ActionName": Field(_TEXT, _action),
    "AttemptEnd": Field(_TEXT, AttemptEnd, _value),
    "AttemptEnd | None": Field((str, NoneType), unless_none(AttemptEnd), unless_none(_value)),
    "Body": Field(_MAP),
    "CheckpointId": Field(_TEXT),
    "CheckpointId | None": Field((str, NoneType)),
    "Config": Field(_MAP),
    "Decision | None": Field(
        _LIST_OR_NONE, unless_none(_decision), unless_none(lambda decision: [decision.action.value, *decision[1:]])
    ),
    "Intent": Field(_TEXT, Intent, _value),
    "Labels": Field(_LIST, lambda values: Labels(tuple(values[0]), values[1]), list),
    "Metrics": Field(_MAP),
    "Point": Field(_LIST, tuple, list),
    "Resources | None": Field(_MAP, _resources, lambda value: {} if value is None else value.encode()),
    "Restart | None": Field(_MAP, _restart, _plain_restart),
    "StatusName": Field(_TEXT, lambda value: TrialStatus(value).value),
    "Stop | None": Field(_LIST_OR_NONE, unless_none(lambda values: Stop(*values)), unless_none(list)),
    "TrialId": Field(_TEXT),
    "TrialId | None": Field((str, NoneType)),
    "TrialStatus": Field(_TEXT, TrialStatus, _value),
    "bool": Field((bool,)),
    "dict[CheckpointId, SavedCheckpoint]": Field(
        _LIST,
        lambda values: {each[0]: SavedCheckpoint(*each) for each in values},
        lambda checkpoints: list(checkpoints.values()),
    ),
    "dict[str, object]": Field(_MAP),
    "float": Field((float, int)),
    "float | None": Field((float, int, NoneType)),
    "int": Field((int,)),
    "int | None": Field((int, NoneType)),
    "list[Transition]": Field(
        _LIST,
        lambda values: [Transition(TrialStatus(status), *rest) for status, *rest in values],
        lambda history: [(step.status.value, *step[1:]) for step in history],
    ),
    "list[str]": Field(_LIST),
    "str": Field(_TEXT),
    "tuple[Seat, ...]": Field(
        _LIST,
        lambda values: tuple(Seat._make([*seat[:4], tuple(seat[4]), *seat[5:]]) for seat in values),
        lambda seats: [[*seat[:4], [*seat.devices], *seat[5:]] for seat in seats],
    ),
    "tuple[str, ...]": Field(_LIST, tuple, list),
}
#: How many combinations of types are remembered for each kind of message; real ones have a handful.
_MOST_SOUND: Final = 100
#: The lowest value of a number, by its field's name.
_LEAST: Final[dict[str, int]] = {"attempt": 1, "sequence": 0, "slots": 0, "seat": 0}


class Outline(NamedTuple):
    """A message's fields, in order, as they are looked up for each message."""

    fields: dict[str, Field]
    names: tuple[str, ...]
    #: Which are lists of texts, and the lowest value of each number that has one.
    lists: tuple[str, ...]
    least: tuple[tuple[str, int], ...]
    #: The fields whose values are made of plain ones, and those that are made plain.
    up: tuple[tuple[str, _Convert], ...]
    down: tuple[tuple[str, _Convert], ...]
    values: Callable[[object], tuple[object, ...]]
    #: The types of all values, in order, of bodies that were sound.
    sound: set[tuple[type, ...]]


@cache
def _outline_of(kind: type) -> Outline:
    annotations = {each.name: str(each.type) for each in dataclasses.fields(kind)}
    fields = {name: FIELDS[annotation] for name, annotation in annotations.items()}
    return Outline(
        fields,
        tuple(fields),
        lists=tuple(name for name, annotation in annotations.items() if annotation == "list[str]"),
        least=tuple((name, _LEAST[name]) for name in fields if name in _LEAST),
        up=tuple((name, each.up) for name, each in fields.items() if each.up is not None),
        down=tuple((name, each.down) for name, each in fields.items() if each.down is not None),
        values=attrgetter(*fields),
        sound=set(),
    )


def plain_fields(kind: type, message: object) -> Body:
    """Return a message's fields as plain values."""
    outline = _outline_of(kind)
    body = dict(zip(outline.names, outline.values(message), strict=True))
    for name, convert in outline.down:
        body[name] = convert(body[name])
    return body


def made_fields(kind: type, body: Body) -> Body:
    """Return the known fields of a message's body, each of its type.

    Raises:
        TypeError: a value has the wrong type, or there is no body.
        ValueError: a text is not one of those that the field may hold.
    """
    values = known_fields(kind, body)
    for name, convert in _outline_of(kind).up:
        if name in values:
            values[name] = convert(values[name])
    return values


def known_fields(kind: type, body: Body) -> Body:
    """Return the fields of a message's body that this version knows.

    Raises:
        TypeError: a value has the wrong type, or there is no body.
    """
    fields, names, lists, least, _, _, _, sound = _outline_of(kind)
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
    for name, field in fields.items():
        if name in body:
            value = known[name] = body[name]
            if not _has_type(value, field.types) or (name in lists and not _are_texts(cast("list[object]", value))):
                raise TypeError(f"{name}={reprlib.repr(value)}")
            if name in _LEAST and cast("int", value) < _LEAST[name]:
                raise TypeError(f"{name}={value!r}, which is less than {_LEAST[name]}")
    if is_whole and len(sound) < _MOST_SOUND:
        sound.add(types)
    return known


def _has_type(value: object, types: tuple[type, ...]) -> bool:
    """Whether a value has one of these types. True and False are not numbers, although Python counts them as such."""
    return isinstance(value, types) and (type(value) is not bool or bool in types)


def _are_texts(values: Iterable[object]) -> bool:
    return all(type(each) is str for each in values)
