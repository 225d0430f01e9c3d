"""Late imports: recorded in one trial, and repeated before the fork of the next trials.

Each trial is a fork of a zygote that has imported the trainable's module, but not the modules that its function
imports. PyTorch imports some 900 modules with a trial's first optimizer, which takes longer than many trials.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import re
import reprlib
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from mqtune.trainable.process import footprint

#: Stands for all packages in a list of packages that an importer must not import.
EVERY_PACKAGE: Final = "*"
#: Modules that nearly every trial of a package imports late.
USUAL: Final = ("torch._dynamo",)
#: How the names of variables begin that mqtune sets for each attempt.
_OF_ATTEMPTS: Final = ("MQTUNE_", "PWD")
#: Folders of installed packages, in a path.
_INSTALLED: Final = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
#: Modules in import order, and the environment variables that the trial had changed before: for each a hash of the new
#: value, or an empty text if it was removed. The empty name stands for ``sys.path``.
Batch = tuple[Mapping[str, str], Sequence[str]]


def without_packages(batches: Iterable[Batch], packages: Collection[str]) -> list[Batch]:
    """Return batches without the modules of some packages."""
    if EVERY_PACKAGE in packages:
        return []
    left = ((changes, [name for name in names if name.partition(".")[0] not in packages]) for changes, names in batches)
    return [(changes, names) for changes, names in left if names]


def check_batches(batches: Iterable[tuple[object, object]]) -> None:
    """Raise a TypeError or ValueError unless these are batches.

    They come from a trial, whose code may have sent anything.
    """
    for changes, modules in batches:
        if type(changes) is not dict or type(modules) is not list:
            raise TypeError(f"that it has imported {reprlib.repr(batches)}")
        # The fastest check that all are texts.
        "".join([*changes, *changes.values(), *modules])


class EnvironmentReads:
    """Records which environment variables the code in its ``with`` block reads.

    It can be entered again. Reads by C code are not recorded. ``os.environ`` stays the same object.

    Attributes:
        names: the variables to watch.
        seen: the watched variables that were read.
    """

    def __init__(self, names: Collection[str]) -> None:
        self.names = frozenset(names)
        self.seen: set[str] = set()
        self._plain = plain = type(os.environ)
        seen = self.seen

        def read(environ: os._Environ[str], name: str) -> str:
            if name in self.names:
                seen.add(name)
            return plain.__getitem__(environ, name)

        self._noting = type(plain.__name__, (plain,), {"__getitem__": read})

    def __enter__(self) -> None:
        if self.names:
            os.environ.__class__ = self._noting

    def __exit__(self, *_: object) -> None:
        os.environ.__class__ = self._plain


class Unsafe(NamedTuple):
    """A module after whose import no trial can be forked, and the reason in words."""

    module: str
    why: str


class ImportWatch:
    """Records imported modules, with the changes of the environment before each."""

    def __init__(self) -> None:
        self._first = self._last = _current_environment()
        self._batches: list[tuple[dict[str, str], list[str]]] = []

    def begin(self) -> None:
        """Start recording imports, in all threads."""
        self._first = self._last = _current_environment()
        sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, _path: object = None, _target: object = None) -> None:
        """Record an import, and leave finding the module to the other finders."""
        now = _current_environment()
        if now != self._last or not self._batches:
            self._last = now
            self._batches.append((_changed_values(self._first, now), []))
        self._batches[-1][1].append(fullname)

    def end(self) -> list[Batch]:
        """Stop recording. Return the imported modules of Python and of installed packages, in order.

        User modules are left out: their code may do anything on import, and may change.
        """
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        batches = ((changes, list(filter(is_library, names))) for changes, names in self._batches)
        return [(changes, names) for changes, names in batches if names]


def is_library(name: str) -> bool:
    """Whether a module belongs to Python or to an installed package, and not to the user."""
    origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
    if not isinstance(origin, str):
        return False
    return name.partition(".")[0] in sys.stdlib_module_names or bool(_INSTALLED.search(origin))


def imported_packages() -> list[str]:
    """Return the installed packages that this process has imported, in order."""
    # A copy: another thread may import something meanwhile.
    packages = [name for name in list(sys.modules) if "." not in name and name not in sys.stdlib_module_names]
    return list(filter(is_library, packages))


def _current_environment() -> dict[str, str]:
    environ: Any = os.environ
    # Not by an index, which ``EnvironmentReads`` would record as a read of the program.
    variables = {environ.decodekey(name): environ.decodevalue(value) for name, value in environ._data.items()}
    # Their values differ in each attempt.
    variables = {name: value for name, value in variables.items() if not name.startswith(_OF_ATTEMPTS)}
    # No variable has an empty name, so that is free for the path.
    return {**variables, "": os.pathsep.join(map(str, sys.path))}


def _changed_values(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return {name: _hashed(name, after.get(name)) for name in sorted(names)}


def _hashed(name: str, value: str | None) -> str:
    # The value may be a password, and the hash is kept in a file.
    return "" if value is None else hashlib.sha256(f"{name}={value}".encode(errors="surrogateescape")).hexdigest()


def _are_in_effect(changes: Mapping[str, str]) -> bool:
    if not changes:
        return True
    here = _current_environment()
    return all(_hashed(name, here.get(name)) == value for name, value in changes.items())


def preload(
    batches: Iterable[Batch], reads: contextlib.AbstractContextManager[None] | None = None
) -> tuple[list[str], Unsafe | None]:
    """Import modules before a fork, and stop at the first unsafe import.

    A trial may have changed environment variables or ``sys.path`` before an import. Such a module is imported here only
    if the imports before it have made the same changes. An import is safe if it leaves no trace (``footprint``). A
    missing module is left to the trial.

    Returns:
        The modules that this call has imported itself, without those that came along with them.
        The unsafe import, or None.
    """
    loaded: list[str] = []
    before = footprint.take()
    for changes, modules in batches:
        for name in modules:
            package, is_part, _ = name.partition(".")
            if name in sys.modules or (is_part and package not in sys.modules) or not _are_in_effect(changes):
                continue
            try:
                with reads or contextlib.nullcontext():
                    importlib.import_module(name)
            except ModuleNotFoundError:
                # Another version of the package, or the package is missing.
                continue
            except BaseException as error:  # noqa: BLE001 - an import may raise anything, in the middle of its changes
                return loaded, Unsafe(name, f"it has raised {type(error).__name__}")
            after = footprint.take()
            if left := footprint.traces(before, after):
                # No user can change the package's import.
                words = footprint.describe(trace._replace(way_out="") for trace in left)
                return loaded, Unsafe(name, f"it has {words}")
            before = after
            if name in sys.modules:
                loaded.append(name)
    return loaded, None
