"""Tables of the docs' pages, the tests that they name, and parsed Python files."""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

__all__ = ["CODE", "ROOT", "absent_tests", "nodes_in", "nodes_of", "table_lines"]

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


def nodes_in(source: str) -> tuple[ast.AST, ...]:
    """Return all nodes of the source of a Python module. The first is the module."""
    return tuple(ast.walk(ast.parse(source)))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a Python file, which is parsed once for all tests of a process."""
    nodes = nodes_in(path.read_text())
    # The collector would visit half a million nodes again and again.
    gc.freeze()
    return nodes


@cache
def definitions(path: str) -> set[str]:
    """Return the names of the functions and methods of a file. A method's has its class and a dot."""
    found: set[str] = set()

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                collect(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef):
                found.add(prefix + node.name)

    collect(ast.parse((ROOT / path).read_text()).body, "")
    return found
