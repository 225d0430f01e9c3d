"""How schedulers, searchers and stop rules stand in a definition, so that an experiment can go on without its script."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol, TypeVar

from mqtune.core.errors import ConfigurationError

__all__ = ["CLASS", "Described", "described", "differences", "rebuilt"]

#: The key of a class that isn't mqtune's own; what is described with it can't be made again from its description.
CLASS: Final = "class"
T = TypeVar("T")


class Described(Protocol):
    """What can say what it was made with."""

    def describe(self) -> dict[str, Any]:
        """Return its arguments, in values that a message can carry."""


def described(thing: Described) -> dict[str, Any]:
    """Return a thing's description; one of a user's own class, which may inherit it from one of mqtune's, has that class's name."""
    kind, description = type(thing), thing.describe()
    if kind.__module__.partition(".")[0] == "mqtune":
        return description
    return {**description, CLASS: f"{kind.__module__}:{kind.__qualname__}"}


def differences(name: str, was: object, is_: object) -> Iterator[str]:
    """Yield a line for each value in which two descriptions differ, under names such as ``scheduler.max_t``."""
    if was == is_:
        return
    if isinstance(was, Mapping) and isinstance(is_, Mapping) and was.keys() & is_.keys():
        for key in {**was, **is_}:
            yield from differences(f"{name}.{key}", was.get(key, _MISSING), is_.get(key, _MISSING))
        return
    yield f"{name} was {_short(was)} and is {_short(is_)}"


_MISSING: Final = object()
#: More of a value would not be read, nor would it show where the two differ.
_SHOWN_CHARS: Final = 200


def _short(value: object) -> str:
    if value is _MISSING:
        return "not there"
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def rebuilt(what: str, kinds: Mapping[str, Callable[..., T]], description: Mapping[str, Any]) -> T:
    """Return what *description* describes, by calling the kind that it names with the arguments that it has.

    Args:
        what: "scheduler", "searcher" or "rule": the key of the kind, and what the error calls it.
        kinds: what makes each kind.
        description: as ``described`` returns it.

    Raises:
        ConfigurationError: it is of a user's own class, or of a kind that this version doesn't know.
    """
    arguments = dict(description)
    kind = arguments.pop(what, None)
    if CLASS in arguments:
        raise ConfigurationError(
            f"the {what} is of a class of your own, {arguments[CLASS]}, which only your code can make"
        )
    if kind not in kinds:
        raise ConfigurationError(f"the {what} {kind!r} is none that this version of mqtune can make")
    try:
        return kinds[kind](**arguments)
    except TypeError as error:
        raise ConfigurationError(f"the {what} {kind!r} can't be made by this version of mqtune: {error}") from None
