"""How a trainable is named on the wire, and imported on a worker: by module or file, below a code root."""

from __future__ import annotations

import functools
import importlib
import importlib.util
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
from mqtune.core.errors import TrainableNotFound
from mqtune.trainable.frozen_code import frozen

Function = Callable[..., Any]
#: What can be tuned: a function, a class that derives from ``mqtune.Trainable``, or the path of a script.
AnyTrainable = Function | str | os.PathLike[str]
#: What a process runs: a function, a class, or a script's path.
Loaded = Function | Path
#: The kinds of trainables.
Kind = Literal["function", "class", "script"]
_KINDS: Final = get_args(Kind)

#: Longer than any path that a system accepts.
_LONGEST_NAME: Final = 4_096
#: The parameters that a function may have beside the config, by name.
_EXTRAS: Final = ("reporter", "checkpoint_dir")
#: The name under which a driver's script is imported on a worker, so that its ``if __name__ == "__main__"`` is not run.
_SCRIPT_MODULE: Final = "__mqtune_script__"
#: The path of an adapter: a module below mqtune, and a name in it. A message from elsewhere must not have anything else imported.
_ADAPTER: Final = re.compile(r"mqtune(?:\.[a-z][a-z0-9_]*)+:[a-z][a-z0-9_]*")
_WAY_OUT: Final = 'workers import it to find the trainable: put that below `if __name__ == "__main__":`'

_importing: list[Path] = []
_adapters: list[Callable[[Function], Function]] = []
_BY_NAME: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class TrainableSpec:
    """A trainable by name: either ``module`` or ``script`` (a path below the code root) is set.

    A function or class is looked up in the module or file by ``name``; a script is that file. Whatever is not there, or can't
    be a trainable, raises TrainableNotFound.

    ``adapter`` is the path, ``module:name``, of what makes a trainable of a function that is written for another library; see
    ``adapter``.
    """

    name: str
    module: str = ""
    script: str = ""
    kind: Kind = "function"
    adapter: str = ""

    def __str__(self) -> str:
        return self.script if self.kind == "script" else f"{self.module or self.script}:{self.name}"

    def encode(self) -> dict[str, str]:
        """Return plain values for a message."""
        values = asdict(self)
        # Definitions have been without it.
        return values if self.adapter else {key: value for key, value in values.items() if key != "adapter"}

    @classmethod
    def decode(cls, values: Mapping[str, Any]) -> TrainableSpec:
        """Return the spec that ``encode`` made the values of; unknown fields are ignored."""
        found = {name: values[name] for name in _FIELDS if name in values}
        texts = [found.get("name"), found.get("module", ""), found.get("script", "")]
        is_named = all(isinstance(each, str) and "\0" not in each and len(each) <= _LONGEST_NAME for each in texts)
        kind, adapter = found.get("kind", "function"), found.get("adapter", "")
        is_known = kind in _KINDS and (adapter == "" or (kind == "function" and _is_path(adapter)))
        if not is_named or not is_known:
            raise TrainableNotFound(
                f"{reprlib.repr(found)} names no trainable: its driver runs another version of mqtune, or is not one of mqtune"
            )
        return cls(**found)

    @classmethod
    def of(cls, trainable: object, *, adapter: str = "") -> tuple[TrainableSpec, Path]:
        """Return the spec of a function, class or script, and the code root below which it was found here.

        A function for which there is an *adapter* may take whatever that calls it with.
        """
        if isinstance(trainable, str | os.PathLike):
            return _name_script(Path(os.fspath(trainable)))
        if inspect.isclass(trainable):
            _check_class(trainable)
            return cls._name(trainable, "class")
        if isinstance(trainable, functools.partial):
            raise TrainableNotFound(
                f"trainable {trainable!r} has no name by which workers could import it; put its arguments into the search "
                "space as constants, or write a function at the top level of a module that passes them on"
            )
        if not inspect.isfunction(trainable):
            raise TrainableNotFound(
                f"trainable {trainable!r} is not a function, a class or the path of a script; "
                "give a function that takes the config"
            )
        _check_function(trainable, adapter)
        spec, code_root = cls._name(trainable, "function")
        return replace(spec, adapter=adapter), code_root

    @classmethod
    def in_module(cls, trainable: Function | type, module: str) -> TrainableSpec:
        """Return the spec of a function or class that is written into a module.

        Raises:
            TrainableNotFound: it can't be a trainable.
        """
        if inspect.isclass(trainable):
            _check_class(trainable)
            return cls(trainable.__qualname__, module=module, kind="class")
        _check_function(trainable)
        return cls(trainable.__qualname__, module=module)

    @classmethod
    def _name(cls, trainable: Function, kind: Kind) -> tuple[TrainableSpec, Path]:
        name, module = trainable.__qualname__, trainable.__module__
        if "<" in name:
            raise TrainableNotFound(
                f"trainable {name!r} is defined inside a function or is a lambda, so workers can't import it; "
                "move it to the top level of its module"
            )
        if module != "__main__":
            return cls(name, module=module, kind=kind), _root_of(sys.modules[module])
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        if spec is not None and spec.name != "__main__":
            return cls(name, module=spec.name.removesuffix(".__main__"), kind=kind), _root_of(main, spec.name)
        file = getattr(main, "__file__", None)
        if file is None or is_in_session(main):
            raise TrainableNotFound(
                f"trainable {name!r} is in no file (it came from python -c, standard input, a notebook or an interactive "
                "session), so workers can't import it; put it into one, such as train.py, and run or import that: in a notebook "
                "the line %%writefile train.py at the top of its cell does it, and then `from train import …`"
            )
        script, root = _below_root(Path(file))
        return cls(name, script=script, kind=kind), root

    def locate(self, code_root: Path) -> Path:
        """Return the file below *code_root* that holds the trainable."""
        what = f"script {self.script!r}" if self.script else f"module {self.module!r}"
        what = f"{what} of trainable {self.name!r}"
        parts = Path(self.script).parts if self.script else self.module.split(".")
        if not all(parts) or any(part == ".." or "/" in part for part in parts):
            raise TrainableNotFound(f"{what} is not a path below a code root")
        base = code_root.joinpath(*parts)
        choices = [base] if self.script else [base.with_name(base.name + ".py"), base / "__init__.py"]
        path = next((path for path in choices if path.is_file()), None)
        if path is None:
            raise TrainableNotFound(
                f"{what} is not below the code root {code_root}: start this program and the workers in one folder, the one that "
                "has the code, or give workers that folder by --code-root"
            )
        _check_inside(path, code_root, what)
        return path

    def load(self, code_root: Path) -> Loaded:
        """Import the function or class from below *code_root*, which goes first on ``sys.path``; user code runs.

        Of a script the path is returned, and nothing runs.
        """
        path = self.locate(code_root)
        if self.kind == "script":
            _check_executable(path)
            # Here, once, and not in each trial.
            importlib.import_module("mqtune.trainable.script")
            return path
        # A script can import modules from its own folder, as when Python runs it.
        for folder in dict.fromkeys((str(code_root), str(path.parent) if self.script else str(code_root))):
            # In front, so that no installed module of the same name is imported instead.
            if sys.path[0] != folder:
                sys.path.insert(0, folder)
        with imported_on_worker(path):
            module = _import_script(path) if self.script else importlib.import_module(self.module)
        file = getattr(module, "__file__", None)
        if file is None or not os.path.samefile(file, path):
            raise TrainableNotFound(
                f"module {self.module!r} is {file or 'built into Python'} here, and not {path} below the code root: give the "
                "trainable's module another name"
            )
        found: object = module
        for part in self.name.split("."):
            found = getattr(found, part, None)
        # A function that the module has imported from elsewhere is not below the code root: subprocess.call takes a config too.
        is_own = getattr(found, "__module__", None) == module.__name__
        if not callable(found) or not is_own or inspect.isclass(found) is not (self.kind == "class"):
            raise TrainableNotFound(
                f"{path} does not define the {self.kind} {self.name!r}; is the code on this machine up to date?"
            )
        if isinstance(found, type):
            _check_class(found)
        return _adapted(cast("Function", found), self.adapter) if self.adapter else cast("Loaded", found)


#: Looked up once: a worker decodes a spec for each attempt.
_FIELDS: Final = tuple(field.name for field in fields(TrainableSpec))


def adapter(function: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Have a function at the top level of a module of mqtune's be one that a spec may name.

    It takes a function that is written for another library, and returns what a worker runs for it, with a config.
    """
    _adapters.append(function)
    return function


def _is_path(adapter: object) -> bool:
    return isinstance(adapter, str) and len(adapter) <= _LONGEST_NAME and _ADAPTER.fullmatch(adapter) is not None


def _adapted(function: Function, path: str) -> Function:
    """Return the trainable that an adapter makes of a function."""
    module, _, name = path.partition(":")
    try:
        found: object = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError:
        found = None
    known = next((each for each in _adapters if each is found), None)
    if known is None:
        raise TrainableNotFound(f"mqtune here has no adapter {path!r}: its driver runs another version")
    return known(function)


def _check_inside(path: Path, code_root: Path, what: str) -> None:
    """Raise TrainableNotFound if a file is a link out of the code root, or belongs to an installed package."""
    real = path.resolve()
    if code_root.resolve() not in real.parents:
        raise TrainableNotFound(f"{what} is a link to {real}, which is not below the code root {code_root}")
    # A project's folder often has a virtual environment, whose programs could run anything.
    for folder in path.relative_to(code_root).parents:
        if folder.parts and (folder.name == "site-packages" or (code_root / folder / "pyvenv.cfg").exists()):
            raise TrainableNotFound(
                f"{what} is an installed package's, in {code_root / folder}: trainables are your own"
            )


@functools.cache
def extras_of(function: Function) -> tuple[str, ...]:
    """Return which of the parameters ``reporter`` and ``checkpoint_dir`` a function has; ``**kwargs`` asks for neither.

    Raises:
        TrainableNotFound: it can't be called with the config and these alone.
    """
    signature = signature_of(function)
    # The first parameter is the config, whatever it is called.
    named = {each.name for each in list(signature.parameters.values())[1:] if each.kind in _BY_NAME}
    extras = tuple(name for name in _EXTRAS if name in named)
    try:
        signature.bind({}, **dict.fromkeys(extras))
    except TypeError:
        raise TrainableNotFound(
            f"trainable {function.__name__}{signature} can't be called with the config alone; write it as f(config), "
            "f(config, reporter) or f(config, checkpoint_dir=None), and give other parameters defaults"
        ) from None
    return extras


def _check_function(function: Function, adapter: str = "") -> None:
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TrainableNotFound(
            f"trainable {function.__name__!r} is an async function; write a plain one that calls asyncio.run"
        )
    if "<" not in function.__qualname__ and not adapter:
        extras_of(function)


def _check_class(trainable: type) -> None:
    # Functions don't need the import.
    from mqtune.trainable.class_ import check_class  # noqa: PLC0415

    check_class(trainable)


def _name_script(path: Path) -> tuple[TrainableSpec, Path]:
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise TrainableNotFound(f"trainable script {str(path)!r} {what}; give the path of a program")
    _check_executable(path)
    script, root = _below_root(path)
    return TrainableSpec(path.stem, script=script, kind="script"), root


def is_in_session(main: ModuleType) -> bool:
    """Whether what runs is in no file: it came from python -c, standard input, a notebook or an interactive session."""
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    return (spec is None or spec.name == "__main__") and (file is None or not Path(file).is_file())


def _below_root(path: Path) -> tuple[str, Path]:
    """Return a file's path below its code root, and that."""
    path = Path(os.path.normpath(path.absolute()))
    # Both workers and scripts are usually started in the project's folder.
    root = Path.cwd() if Path.cwd() in path.parents else path.parent
    return str(path.relative_to(root)), root


def _check_executable(path: Path) -> None:
    if path.suffix != ".py" and not os.access(path, os.X_OK):
        raise TrainableNotFound(f"trainable script {str(path)!r} is not executable; run: chmod +x {path}")


def _import_script(path: Path) -> ModuleType:
    loader = frozen().loader(_SCRIPT_MODULE, str(path))
    spec = importlib.util.spec_from_file_location(_SCRIPT_MODULE, path, loader=loader)
    if spec is None or spec.loader is None:
        raise TrainableNotFound(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_SCRIPT_MODULE] = module
    spec.loader.exec_module(module)
    return module


def _root_of(module: ModuleType, name: str | None = None) -> Path:
    """Return the folder that must be on ``sys.path`` for the module to be imported by its name."""
    file = getattr(module, "__file__", None)
    if file is None:
        raise TrainableNotFound(
            f"module {module.__name__!r} has no file, so workers can't import it; put it into a file"
        )
    path = Path(file).absolute()
    depth = (name or module.__name__).count(".") + (path.name == "__init__.py")
    return path.parents[depth]


@contextmanager
def imported_on_worker(path: Path) -> Iterator[None]:
    """Refuse, within the block, that the code imported from *path* runs an experiment or reads standard input."""
    _importing.append(path)
    stdin, sys.stdin = sys.stdin, _NoInput(path)
    try:
        yield
    finally:
        sys.stdin = stdin
        _importing.pop()


def refuse_on_import() -> None:
    """Raise TrainableNotFound if a worker imports user code, which must not run an experiment then."""
    if _importing:
        raise TrainableNotFound(f"{_importing[-1]} runs an experiment when it is imported, and {_WAY_OUT}")


class _NoInput(io.TextIOBase):
    """Takes the place of standard input, which a worker does not have, and refuses to be read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _refuse(self, *_: object) -> NoReturn:
        raise TrainableNotFound(f"{self._path} reads standard input when it is imported, and {_WAY_OUT}")

    read = readline = readlines = __next__ = _refuse

    @property
    def buffer(self) -> NoReturn:
        """The binary stream, which is refused too."""
        self._refuse()
