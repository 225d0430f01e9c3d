"""What tests of pages share: the tables of a page of the docs, and whether what they name is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

__all__ = ["CODE", "ROOT", "absent_tests", "definitions", "table_lines"]

ROOT: Final = Path(__file__).parents[1]
CODE: Final = re.compile(r"`([^`]*)`")


def table_lines(page: Path) -> Iterator[tuple[str, int, list[str]]]:
    """Yield the section, number and cells of each line of a table."""
    section = ""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("## "):
            section = line.removeprefix("## ")
        if line.startswith("|"):
            yield section, number, [cell.strip() for cell in line.strip("|").split("|")]


def absent_tests(named: Iterable[str]) -> list[str]:
    """Return those of the names, each ``path::test``, that are no test."""
    absent = []
    for name in sorted(set(named)):
        path, _, test = name.partition("::")
        if not (ROOT / path).is_file() or test.replace("::", ".") not in definitions(path):
            absent.append(name)
    return absent


@cache
def definitions(path: str) -> dict[str, int]:
    """Return what a file defines, by its dotted name: functions, classes, their methods and what they assign."""
    found: dict[str, int] = {}

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            match node:
                case ast.ClassDef():
                    found[prefix + node.name] = node.lineno
                    collect(node.body, f"{prefix}{node.name}.")
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    found[prefix + node.name] = node.lineno
                    for inner in ast.walk(node):
                        if (
                            isinstance(inner, ast.Attribute)
                            and isinstance(inner.ctx, ast.Store)
                            and _is_self(inner.value)
                        ):
                            found[f"{prefix}{inner.attr}"] = inner.lineno
                case ast.AnnAssign(target=ast.Name(id=name)):
                    found[prefix + name] = node.lineno
                case ast.Assign():
                    found.update({prefix + t.id: node.lineno for t in node.targets if isinstance(t, ast.Name)})
                case _:
                    pass

    collect(ast.parse((ROOT / path).read_text()).body, "")
    return found


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"
