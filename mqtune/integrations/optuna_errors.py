"""An objective's error, which travels as the names of its types, as an error of these types where the study is."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable
from functools import reduce
from types import ModuleType

from mqtune.extend import TrialFailed, home_of


def name_of(kind: type[BaseException], objective: Callable[..., object]) -> str:
    """Return an error type's name, the same in all processes: a worker has another name for the caller's script."""
    module = "" if kind.__module__ == home_of(objective) else kind.__module__
    return f"{module}:{kind.__qualname__}"


def failure_of(text: str, kinds: Iterable[str], objective: Callable[..., object]) -> TrialFailed:
    """Return a ``TrialFailed`` that is of the objective's error type too, so that ``except ValueError`` catches it.

    It has the text, and nothing else of the error. Of the types, the first counts that this process has imported.
    """
    for name in kinds:
        # A type may refuse to be derived from, or made of a text.
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
    """Return the type of that name; nothing is imported because a message names it.

    Raises:
        LookupError, AttributeError, TypeError: this process has no such type; Exception is none, as each error is one.
    """
    module, _, path = name.partition(":")
    found: ModuleType | type = reduce(getattr, path.split("."), sys.modules[module or home_of(objective)])
    if found is Exception or not (isinstance(found, type) and issubclass(found, Exception)):
        raise TypeError(f"{name} is not one type of error")
    return found
