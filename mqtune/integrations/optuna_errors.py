"""Sends an objective's error by the names of its types, and rebuilds it in the study's process."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable
from functools import reduce
from types import ModuleType

from mqtune.extend import TrialFailed, home_of


def name_of(kind: type[BaseException], objective: Callable[..., object]) -> str:
    """Return an error type's name as "module:name". The module is empty for the caller's script."""
    module = "" if kind.__module__ == home_of(objective) else kind.__module__
    return f"{module}:{kind.__qualname__}"


def failure_of(text: str, kinds: Iterable[str], objective: Callable[..., object]) -> TrialFailed:
    """Return a ``TrialFailed`` that ``except`` also catches as the objective's type of error.

    It has only the error's text. Its type is the first of *kinds* that this process has imported.
    """
    for name in kinds:
        # A type may refuse subclasses, or a text.
        with contextlib.suppress(Exception):
            kind = _type_named(name, objective)
            own = {"__init__": _init, "__str__": Exception.__str__, "__repr__": Exception.__repr__}
            derived = type(kind.__name__, (TrialFailed, kind), {"__module__": kind.__module__, **own})
            failed: TrialFailed = derived(text)
            return failed
    return TrialFailed(text)


def _init(self: Exception, text: str) -> None:
    Exception.__init__(self, text)


def _type_named(name: str, objective: Callable[..., object]) -> type[Exception]:
    """Return the type of that name, without importing anything.

    Raises:
        LookupError, AttributeError, TypeError: this process has no such type, or it is Exception itself.
    """
    module, _, path = name.partition(":")
    kind: ModuleType | type = reduce(getattr, path.split("."), sys.modules[module or home_of(objective)])
    if kind is Exception or not (isinstance(kind, type) and issubclass(kind, Exception)):
        raise TypeError(f"{name} is not one type of error")
    return kind
