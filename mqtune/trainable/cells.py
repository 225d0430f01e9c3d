"""Writes a module for a trainable that workers can't import by name, with its values.

Such trainables are notebook cells, lambdas, closures, partials, bound methods and callable instances. The module
imports objects that have a name in a file by that name.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import enum
import functools
import inspect
import logging
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Final, NamedTuple, Self

from mqtune.core.errors import TrainableNotFound
from mqtune.trainable.frozen_code import body_of, guarded, read_source, without_main
from mqtune.trainable.rebuild import as_function, home_of
from mqtune.trainable.sources import (
    DEFINITIONS,
    NoSource,
    captured_values,
    maker_of,
    names_in,
    set_globals,
    set_names,
    source_of,
    submodules_in,
    used_globals,
)
from mqtune.trainable.spec import (
    Function,
    TrainableSpec,
    TrainableStays,
    below_root,
    check_synchronous,
    extras_of,
    is_in_session,
    root_of,
)
from mqtune.trainable.values import MOST_VALUE_BYTES, CannotTravel, UserObject, stored, with_article

#: Maximum length of a value's expression in the module. Longer ones are refused: they are data.
_LONGEST_VALUE: Final = 20_000
_PLAIN: Final = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis), range)
_CONTAINERS: Final = (dict, list, tuple, set, frozenset)
#: Methods by which a class defines how its instances are copied.
_STATE: Final = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__")
#: Variables of a written module: the driver's script, and two modules of mqtune.
_MAIN: Final = "_main"
_REBUILD: Final = "_rebuild"
_VALUES: Final = "_values"


class Cell(NamedTuple):
    """A trainable in a written module. All paths are relative to ``code_root``.

    Attributes:
        spec: the trainable's name in that module.
        file: path of the module.
        source: content of the module.
        script: path of the script whose names the module uses; empty without one.
        values: content of the files with values, by path.
    """

    spec: TrainableSpec
    file: str
    source: bytes
    code_root: Path
    script: str = ""
    values: Mapping[str, bytes] = {}


class Carried(NamedTuple):
    """A trainable that can't be sent. Only this process and its forks have it, in memory.

    Attributes:
        call: the class or function to run in a fork.
        why: the reason why it can't be sent, with a remedy.
    """

    spec: TrainableSpec
    code_root: Path
    call: Function
    why: str

    @classmethod
    def of(cls, trainable: Callable[..., object], why: str) -> Self:
        """Describe a trainable that can't be sent. *why* is the reason."""
        name, home = _name_of(trainable), home_of(trainable)
        call = trainable if isinstance(trainable, FunctionType | type) else as_function(trainable, home, name)
        return cls(*TrainableSpec.in_memory(trainable, name, home), call, why)


def cell_of(trainable: object) -> Cell | None:
    """Write a module for a trainable and return it, or None if the trainable has a name in a file.

    Functions, classes and values are written in their current state. The same trainable with the same values gives the
    same module.

    Raises:
        TrainableNotFound: it can't be a trainable.
        TrainableStays: it uses a value that can't be sent, or it is in no file and its source is unknown.
    """
    if not callable(trainable) or isinstance(trainable, BuiltinFunctionType):
        return None
    is_cell = is_in_session(sys.modules["__main__"]) and getattr(trainable, "__module__", None) == "__main__"
    has_name = isinstance(trainable, FunctionType | type) and "<" not in trainable.__qualname__
    writer = _Writer()
    if isinstance(trainable, FunctionType) and writer.is_made_late(trainable):
        has_name = False
    if (has_name or isinstance(trainable, type)) and not (has_name and is_cell):
        return None
    name = _name_of(trainable)
    # Running the cell again gives a module of the same name.
    module = f"{name}_cell"
    if has_name:
        spec = TrainableSpec.in_module(trainable, module)
        try:
            writer.define(name, trainable)
        except NoSource:
            # The caller uses TrainableSpec.of instead, which raises an error with a remedy.
            return None
    else:
        _check_call(trainable, module, name)
        spec = TrainableSpec(name, module=module)
        writer.write_function(name, trainable)
    if writer.problems:
        ways_out = "Load it inside the function, or put it into a file such as data.py and use `from data import …`"
        if is_cell:
            ways_out += (
                "; or write the whole cell to a file: %%writefile train.py at its top, and then `from train import …`"
            )
        raise TrainableStays(
            f"trainable {name!r} is sent to workers as source, but some values that it uses can't be sent: "
            f"{'; '.join(writer.problems)}. {ways_out}"
        )
    return Cell(
        spec, f"{module}.py", writer.text.encode(), _code_root_of(trainable, writer), writer.script, writer.values
    )


def _name_of(trainable: UserObject) -> str:
    while isinstance(trainable, functools.partial):
        trainable = trainable.func
    name: str = getattr(trainable, "__name__", type(trainable).__name__)
    return name if name.isidentifier() else "trainable"


def _check_call(trainable: Callable[..., object], module: str, name: str) -> None:
    is_function = inspect.isroutine(trainable) or isinstance(trainable, functools.partial)
    check_synchronous(trainable if is_function else type(trainable).__call__, name)
    # Without the cache, which would keep the trainable's values in memory.
    try:
        extras_of.__wrapped__(as_function(trainable, module, name))
    except ValueError as error:
        raise TrainableNotFound(f"trainable {name!r} can't be called with a config: {error}") from None


def _code_root_of(trainable: object, writer: _Writer) -> Path:
    if writer.script:
        return writer.script_root
    home = sys.modules.get(home_of(trainable))
    file = getattr(home, "__file__", None)
    if home is None or file is None or is_in_session(home) or "site-packages" in Path(file).parts:
        return Path.cwd()
    return root_of(home)


class _Writer:
    """Writes a module in which each name is defined before it is used."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        #: Files with values, by path from the module's folder.
        self.values: dict[str, bytes] = {}
        #: Path of the driver's script below ``script_root``, if the module uses it; else empty.
        self.script = ""
        self.script_root = Path()
        self._main = sys.modules["__main__"]
        #: Values of an interactive session or notebook by name; empty if the main module is a file.
        self._session = vars(self._main) if is_in_session(self._main) else {}
        self._seen: set[str] = set()
        self._imports: dict[str, None] = {}
        self._parts: list[str] = []
        #: Variables of written objects, by object id. Keeping the objects keeps their ids valid.
        self._variables: dict[int, tuple[str, object]] = {}
        #: Ids of the objects whose expressions are being written.
        self._in_progress: set[int] = set()
        self._count = 0
        if self._session.get("annotations") is __future__.annotations:
            self._imports["from __future__ import annotations"] = None

    @property
    def text(self) -> str:
        """The module's source."""
        # Imports from the future come first.
        imports = sorted(self._imports, key=lambda line: not line.startswith("from __future__"))
        return "\n".join(imports) + "\n\n\n" + "\n\n\n".join(self._parts) + "\n"

    def write_function(self, name: str, target: Callable[..., object]) -> None:
        """Write a callable as a function with this name."""
        path = name if isinstance(target, FunctionType | functools.partial | MethodType) else "self"
        written = self._expression(target, path)
        self._add_import("mqtune.trainable.rebuild", _REBUILD)
        self._parts.append(f"{name} = {_REBUILD}.as_function({written}, __name__, {name!r})")

    # Names of a session.

    def define(self, name: str, value: object) -> None:
        """Write a session's name and its value, unless that was done before."""
        if name in self._seen:
            return
        self._seen.add(name)
        is_here = callable(value) and getattr(value, "__module__", None) == "__main__" and hasattr(value, "__name__")
        if is_here and "<locals>" not in getattr(value, "__qualname__", ""):
            self._define_by_source(name, value)
        elif (line := _import_line(name, value)) is not None:
            self._imports[line] = None
        else:
            self._parts.append(f"{name} = {self._expression(value, name)}")

    def _define_by_source(self, name: str, value: UserObject) -> None:
        source = source_of(name, value)
        self._define_used(source)
        self._parts.append(source)
        if value.__name__ not in (name, "<lambda>"):
            self._parts.append(f"{name} = {value.__name__}")

    def _define_used(self, source: str) -> None:
        for used in names_in(source):
            if used not in self._session or used.startswith("__") or _is_builtin(used, self._session[used]):
                continue
            value = self._session[used]
            try:
                self.define(used, value)
            except CannotTravel as error:
                self.problems.append(f"{used}, {error}")
            if isinstance(value, ModuleType):
                self._imports |= dict.fromkeys(submodules_in(source, used, value.__name__))

    # Values.

    def _expression(self, value: object, path: str) -> str:
        """Return an expression for a value. If it can't be sent, return "None" and note the problem.

        *path* names the value in the problem.
        """
        if id(value) in self._variables:
            return self._variables[id(value)][0]
        try:
            if id(value) in self._in_progress:
                raise CannotTravel(f"{with_article(type(value))} that refers to itself")
            self._in_progress.add(id(value))
            try:
                return self._new_expression(value, path)
            finally:
                self._in_progress.discard(id(value))
        except CannotTravel as error:
            self.problems.append(f"{path}, {error}")
            return "None"

    def _new_expression(self, value: UserObject, path: str) -> str:
        kind = type(value)
        if kind in _CONTAINERS:
            return _check_length(self._container_expression(value, path), kind)
        if (plain := _plain_expression(value)) is not None:
            return _check_length(plain, kind)
        if isinstance(value, ModuleType):
            return self._module_expression(value)
        if kind is FunctionType:
            return self._function_expression(value)
        if kind is functools.partial:
            return self._partial_expression(value, path)
        if kind is MethodType:
            owner = self._expression(value.__self__, "self" if not isinstance(value.__self__, type) else path)
            return f"{owner}.{_attribute_of(value)}"
        if isinstance(value, enum.Enum):
            return f"{self._reference(kind, kind)}[{value.name!r}]"
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return f"{self._reference(kind, kind)}._make({self._container_expression([*value], path)})"
        if kind is SimpleNamespace:
            return self._add_variable(
                value,
                f"{self._import_alias('types')}.SimpleNamespace(**{self._container_expression(vars(value), path)})",
            )
        if isinstance(value, logging.Logger):
            return f"{self._import_alias('logging')}.getLogger({value.name!r})"
        if (kept := stored(value)) is not None:
            return self._add_variable(value, self._store_file(kept.name, kept.content, kept.call))
        if isinstance(value, type) or hasattr(value, "__qualname__") or _import_line("", value) is not None:
            return self._reference(value, kind)
        return self._instance_expression(value, path)

    def _container_expression(self, value: UserObject, path: str) -> str:
        if isinstance(value, dict):
            pairs = (
                (self._expression(key, path), self._expression(inner, f"{path}[{key!r:.40}]"))
                for key, inner in value.items()
            )
            return f"{{{', '.join(f'{key}: {inner}' for key, inner in pairs)}}}"
        texts = [self._expression(inner, f"{path}[{number}]") for number, inner in enumerate(value)]
        if isinstance(value, set | frozenset):
            # Their order differs between processes.
            inner = ", ".join(sorted(texts))
            return f"frozenset([{inner}])" if isinstance(value, frozenset) else f"{{{inner}}}" if texts else "set()"
        inner = ", ".join(texts)
        return f"[{inner}]" if isinstance(value, list) else f"({inner},)" if len(texts) == 1 else f"({inner})"

    def _store_file(self, name: str, content: bytes, call: str) -> str:
        self.values[name] = content
        if sum(map(len, self.values.values())) > MOST_VALUE_BYTES:
            raise CannotTravel(f"which brings all values together to more than {MOST_VALUE_BYTES / 1e6:.0f} MB")
        self._add_import("mqtune.trainable.values", _VALUES)
        return f"{_VALUES}.{call.format(f'{_VALUES}.beside(__file__, {name!r})')}"

    def _partial_expression(self, value: functools.partial[UserObject], path: str) -> str:
        given = [self._expression(value.func, _name_of(value.func))]
        given += [
            self._expression(argument, f"argument {number} of {path}") for number, argument in enumerate(value.args, 1)
        ]
        named = {name: self._expression(argument, name) for name, argument in value.keywords.items()}
        more = f"**{{{', '.join(f'{name!r}: {text}' for name, text in named.items())}}}"
        return f"{self._import_alias('functools')}.partial({', '.join([*given, more] if named else given)})"

    def _instance_expression(self, value: UserObject, path: str) -> str:
        kind = type(value)
        if why := _why_no_instance(kind):
            raise CannotTravel(f"{with_article(kind)}, {why}")
        name = self._add_variable(value, f"object.__new__({self._reference(kind, kind)})")
        attributes = [f"{name!r}: {self._expression(inner, f'{path}.{name}')}" for name, inner in vars(value).items()]
        self._parts.append(f"{name}.__dict__.update({{{', '.join(attributes)}}})")
        return name

    # Objects with a name in a file.

    def _reference(self, value: UserObject, kind: type) -> str:
        """Return an expression that refers to a class or another object by its name.

        Raises:
            CannotTravel: workers could not import it by its name.
        """
        named = f"the class {value.__name__}" if isinstance(value, type) else with_article(kind)
        module, path = (
            getattr(value, "__module__", None),
            getattr(value, "__qualname__", getattr(value, "__name__", "")),
        )
        if isinstance(value, BuiltinFunctionType) and not isinstance(value.__self__, ModuleType):
            raise CannotTravel(f"{named}, which is not a plain value")
        if self._session and module == "__main__":
            first = path.partition(".")[0]
            if _value_at(self._session, path) is not value:
                raise CannotTravel(
                    f"{named}, but {first} was redefined or deleted since: run the code that makes this value again"
                )
            self.define(first, self._session[first])
            return str(path)
        holder = sys.modules.get(str(module))
        if holder is None or _value_at(vars(holder), path) is not value:
            raise CannotTravel(f"{named}, which is not at the top level of a file")
        if self.is_made_late(value):
            raise CannotTravel(f"{named}, which is below the main guard, or made by exec: put it above")
        if module == "builtins":
            return str(path)
        self._write_changed_globals(value)
        return f"{self._module_expression(holder)}.{path}"

    def _module_expression(self, module: ModuleType) -> str:
        if module is not self._main:
            return self._import_alias(module.__name__)
        spec = getattr(module, "__spec__", None)
        if spec is not None and spec.name != "__main__":
            return self._import_alias(spec.name)
        if self._session:
            raise CannotTravel("the module __main__ of a notebook")
        if not self.script:
            self.script, self.script_root = below_root(Path(str(module.__file__)))
            self._add_import("mqtune.trainable.rebuild", _REBUILD)
            self._parts.insert(0, f"{_MAIN} = {_REBUILD}.script(__file__, {self.script!r})")
        return _MAIN

    def _import_alias(self, module: str) -> str:
        alias = f"_{module.replace('.', '_')}"
        self._add_import(module, alias)
        return alias

    def _add_import(self, module: str, alias: str) -> None:
        self._imports[f"import {module} as {alias}"] = None

    def _add_variable(self, value: object, text: str) -> str:
        self._count += 1
        name = f"_{self._count}_"
        self._parts.append(f"{name} = {text}")
        self._variables[id(value)] = name, value
        return name

    # Functions without a name in a file.

    def _function_expression(self, value: FunctionType) -> str:
        path, names = value.__qualname__, value.__globals__
        holder = next(
            (module for module in list(sys.modules.values()) if getattr(module, "__dict__", None) is names), None
        )
        if holder is None:
            raise NoSource(
                f"a function whose module {names.get('__name__')!r} is not imported: define it in a file, and import "
                "that"
            )
        if _value_at(names, path) is value and not self.is_made_late(value):
            return self._reference(value, FunctionType)
        maker = maker_of(value)
        if value.__code__.co_flags & __future__.annotations.compiler_flag:
            self._imports["from __future__ import annotations"] = None
        captured = [self._expression(*pair) for pair in captured_values(value)]
        self._count += 1
        maker.name = f"_make_{self._count}"
        if names is self._session:
            self._define_used(ast.unparse(maker))
            place = ""
        else:
            self._add_import("mqtune.trainable.rebuild", _REBUILD)
            place = f"@{_REBUILD}.within({self._module_expression(holder)})\n"
        self._parts.append(place + ast.unparse(maker))
        name = self._add_variable(value, f"{maker.name}({', '.join(captured)})")
        if value.__defaults__:
            self._parts.append(f"{name}.__defaults__ = {self._container_expression(value.__defaults__, 'a default')}")
        if value.__kwdefaults__:
            self._parts.append(
                f"{name}.__kwdefaults__ = {self._container_expression(value.__kwdefaults__, 'a default')}"
            )
        if vars(value):
            self._parts.append(f"{name}.__dict__.update({self._container_expression(vars(value), value.__name__)})")
        self._write_changed_globals(value)
        return name

    # Names of a script that get their values in its main block.

    def is_made_late(self, value: UserObject) -> bool:
        """Whether a script's function or class is defined in its main block, or by ``exec`` there.

        No worker executes that block.
        """
        if value.__module__ != "__main__" or self._source is None:
            return False
        if value.__qualname__.partition(".")[0] in self._guarded[0]:
            return True
        if not isinstance(value, FunctionType) or not inspect.unwrap(value).__code__.co_filename.startswith("<"):
            return False
        top = [node for node in body_of(without_main(self._source)) if not isinstance(node, DEFINITIONS)]
        calls = [node.func for node in ast.walk(ast.Module(top, [])) if isinstance(node, ast.Call)]
        runs_text = any(isinstance(called, ast.Name) and called.id == "exec" for called in calls)
        return not runs_text and value.__name__ not in set_names(top)

    @functools.cached_property
    def _source(self) -> bytes | None:
        """The source of the driver's script. None in an interactive session."""
        file = getattr(self._main, "__file__", None)
        return None if self._session or file is None else read_source(Path(file))

    @functools.cached_property
    def _guarded(self) -> tuple[set[str], set[str]]:
        """Names set by the script's main block, and names set by global statements in its functions."""
        source = self._source
        return (set(), set()) if source is None else (set_names(guarded(source)), set_globals(source))

    def _write_changed_globals(self, value: object) -> None:
        """Write the script's globals that an object uses and whose values may differ after an import."""
        by_block, by_functions = self._guarded
        names = vars(self._main)
        if not (by_block or by_functions) or getattr(value, "__module__", None) != "__main__":
            return
        for used in used_globals(value, names):
            if used in self._seen or used not in by_block | by_functions or used not in names:
                continue
            self._seen.add(used)
            before = len(self.problems)
            text = self._expression(names[used], used)
            if used not in by_block and len(self.problems) > before:
                # For example a cache, which the trial fills itself.
                del self.problems[before:]
                continue
            self._parts.append(f"{self._module_expression(self._main)}.{used} = {text}")


# Values.


def _value_at(names: Mapping[str, object], path: str) -> object:
    first, *others = path.split(".")
    return functools.reduce(lambda value, name: getattr(value, name, None), others, names.get(first))


def _import_line(name: str, value: object) -> str | None:
    if isinstance(value, ModuleType):
        return f"import {name}" if value.__name__ == name else f"import {value.__name__} as {name}"
    # NumPy's functions, for example, name another module than the one that defines them.
    module, home = getattr(value, "__module__", None), getattr(value, "__name__", None) or name
    if not isinstance(module, str) or module == "__main__":
        return None
    if getattr(sys.modules.get(module), str(home), None) is not value:
        return None
    return f"from {module} import {home}" + (f" as {name}" if name != home else "")


def _is_builtin(name: str, value: object) -> bool:
    """Whether a name is Python's own, or a notebook's replacement for that, such as for ``open``."""
    if name not in vars(builtins):
        return False
    stands_for = inspect.unwrap(value) if callable(value) else value
    return stands_for is getattr(builtins, name) or type(value).__module__.startswith("IPython.")


def _plain_expression(value: UserObject) -> str | None:
    kind = type(value)
    if isinstance(value, PurePath):
        return f"__import__('pathlib').{kind.__name__.removeprefix('Posix')}({str(value)!r})"
    if kind is float and not math.isfinite(value):
        return f"float({str(value)!r})"
    if kind is complex:
        return f"complex({_plain_expression(value.real)}, {_plain_expression(value.imag)})"
    if kind in _PLAIN:
        return repr(value)
    if (numpy := sys.modules.get("numpy")) is not None and isinstance(value, numpy.generic):
        plain = value.item()
        return f"__import__('numpy').{kind.__name__}({_plain_expression(plain)})" if type(plain) in _PLAIN else None
    if kind.__module__ == "torch" and kind.__name__ in ("device", "dtype"):
        name = str(value).removeprefix("torch.")
        return f"__import__('torch').{name if kind.__name__ == 'dtype' else f'device({name!r})'}"
    return None


def _check_length(text: str, kind: type) -> str:
    if len(text) > _LONGEST_VALUE:
        raise CannotTravel(f"{with_article(kind)} with more than {_LONGEST_VALUE:,} characters")
    return text


def _why_no_instance(kind: type) -> str:
    """Return why an instance can't be rebuilt from its class and attributes. Empty if it can be."""
    made = [class_ for class_ in kind.__mro__ if class_ is not object]
    maker: object = kind.__new__
    slots = {name for method in made for name in _slots_of(method)} - {"__dict__", "__weakref__"}
    if slots:
        return f"whose class has __slots__: {', '.join(sorted(slots))}"
    # An instance of a class written in C is larger, as it has values beside its attributes.
    if not kind.__dictoffset__ or maker is not object.__new__ or kind.__basicsize__ > _Writer.__basicsize__:
        return "which is not a plain value"
    if any(getattr(kind, name, None) is not getattr(object, name, None) for name in _STATE):
        return "whose class has its own way to be copied"
    return ""


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _attribute_of(method: MethodType) -> str:
    """Return the name of a bound method in its class. Its function may have another name.

    Raises:
        CannotTravel: the owner's class lacks the method, for instance because it was bound by hand.
    """
    owner, function = method.__self__, method.__func__
    kind = owner if isinstance(owner, type) else type(owner)
    own = getattr(owner, "__dict__", {}) if kind is not owner else {}
    for name in (function.__name__, *dir(kind)):
        attribute = inspect.getattr_static(kind, name, None)
        if (attribute is function or getattr(attribute, "__func__", None) is function) and name not in own:
            return name
    raise CannotTravel(f"the method {function.__name__!r}, which its class does not have")
