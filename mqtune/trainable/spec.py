"""A trainable's name for messages, and its import on a worker, below a code root."""

from __future__ import annotations

import builtins
import functools
import importlib
import inspect
import io
import os
import re
import reprlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, NoReturn, cast, get_args

from mqtune.core.calls import signature_of
from mqtune.core.errors import TrainableLost, TrainableNotFound
from mqtune.trainable import main_module
from mqtune.trainable.script_arguments import Item, Script, are_items, are_patterns

Function = Callable[..., Any]
#: A function, a class derived from ``mqtune.Trainable``, or a script by its path or with its arguments.
AnyTrainable = Function | str | os.PathLike[str] | Script
#: A loaded trainable: a function, a class, or a script's path.
Loaded = Function | Path
Kind = Literal["function", "class", "script"]
_KINDS: Final = get_args(Kind)

#: Longer than any valid path.
_LONGEST_NAME: Final = 4_096
#: Parameters that a function may have beside the config, and that mqtune fills.
_EXTRAS: Final = ("reporter", "checkpoint_dir")
#: Path of an adapter: a module of mqtune, and a name in it. A message must not import anything else.
_ADAPTER: Final = re.compile(r"mqtune(?:\.[a-z][a-z0-9_]*)+:[a-z][a-z0-9_]*")
_WAY_OUT: Final = 'workers import it to find the trainable: put that below `if __name__ == "__main__":`'

_importing: list[Path] = []
#: The trainable that this fork of the driver has in memory; None in any other process.
_carried: Function | None = None
_adapters: list[Callable[[Function], Function]] = []
_BY_NAME: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class TrainableStays(TrainableNotFound):
    """The trainable can't be sent to workers. It can run in forks of this process."""


@dataclass(frozen=True, slots=True)
class TrainableSpec:
    """A trainable by name, for messages. Either ``module`` or ``script`` is set.

    Attributes:
        name: name of the function or class in the module or script. A ``kind`` "script" is a whole program.
        module: name of the module.
        script: path of the file below the code root.
        adapter: path, ``module:name``, of the adapter of another library's function; see ``adapter``. Empty without
            one.
        is_main: whether the module was run by ``python -m``. Then it is the main module of each trial, too.
        is_carried: whether only the driver and its forks have the trainable, in memory. Its file may be unknown.
        arguments: the arguments of a ``Script``.
        metrics: the patterns of a ``Script``.
    """

    name: str
    module: str = ""
    script: str = ""
    kind: Kind = "function"
    adapter: str = ""
    is_main: bool = False
    is_carried: bool = False
    arguments: tuple[Item, ...] = ()
    metrics: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.kind == "script":
            return self.script or f"-m {self.module}"
        return f"{self.module or self.script}:{self.name}"

    def encode(self) -> dict[str, object]:
        """Return plain values for a message."""
        values = asdict(self) | {"arguments": [list(item) for item in self.arguments], "metrics": list(self.metrics)}
        # Only if they are set: definitions of earlier versions have no such fields.
        return {key: value for key, value in values.items() if value or key not in _OPTIONAL}

    @classmethod
    def decode(cls, values: Mapping[str, Any]) -> TrainableSpec:
        """Return the spec that ``encode`` has encoded. Unknown fields are ignored.

        Raises:
            TrainableNotFound: the values are invalid.
        """
        known = {name: values[name] for name in _FIELDS if name in values}
        texts = [known.get("name"), known.get("module", ""), known.get("script", "")]
        is_named = all(isinstance(text, str) and "\0" not in text and len(text) <= _LONGEST_NAME for text in texts)
        kind, adapter = known.get("kind", "function"), known.get("adapter", "")
        is_known = kind in _KINDS and (adapter == "" or (kind == "function" and _is_path(adapter)))
        is_known = is_known and all(isinstance(known.get(name, False), bool) for name in ("is_main", "is_carried"))
        arguments, metrics = known.get("arguments", ()), known.get("metrics", ())
        is_call = are_items(arguments) and are_patterns(metrics) and (kind == "script" or not (arguments or metrics))
        if not (is_named and is_known and is_call):
            raise TrainableNotFound(
                f"{reprlib.repr(known)} names no trainable: its driver runs another version of mqtune, or is not "
                "mqtune's"
            )
        return cls(**known | {"arguments": tuple(map(tuple, arguments)), "metrics": tuple(metrics)})

    @classmethod
    def of(cls, trainable: object, *, adapter: str = "") -> tuple[TrainableSpec, Path]:
        """Return the spec of a function, class or script, and its code root on this machine.

        A function with an *adapter* may have other parameters, which the adapter fills.

        Raises:
            TrainableNotFound: it can't be a trainable, or (TrainableStays) workers can't import it.
        """
        if isinstance(trainable, str | os.PathLike):
            return _name_script(Path(os.fspath(trainable)))
        if isinstance(trainable, Script):
            spec, code_root = (
                _name_module(trainable.module) if trainable.module else _name_script(Path(trainable.program))
            )
            return replace(spec, arguments=trainable.items, metrics=trainable.metrics), code_root
        if isinstance(trainable, functools.partial):
            raise TrainableNotFound(
                f"trainable {trainable!r} has no name by which workers could import it; put its arguments into the "
                "search space as constants, or write a function at the top level of a module that passes them on"
            )
        if not inspect.isfunction(trainable) and not inspect.isclass(trainable):
            raise TrainableNotFound(
                f"trainable {trainable!r} is not a function, a class or the path of a script; "
                "give a function that takes the config"
            )
        return cls._of_named(trainable, adapter)

    @classmethod
    def in_module(cls, trainable: Function | type, module: str) -> TrainableSpec:
        """Return the spec of a function or class in a written module.

        Raises:
            TrainableNotFound: it can't be a trainable.
        """
        return cls(trainable.__qualname__, module=module, kind=_checked_kind(trainable))

    @classmethod
    def _of_named(cls, trainable: Function, adapter: str) -> tuple[TrainableSpec, Path]:
        kind, name = _checked_kind(trainable, adapter), trainable.__qualname__
        if "<" in name:
            raise TrainableStays(
                f"trainable {name!r} is defined inside a function or is a lambda, so workers can't import it; "
                "move it to the top level of its module"
            )
        spec, root = cls(name, kind=kind, adapter=adapter)._placed_in(sys.modules.get(str(trainable.__module__)))
        if not (spec.module or spec.script):
            raise TrainableStays(
                f"trainable {name!r} is in no file (it came from python -c, standard input, exec, a notebook or an "
                "interactive "
                "session), so workers can't import it; put it into one, such as train.py, and run or import that: in a "
                "notebook the line %%writefile train.py at the top of its cell does it, and then `from train import …`"
            )
        return spec, root

    @classmethod
    def in_memory(cls, trainable: object, name: str, home: str) -> tuple[TrainableSpec, Path]:
        """Return the spec of a trainable that only forks of this process have, and its code root.

        Args:
            trainable: a class, or another object that takes a config.
                home: name of its original module, which need not exist.
        """
        spec = cls(name, kind="class" if isinstance(trainable, type) else "function", is_carried=True)
        return spec._placed_in(sys.modules.get(home))

    def _placed_in(self, home: ModuleType | None) -> tuple[TrainableSpec, Path]:
        """Return this spec with the name or path of a module, and the code root.

        If the module is in no file, the spec is unchanged and the code root is the current folder.
        """
        file = getattr(home, "__file__", None)
        if home is None or file is None or is_in_session(home):
            return self, Path.cwd()
        if home.__name__ != "__main__":
            return replace(self, module=home.__name__), root_of(home)
        if home.__spec__ is not None and home.__spec__.name != "__main__":
            return replace(self, module=home.__spec__.name, is_main=True), root_of(home, home.__spec__.name)
        script, root = below_root(Path(file))
        if not self.is_carried:
            _check_inside(root / script, root, f"script {script!r} of trainable {self.name!r}")
        return replace(self, script=script), root

    def locate(self, code_root: Path) -> Path:
        """Return the path of the trainable's file below *code_root*.

        Raises:
            TrainableNotFound: the file is missing, outside the code root, or in an installed package.
        """
        named = f"script {self.script!r}" if self.script else f"module {self.module!r}"
        named = f"{named} of trainable {self.name!r}"
        parts = Path(self.script).parts if self.script else self.module.split(".")
        if not all(parts) or any(part == ".." or "/" in part for part in parts):
            raise TrainableNotFound(f"{named} is not a path below a code root")
        base = code_root.joinpath(*parts)
        package = "__main__.py" if self.kind == "script" else "__init__.py"
        choices = [base] if self.script else [base.with_name(base.name + ".py"), base / package]
        path = next((path for path in choices if path.is_file()), None)
        if path is None:
            raise TrainableNotFound(
                f"{named} is not below the code root {code_root}: start this program and the workers in one folder, "
                "the one that has the code, or give workers that folder by --code-root"
            )
        _check_inside(path, code_root, named)
        return path

    def put_first(self, code_root: Path) -> None:
        """Put the folders of the program's own modules first on ``sys.path``."""
        folders = [] if self.kind == "script" else [str(code_root)]
        if self.script:
            folders.insert(0, str(main_module.folder_of(self.locate(code_root))))
        main_module.put_first(*dict.fromkeys(folders))

    def load(self, code_root: Path) -> Loaded:
        """Import the trainable from below *code_root* and return it. User code runs.

        The folder goes first on ``sys.path``. A driver's script, or a module run by ``python -m``, becomes
        ``__main__``, with its main guard false. A trainable of the kind "script" is not run: its path is returned. A
        carried trainable comes from this process's memory.

        Raises:
            TrainableNotFound: it is missing, can't be a trainable, or its process has ended (TrainableLost).
        """
        if self.is_carried:
            if _carried is None:
                raise TrainableLost(
                    f"trainable {self.name!r} was only in the memory of a fork of its program, and that process has "
                    "ended: it was killed, perhaps as the memory ran out"
                )
            return _apply_adapter(_carried, self.adapter) if self.adapter else _carried
        path = self.locate(code_root)
        if self.kind == "script":
            _check_executable(path)
            return path
        self.put_first(code_root)
        with imported_on_worker(path):
            if self.script or self.is_main:
                module = main_module.execute_file(path, module=self.module)
            else:
                module = importlib.import_module(self.module)
        file = getattr(module, "__file__", None)
        if file is None or not os.path.samefile(file, path):
            raise TrainableNotFound(
                f"module {self.module!r} is {file or 'built into Python'} here, and not {path} below the code root: "
                "give the trainable's module another name"
            )
        loaded: object = module
        for part in self.name.split("."):
            loaded = getattr(loaded, part, None)
        # The module must define it. An imported function such as subprocess.call would accept a config, too.
        is_own = getattr(loaded, "__module__", None) == module.__name__
        if not callable(loaded) or not is_own or inspect.isclass(loaded) is not (self.kind == "class"):
            raise TrainableNotFound(
                f"{path} does not define the {self.kind} {self.name!r}; is the code on this machine up to date?"
            )
        if isinstance(loaded, type):
            _check_class(loaded)
        return _apply_adapter(cast("Function", loaded), self.adapter) if self.adapter else cast("Loaded", loaded)


#: Computed once: a worker decodes a spec for each attempt.
_FIELDS: Final = tuple(field.name for field in fields(TrainableSpec))
#: Fields that a definition has only if they are set.
_OPTIONAL: Final = ("adapter", "is_main", "is_carried", "arguments", "metrics")


def adapter(function: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Register a top-level function of mqtune, so that a spec may name it as its adapter.

    An adapter gets another library's function, and returns a function of a config.
    """
    _adapters.append(function)
    return function


def carry(trainable: Function) -> None:
    """Keep a trainable in the memory of this process and its forks."""
    global _carried  # noqa: PLW0603 - of the process
    _carried = trainable


def _is_path(adapter: object) -> bool:
    return isinstance(adapter, str) and len(adapter) <= _LONGEST_NAME and _ADAPTER.fullmatch(adapter) is not None


def _apply_adapter(function: Function, path: str) -> Function:
    module, _, name = path.partition(":")
    try:
        adapted: object = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError:
        adapted = None
    known = next((adapter for adapter in _adapters if adapter is adapted), None)
    if known is None:
        raise TrainableNotFound(f"mqtune here has no adapter {path!r}: its driver runs another version")
    return known(function)


def _check_inside(path: Path, code_root: Path, named: str) -> None:
    """Raise TrainableNotFound if a file links outside the code root, or is an installed package's."""
    real = path.resolve()
    if code_root.resolve() not in real.parents:
        raise TrainableNotFound(
            f"{named} is a link to {real}, which is not below the code root {code_root}: run {real.name} itself, or "
            "start in a folder above both"
        )
    # A project's folder often has a virtual environment, with programs for anything.
    for folder in path.relative_to(code_root).parents:
        if folder.parts and (folder.name == "site-packages" or (code_root / folder / "pyvenv.cfg").exists()):
            raise TrainableNotFound(
                f"{named} is an installed package's, in {code_root / folder}: trainables are your own"
            )


@functools.cache
def extras_of(function: Function) -> tuple[str, ...]:
    """Return the parameters among ``reporter`` and ``checkpoint_dir`` that a function has.

    ``**kwargs`` does not count.

    Raises:
        TrainableNotFound: it can't be called with the config and these alone.
    """
    signature = signature_of(function)
    # The first parameter is the config, under any name.
    named = {parameter.name for parameter in list(signature.parameters.values())[1:] if parameter.kind in _BY_NAME}
    extras = tuple(name for name in _EXTRAS if name in named)
    try:
        signature.bind({}, **dict.fromkeys(extras))
    except TypeError:
        raise TrainableNotFound(
            f"trainable {function.__name__}{signature} can't be called with the config alone; write it as f(config), "
            "f(config, reporter) or f(config, checkpoint_dir=None), and give other parameters defaults"
        ) from None
    return extras


def _checked_kind(trainable: Function | type, adapter: str = "") -> Kind:
    """Check that a function or class can be a trainable, and return its kind."""
    if isinstance(trainable, type):
        _check_class(trainable)
        return "class"
    check_synchronous(trainable, trainable.__name__)
    if "<" not in trainable.__qualname__ and not adapter:
        extras_of(trainable)
    return "function"


def check_synchronous(call: object, name: str) -> None:
    """Raise TrainableNotFound if a function is async."""
    if inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call):
        raise TrainableNotFound(f"trainable {name!r} is an async function; write a plain one that calls asyncio.run")


def _check_class(trainable: type) -> None:
    # Imported here, as functions don't need it.
    from mqtune.trainable.class_ import check_class  # noqa: PLC0415

    check_class(trainable)


def _name_script(path: Path) -> tuple[TrainableSpec, Path]:
    if not path.is_file():
        problem = "is not a file" if path.exists() else "does not exist"
        raise TrainableNotFound(
            f"trainable script {str(path)!r} {problem}; give the path of your own program, such as train.py, without "
            "an interpreter"
        )
    _check_executable(path)
    script, root = below_root(path)
    _check_inside(root / script, root, f"script {script!r}")
    return TrainableSpec(path.stem, script=script, kind="script"), root


def _name_module(module: str) -> tuple[TrainableSpec, Path]:
    spec, root = TrainableSpec(module.rpartition(".")[2], module=module, kind="script"), Path.cwd()
    spec.locate(root)
    return spec, root


def is_in_session(main: ModuleType) -> bool:
    """Whether the main module is in no file.

    It may come from ``python -c``, standard input, a notebook or an interactive session.
    """
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    return (spec is None or spec.name == "__main__") and (file is None or not Path(file).is_file())


def program_arguments() -> list[str]:
    """Return ``sys.argv``, or an empty list in a notebook, where it has the kernel's arguments."""
    if is_in_session(sys.modules["__main__"]) and hasattr(builtins, "__IPYTHON__"):
        return []
    # A name that is not Unicode can't be sent.
    return [str(argument).encode(errors="backslashreplace").decode() for argument in sys.argv]


def below_root(path: Path) -> tuple[str, Path]:
    """Return a file's path below its code root, and that root.

    It is the current folder if that contains the file. Otherwise it is the file's folder.
    """
    path = Path(os.path.normpath(path.absolute()))
    # Both workers and scripts are usually started in the project's folder.
    root = Path.cwd() if Path.cwd() in path.parents else path.parent
    return str(path.relative_to(root)), root


def _check_executable(path: Path) -> None:
    if path.suffix != ".py" and not os.access(path, os.X_OK):
        raise TrainableNotFound(f"trainable script {str(path)!r} is not executable; run: chmod +x {path}")


def root_of(module: ModuleType, name: str | None = None) -> Path:
    """Return the folder that must be on ``sys.path`` to import a module by its name."""
    file = getattr(module, "__file__", None)
    if file is None:
        raise TrainableNotFound(
            f"module {module.__name__!r} has no file, so workers can't import it; put it into a file"
        )
    return folder_above(Path(file).absolute(), name or module.__name__)


def folder_above(path: Path, module: str) -> Path:
    """Return the folder in which Python finds the module with this file."""
    is_package = path.stem in ("__init__", "__main__") and module.rpartition(".")[2] != path.stem
    return path.parents[module.count(".") + is_package]


@contextmanager
def imported_on_worker(path: Path) -> Iterator[None]:
    """Within the block, code may not run an experiment or read standard input.

    *path* is the imported file, for the error.
    """
    _importing.append(path)
    stdin, sys.stdin = sys.stdin, _NoInput(path)
    try:
        yield
    finally:
        sys.stdin = stdin
        _importing.pop()


def refuse_on_import() -> None:
    """Raise TrainableNotFound if user code runs an experiment during its import on a worker."""
    if _importing:
        raise TrainableNotFound(f"{_importing[-1]} runs an experiment when it is imported, and {_WAY_OUT}")


class _NoInput(io.TextIOBase):
    """Replaces standard input, which a worker does not have. Reading it raises TrainableNotFound."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _refuse(self, *_: object) -> NoReturn:
        raise TrainableNotFound(f"{self._path} reads standard input when it is imported, and {_WAY_OUT}")

    read = readline = readlines = __next__ = _refuse

    @property
    def buffer(self) -> NoReturn:
        """The binary stream, which raises too."""
        self._refuse()
