"""Makes a module of a trainable that is in no file, such as one from a notebook's cell: its source, and what that uses."""

from __future__ import annotations
import __future__

import ast
import builtins
import inspect
import linecache
import math
import symtable
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import PurePath
from types import FunctionType, ModuleType
from typing import Final, NamedTuple

from mqtune.core.errors import TrainableNotFound
from mqtune.trainable.frozen_code import body_of
from mqtune.trainable.spec import TrainableSpec, is_in_session

#: The longest text of a value that is written into the module: what a person writes is shorter, and what is longer is data.
_LONGEST_VALUE: Final = 20_000
_CONTAINERS: Final = (dict, list, tuple, set)
_PLAIN: Final = (int, float, complex, str, bytes, bool, type(None))
_DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Cell(NamedTuple):
    """A trainable of a session, by its name in a module, and that module's file and source."""

    spec: TrainableSpec
    file: str
    source: bytes


class _CannotTravel(Exception):
    """A value can't be written into a module; the text says which, and why."""


class _NoSource(Exception):
    """The source of something is not known here."""


def cell_of(trainable: object) -> Cell | None:
    """Return the module of a function or class that a session without a file has defined; None for any other trainable.

    Functions, classes and plain values of the session that it uses are written into it as they are now; what comes from other
    modules is imported there.

    Raises:
        TrainableNotFound: it can't be one, or uses what can't be written down.
    """
    main = sys.modules["__main__"]
    if not isinstance(trainable, FunctionType | type) or trainable.__module__ != "__main__" or not is_in_session(main):
        return None
    # Its name is the same when its cell is run again.
    module = f"{trainable.__name__}_cell"
    spec = TrainableSpec.in_module(trainable, module)
    writer = _Writer(vars(main))
    try:
        writer.define(trainable.__name__, trainable)
    except _NoSource:
        # What TrainableSpec.of says then is all that can be done.
        return None
    if writer.problems:
        raise TrainableNotFound(
            f"trainable {spec.name!r} is defined in a cell, and workers can't have what it uses: {'; '.join(writer.problems)}. "
            "Make it inside the function, or read it from a file there; or write the whole cell to a file: %%writefile train.py at "
            "its top, and then `from train import …`"
        )
    return Cell(spec, f"{module}.py", writer.text.encode())


class _Writer:
    """Writes a module, each name behind those that it needs when it is defined.

    Args:
        session: the names of the session.
    """

    def __init__(self, session: dict[str, object]) -> None:
        self.problems: list[str] = []
        self._session = session
        self._seen: set[str] = set()
        self._imports: dict[str, None] = {}
        self._parts: list[str] = []
        if session.get("annotations") is __future__.annotations:
            self._imports["from __future__ import annotations"] = None

    @property
    def text(self) -> str:
        """The module's source."""
        return "\n".join(self._imports) + "\n\n\n" + "\n\n\n".join(self._parts) + "\n"

    def define(self, name: str, value: object) -> None:
        """Write what gives a name its value, unless that was done."""
        if name in self._seen:
            return
        self._seen.add(name)
        if callable(value) and getattr(value, "__module__", None) == "__main__" and hasattr(value, "__name__"):
            self._define_here(name, value)
        elif (line := _import_of(name, value)) is not None:
            self._imports[line] = None
        else:
            self._parts.append(f"{name} = {_text_of(value)}")

    def _define_here(self, name: str, value: Callable[..., object]) -> None:
        source = _source_of(name, value)
        for used in _names_in(source):
            if used not in self._session or used.startswith("__") or _is_builtin(used, self._session[used]):
                continue
            found = self._session[used]
            try:
                self.define(used, found)
            except (_CannotTravel, _NoSource) as error:
                self.problems.append(f"{used}, {error}")
            if isinstance(found, ModuleType):
                self._imports |= dict.fromkeys(_submodules_in(source, used, found.__name__))
        self._parts.append(source)
        if value.__name__ not in (name, "<lambda>"):
            self._parts.append(f"{name} = {value.__name__}")


# Sources.


def _source_of(name: str, value: Callable[..., object]) -> str:
    """Return the source of a function or class: of its definition, or of the assignment of a lambda.

    Raises:
        _NoSource: it is not known.
    """
    inner = _method_of(value) if isinstance(value, type) else inspect.unwrap(value)
    if isinstance(inner, FunctionType):
        lines = linecache.getlines(inner.__code__.co_filename)
        for node in _definitions("".join(lines), name, value.__name__):
            first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
            last = node.end_lineno or first
            if first <= inner.__code__.co_firstlineno <= last:
                return textwrap.dedent("".join(lines[first - 1 : last])).rstrip()
    raise _NoSource(f"a {type(value).__name__} whose source is not known")


def _method_of(value: type) -> object:
    """Return a method that stands in the definition of a class; only methods know where that is."""
    own = (inspect.unwrap(each) for each in map(_function_in, vars(value).values()) if isinstance(each, FunctionType))
    return next((each for each in own if linecache.getlines(each.__code__.co_filename)), None)


def _function_in(found: object) -> object:
    if isinstance(found, property):
        return found.fget
    return found.__func__ if isinstance(found, classmethod | staticmethod) else found


def _definitions(cell: str, *names: str) -> Iterator[ast.stmt]:
    for node in ast.walk(ast.Module(body_of(cell), [])):
        if (isinstance(node, _DEFINITIONS) and node.name in names) or (
            isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda) and _targets(node) == [names[0]]
        ):
            yield node


def _targets(node: ast.Assign) -> list[str]:
    return [each.id for each in node.targets if isinstance(each, ast.Name)]


def _names_in(source: str) -> list[str]:
    """Return the names that a source uses from around it, in order."""
    tables, found = [symtable.symtable(source, "a cell", "exec")], dict[str, None]()
    for table in tables:
        tables += table.get_children()
        for symbol in table.get_symbols():
            if symbol.is_global() or (table.get_type() == "module" and symbol.is_referenced()):
                found[symbol.get_name()] = None
    return list(found)


def _submodules_in(source: str, name: str, module: str) -> Iterator[str]:
    """Yield the imports of those parts of a module that a source names behind it, such as ``a.b`` where it has ``a.b.c()``."""
    for node in ast.walk(ast.Module(body_of(source), [])):
        path = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
        inner = f"{module}{path.removeprefix(name)}"
        if path.startswith(f"{name}.") and inner in sys.modules:
            yield f"import {inner}"


# Values.


def _import_of(name: str, value: object) -> str | None:
    """Return the import that gives a name its value; None if there is none."""
    if isinstance(value, ModuleType):
        return f"import {name}" if value.__name__ == name else f"import {value.__name__} as {name}"
    # NumPy's functions, and the like, say where they are under another name than theirs.
    module, there = getattr(value, "__module__", None), getattr(value, "__name__", None) or name
    if not isinstance(module, str) or module == "__main__":
        return None
    if getattr(sys.modules.get(module), str(there), None) is not value:
        return None
    return f"from {module} import {there}" + (f" as {name}" if name != there else "")


def _is_builtin(name: str, value: object) -> bool:
    """Whether a name is Python's own, or stands for that in a notebook, which has functions of its own for ``open`` and others."""
    if name not in vars(builtins):
        return False
    stands_for = inspect.unwrap(value) if callable(value) else value
    return stands_for is getattr(builtins, name) or type(value).__module__.startswith("IPython.")


def _text_of(value: object) -> str:
    """Return the text that has a plain value.

    Raises:
        _CannotTravel: it is not one, or too long.
    """
    kind = type(value)
    if isinstance(value, PurePath):
        return f"__import__('pathlib').{kind.__name__.removeprefix('Posix')}({str(value)!r})"
    if not _is_plain(value):
        raise _CannotTravel(f"{_a(kind.__name__)}, no plain value")
    text = repr(value)
    if isinstance(value, float) and not math.isfinite(value):
        text = f"float({text!r})"
    if len(text) > _LONGEST_VALUE:
        raise _CannotTravel(f"{_a(kind.__name__)} with more than {_LONGEST_VALUE:,} characters")
    return text


def _a(kind: str) -> str:
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


def _is_plain(value: object, *, is_inner: bool = False) -> bool:
    """Whether a value is what its ``repr`` makes; a number that is not finite has none within another value."""
    kind = type(value)
    if kind in _CONTAINERS and isinstance(value, dict | list | tuple | set):
        inner = [*value, *value.values()] if isinstance(value, dict) else value
        return all(_is_plain(each, is_inner=True) for each in inner)
    return kind in _PLAIN and not (is_inner and isinstance(value, float) and not math.isfinite(value))
