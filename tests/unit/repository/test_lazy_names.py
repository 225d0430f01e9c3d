"""A name that a module imports on first use exists where the module says."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Final

import pytest

from mqtune.core.errors import ConfigurationError

ROOT: Final = Path(__file__).resolve().parents[3]
PACKAGE: Final = ROOT / "mqtune"
LAZY: Final = {"found_when_used", "facade_of"}


def lazy_modules() -> Iterator[str]:
    """Yield the modules whose names are imported on first use."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        # Each process of a run collects this file, and parsing the whole package takes seconds.
        tree = ast.parse(text if any(name in text for name in LAZY) else "")
        if any(isinstance(node, ast.ImportFrom) and LAZY & {name.name for name in node.names} for node in tree.body):
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def tree_of(module: str) -> ast.Module:
    path = ROOT / Path(*module.split("."))
    return ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())


def typed_names(module: str) -> list[str]:
    """Return the names that a module imports for type checkers, under their own names."""
    blocks = [
        node for node in tree_of(module).body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return [name.name for node in imports for name in node.names if name.asname == name.name]


def names_for_tests(module: str) -> Iterator[str]:
    """Yield the names that a facade has for tests, by module."""
    for node in tree_of(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_NAMES":
            yield from chain.from_iterable(ast.literal_eval(node.value).values())


@pytest.mark.slow
@pytest.mark.parametrize("module", [*lazy_modules()])
def test_each_lazy_name_is_found(module: str) -> None:
    lazy, missing = import_module(module), []
    names = {*typed_names(module), *names_for_tests(module), *getattr(lazy, "__all__", ())}
    assert names
    for name in sorted(names):
        try:
            getattr(lazy, name)
        except (ModuleNotFoundError, ConfigurationError) as error:
            cause = error if isinstance(error, ModuleNotFoundError) else error.__cause__
            # A partner's library may be missing, a module of mqtune may not.
            if not isinstance(cause, ModuleNotFoundError) or (cause.name or "").startswith("mqtune"):
                missing.append(f"{name}: {error}")

    assert missing == []
