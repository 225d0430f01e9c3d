"""Trials as plain values, and back, so that what has become of an experiment can be kept beside its journal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Final, Generic, TypeVar

from mqtune.core.trial import (
    Action,
    Attempt,
    AttemptEnd,
    Decision,
    Intent,
    Labels,
    Restart,
    SavedCheckpoint,
    Stop,
    Transition,
    Trial,
    TrialStatus,
)

T = TypeVar("T")
_Convert = Callable[..., object]

#: The annotations of fields whose values msgpack gives back as they were.
_PLAIN: Final = frozenset(
    {
        "Body",
        "CheckpointId",
        "CheckpointId | None",
        "Config",
        "Metrics",
        "TrialId",
        "TrialId | None",
        "bool",
        "float",
        "float | None",
        "int",
        "int | None",
        "str",
    }
)


class Plain(Generic[T]):
    """Makes lists of the values of a dataclass's fields, and its objects of such lists.

    Raises:
        KeyError: a field has an annotation that is not known here.
    """

    def __init__(self, kind: Callable[..., T], fields: Iterable[dataclasses.Field[object]]) -> None:
        known = [(each.name, str(each.type)) for each in fields]
        #: The names of the fields, which say whether what was written before can be read.
        self.names = [name for name, _ in known]
        self._kind = kind
        self._values = attrgetter(*self.names)
        odd = [(place, *_CONVERTED[type_]) for place, (_, type_) in enumerate(known) if type_ not in _PLAIN]
        self._down = [(place, down) for place, down, _ in odd]
        self._up = [(place, up) for place, _, up in odd]

    def values(self, of: T) -> list[object]:
        """Return an object's values; those of nested ones are lists too."""
        values = [*self._values(of)]
        for place, convert in self._down:
            values[place] = convert(values[place])
        return values

    def made(self, values: list[object]) -> T:
        """Return the object that these are the values of; the list is not to be used any more."""
        for place, convert in self._up:
            values[place] = convert(values[place])
        return self._kind(*values)


def _unless_none(convert: _Convert) -> _Convert:
    return lambda value: None if value is None else convert(value)


def _decision(values: list[object]) -> Decision:
    action, *rest = values
    # They are what the same version has taken out of one.
    return Decision(Action(action), *rest)  # type: ignore[arg-type]


def _value(member: TrialStatus | AttemptEnd | Intent) -> str:
    return str(member.value)


#: What makes a field's value plain, and what makes it of that again, by the field's annotation.
_CONVERTED: Final[dict[str, tuple[_Convert, _Convert]]] = {
    "AttemptEnd | None": (_unless_none(_value), _unless_none(AttemptEnd)),
    "Decision | None": (
        _unless_none(lambda decision: [decision.action.value, *decision[1:]]),
        _unless_none(_decision),
    ),
    "Intent": (_value, Intent),
    "Labels": (list, lambda values: Labels(tuple(values[0]), values[1])),
    "Point": (list, tuple),
    "Stop | None": (_unless_none(list), _unless_none(lambda values: Stop(*values))),
    "TrialStatus": (_value, TrialStatus),
    "dict[CheckpointId, SavedCheckpoint]": (
        lambda checkpoints: list(checkpoints.values()),
        lambda values: {each[0]: SavedCheckpoint(*each) for each in values},
    ),
    "list[Transition]": (
        lambda history: [(step.status.value, *step[1:]) for step in history],
        lambda values: [Transition(TrialStatus(status), *rest) for status, *rest in values],
    ),
    "tuple[str, ...]": (list, tuple),
}
RESTARTS: Final = Plain(Restart, dataclasses.fields(Restart))
_CONVERTED["Restart | None"] = (_unless_none(RESTARTS.values), _unless_none(RESTARTS.made))
ATTEMPTS: Final = Plain(Attempt, dataclasses.fields(Attempt))
_CONVERTED["list[Attempt]"] = (
    lambda attempts: [*map(ATTEMPTS.values, attempts)],
    lambda values: [*map(ATTEMPTS.made, values)],
)
TRIALS: Final = Plain(Trial, dataclasses.fields(Trial))
