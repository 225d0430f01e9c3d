"""What tests of pages share: the tables of a page of the docs, and whether the tests that they name are there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

__all__ = ["CODE", "ROOT", "absent_tests", "table_lines"]

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
def definitions(path: str) -> set[str]:
    """Return the names of the functions of a file and of its classes, those of a method with its class and a dot."""
    found: set[str] = set()

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                collect(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef):
                found.add(prefix + node.name)

    collect(ast.parse((ROOT / path).read_text()).body, "")
    return found
