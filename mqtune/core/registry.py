"""Descriptions of schedulers, searchers and stop rules in a definition.

With them an experiment can continue without its script.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from inspect import Parameter, signature
from pkgutil import iter_modules
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeVar

from mqtune.core.entry_points import is_added, load_point, names_in
from mqtune.core.errors import ConfigurationError

#: Key of a user's class. It can't be rebuilt from its description.
CLASS: Final = "class"
#: A kind and the arguments of its constructor, as values for a message.
Description = dict[str, Any]
#: The package with mqtune's own classes. A definition may import other packages through entry points only.
_OWN_PACKAGE: Final = __name__.partition(".")[0]


T = TypeVar("T", bound="Registered")


class Registered:
    """Base of things that a definition describes by kind and constructor arguments.

    These are schedulers, searchers and stop rules. A class with a ``kind`` is registered: mqtune's own classes by being
    in their base class's package, others by an entry point of that name. The class keeps each constructor argument in
    an attribute of the same name with a leading underscore; ``describe`` reads it.
    """

    #: Its role, and the key of its kind in a description: "scheduler", "searcher" or "rule".
    role: ClassVar[str]
    #: Name of the class in descriptions. It never changes, because existing experiments name it.
    kind: ClassVar[str] = ""
    #: Arguments that later versions added, each with the value that stands for the old behaviour. Descriptions leave
    #: these values out, so descriptions by older versions stay equal.
    later: ClassVar[Mapping[str, object]] = {}
    #: Group of entry points that add kinds. An entry point is imported only if a description names it.
    group: ClassVar[str] = ""

    def describe(self) -> Description:
        """Return the object's kind and constructor arguments, as values for a message.

        Override it in a class that keeps its arguments elsewhere.

        Raises:
            ConfigurationError: the object does not keep an argument in the attribute ``_<argument>``.
        """
        # A class derived from one of mqtune's may have its own constructor.
        owner = next((class_ for class_ in type(self).__mro__ if vars(class_).get("kind")), type(self))
        arguments = {name: self._argument(name) for name in _arguments(owner)}
        return {
            self.role: self.kind or type(self).__name__,
            **{name: value for name, value in arguments.items() if name not in self.later or value != self.later[name]},
        }

    def _argument(self, name: str) -> object:
        try:
            value: object = getattr(self, f"_{name}")
        except AttributeError:
            raise ConfigurationError(
                f"{type(self).__name__} has no attribute _{name}; keep the constructor's arguments in attributes of "
                "this form, or define describe()"
            ) from None
        if hasattr(value, "describe"):
            return value.describe()
        return "" if value is None else copy.deepcopy(value)

    @classmethod
    def rebuild(cls, description: Mapping[str, object]) -> Self:
        """Make the described object, in its initial state.

        Call this on ``Scheduler``, ``Searcher`` or ``StopRule``. The description must be of one of its subclasses.

        Args:
            description: a result of ``described``.

        Raises:
            ConfigurationError: the object needs the user's class or function, or this version doesn't know its kind.
        """
        arguments = dict(description)
        kind = arguments.pop(cls.role, None)
        if CLASS in arguments:
            raise ConfigurationError(
                f"the {cls.role} is an object of your own class {arguments[CLASS]}, which only your code can make"
            )
        known = _kinds(cls)
        if kind not in known and cls.group and kind in names_in(cls.group):
            load_point(cls.group, str(kind))
            known = _kinds(cls)
        if kind not in known:
            raise ConfigurationError(f"this version of mqtune does not know the {cls.role} {kind!r}")
        try:
            return known[kind].from_arguments(arguments)
        except (KeyError, TypeError, ConfigurationError) as error:
            raise ConfigurationError(
                f"the {cls.role} {kind!r} can't be made by this version of mqtune: {error}"
            ) from None

    @classmethod
    def from_arguments(cls, arguments: Description) -> Self:
        """Make an object from described arguments. An empty text stands for None."""
        return cls(**{name: None if value == "" else value for name, value in arguments.items()})


@cache
def _arguments(kind: type) -> tuple[str, ...]:
    parameters = signature(kind).parameters.values()
    return tuple(
        parameter.name
        for parameter in parameters
        if parameter.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    )


def _kinds(base: type[T]) -> dict[str, type[T]]:
    package = import_module(base.__module__.rpartition(".")[0])
    for module in iter_modules(package.__path__, f"{package.__name__}."):
        import_module(module.name)
    return {
        subclass.kind: subclass
        for subclass in _subclasses(base)
        if "kind" in vars(subclass) and _is_registered(subclass)
    }


def _subclasses(base: type[T]) -> Iterator[type[T]]:
    for subclass in base.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _is_own(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == _OWN_PACKAGE


def _is_registered(kind: type[Registered]) -> bool:
    return _is_own(kind) or (bool(kind.group) and is_added(kind.group, kind))


def described(thing: Registered) -> Description:
    """Return the description of *thing*.

    A user's class adds its own name, even if it inherits a kind of mqtune's.
    """
    kind, description = type(thing), thing.describe()
    return description if _is_registered(kind) else {**description, CLASS: f"{kind.__module__}:{kind.__qualname__}"}


class Difference(NamedTuple):
    """A value that differs between two descriptions, such as ``scheduler.max_t``."""

    name: str
    was: object
    is_: object

    def __str__(self) -> str:
        return f"{self.name}: {_short(self.was)} → {_short(self.is_)}"


def differences(name: str, was: object, is_: object) -> Iterator[Difference]:
    """Yield the differences of two descriptions.

    If the kinds differ, yield only that difference. *name* is the name of the described thing, such as ``scheduler``.
    """
    # NaN is not equal to itself, but counts as the same value here.
    if was == is_ or repr(was) == repr(is_):
        return
    if isinstance(was, Mapping) and isinstance(is_, Mapping) and was.keys() & is_.keys():
        kind = name.rpartition(".")[2]
        if kind in was and kind in is_ and was[kind] != is_[kind]:
            yield Difference(name, was[kind], is_[kind])
            return
        for key in {**was, **is_}:
            yield from differences(f"{name}.{key}", was.get(key, _MISSING), is_.get(key, _MISSING))
        return
    yield Difference(name, was, is_)


_MISSING: Final = object()
#: Maximum length of a value in an error.
_SHOWN_CHARS: Final = 200


def _short(value: object) -> str:
    if value is _MISSING:
        return "(unset)"
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
