"""Finds a program's first imports in its source, for early import by its importer."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Iterator
from typing import Final

from mqtune.core.errors import TrainableNotFound
from mqtune.trainable.frozen_code import body_of, frozen, read_source
from mqtune.trainable.process.late_imports import Batch
from mqtune.trainable.process.program import Program

#: Origins of modules without a file.
_IN_PYTHON: Final = ("built-in", "frozen")
_STANDARD_LIBRARY: Final = os.path.dirname(os.__file__) + os.sep


def first_imports(program: Program) -> list[Batch]:
    """Return the installed modules that a program imports before its first other statement.

    A later statement could change the result of an import, by an environment variable or a folder on ``sys.path``. A
    scout finds the later imports.
    """
    try:
        path = program.spec.locate(program.code_root)
    except TrainableNotFound:
        return []
    source = frozen().source(str(path))
    if source is None:
        source = read_source(path) or b""
    names: dict[str, None] = {}
    for name in _imported_first(source):
        if not _is_installed(name):
            break
        parts = name.split(".")
        names.update(dict.fromkeys(".".join(parts[:end]) for end in range(1, len(parts) + 1)))
    return [({}, list(names))] if names else []


def _imported_first(source: bytes) -> Iterator[str]:
    for statement in body_of(source):
        match statement:
            case ast.Import(names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(name), level=0):
                yield name
            case ast.Expr(ast.Constant()) | ast.Assign([ast.Name()], ast.Constant()):
                pass
            case _:
                return


def _is_installed(name: str) -> bool:
    """Whether a module belongs to Python or to an installed package.

    User modules don't count, as they may change between two trials.
    """
    top = name.partition(".")[0]
    if top in sys.modules or top in sys.stdlib_module_names:
        return True
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    return bool(places) and all(
        place in _IN_PYTHON or place.startswith(_STANDARD_LIBRARY) or "site-packages" in place for place in places
    )
