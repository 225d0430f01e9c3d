"""Trials as plain values, and back, so that what has become of an experiment can be kept beside its journal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Final, Generic, TypeVar

from mqtune.core.fields import FIELDS, Field
from mqtune.core.trial import Attempt, Trial

T = TypeVar("T")


class Plain(Generic[T]):
    """Makes lists of the values of a dataclass's fields, and its objects of such lists.

    Raises:
        KeyError: a field has an annotation that is not known here.
    """

    def __init__(self, kind: Callable[..., T], fields: Iterable[dataclasses.Field[object]]) -> None:
        known = [(each.name, FIELDS[str(each.type)]) for each in fields]
        #: The names of the fields, which say whether what was written before can be read.
        self.names = [name for name, _ in known]
        self._kind = kind
        self._values = attrgetter(*self.names)
        self._down = [(place, each.down) for place, (_, each) in enumerate(known) if each.down is not None]
        self._up = [(place, each.up) for place, (_, each) in enumerate(known) if each.up is not None]

    def values(self, of: T) -> list[object]:
        """Return an object's values; those of nested ones are plain too."""
        values = [*self._values(of)]
        for place, convert in self._down:
            values[place] = convert(values[place])
        return values

    def made(self, values: list[object]) -> T:
        """Return the object that these are the values of; the list is not to be used any more."""
        for place, convert in self._up:
            values[place] = convert(values[place])
        return self._kind(*values)


ATTEMPTS: Final = Plain(Attempt, dataclasses.fields(Attempt))
FIELDS["list[Attempt]"] = Field(
    (list,), lambda values: [*map(ATTEMPTS.made, values)], lambda attempts: [*map(ATTEMPTS.values, attempts)]
)
TRIALS: Final = Plain(Trial, dataclasses.fields(Trial))
