"""What mqtune uses of other tuners that they keep private, and whether the version that is here has it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Final

import mqtune

FOLDER: Final = Path(mqtune.__file__).parent / "integrations"


def private_names(path: Path) -> set[str]:
    """Return what a module uses of others that is private: attributes of all but self and cls, and what it imports."""
    return {name for node in ast.walk(ast.parse(path.read_text())) for name in _names(node) if _is_private(name)}


def _names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Attribute() if not _is_own(node.value) and node.attr not in ("_replace", "_asdict", "_getframe"):
            yield node.attr
        case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(name)), *_]):
            yield name
        case ast.ImportFrom(module=str(module), names=names):
            yield from module.split(".")
            yield from (each.name for each in names)
        case ast.Import(names=names):
            yield from (part for each in names for part in each.name.split("."))


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _is_own(node: ast.expr) -> bool:
    is_super = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
    return is_super or (isinstance(node, ast.Name) and node.id in ("self", "cls"))


def _name_of(owner: object) -> str:
    return str(getattr(owner, "__name__", type(owner).__name__))


def check_has(library: str, owner: object, member: str, module: str) -> None:
    """Fail if an object of a library lacks a member, or a member of that, which a module of mqtune uses."""
    found = owner
    for name in member.split("."):
        assert hasattr(found, name), (
            f"{library} {version(library)} has no {_name_of(owner)}.{member}, which mqtune/integrations/{module} uses: "
            "find another way there, or leave this version out in pyproject.toml"
        )
        found = getattr(found, name)
