"""Figures of the package that tell how easily it is read: each is a bound that may only fall."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import mqtune

ROOT: Final = Path(mqtune.__file__).parent
#: What stands below the package beside its modules of a start.
_START: Final = {"__init__.py", "__main__.py", "py.typed", "__pycache__"}
MOST_ENTRIES: Final = 16
MOST_PARAMETERS: Final = 17
#: With lines of at most 120 columns.
MOST_LINES_OF_A_MODULE: Final = 750
MOST_ANY: Final = 352
MEDIAN_LINES: Final = 6
P90_LINES: Final = 20

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources() -> dict[str, str]:
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in ROOT.rglob("*.py")}


@cache
def nodes() -> dict[str, list[ast.AST]]:
    return {file: [*ast.walk(ast.parse(text))] for file, text in sources().items()}


def functions() -> Iterator[tuple[str, Function]]:
    for file, found in nodes().items():
        yield from ((file, node) for node in found if isinstance(node, Function))


def lines_of(function: Function) -> int:
    """The lines of its body, without its docstring."""
    body = function.body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_a_few_entries_are_below_the_package() -> None:
    entries = {path.name for path in ROOT.iterdir()} - _START

    assert len(entries) <= MOST_ENTRIES, sorted(entries)


def test_no_constructor_has_too_many_parameters() -> None:
    found = {
        f"{file}:{node.lineno}": count
        for file, node in functions()
        if node.name in ("__init__", "__new__")
        and (count := len(node.args.posonlyargs + node.args.args + node.args.kwonlyargs) - 1) > MOST_PARAMETERS
    }

    assert found == {}


def test_modules_are_of_one_idea() -> None:
    long = {file: count for file, text in sources().items() if (count := text.count("\n")) > MOST_LINES_OF_A_MODULE}

    assert long == {}


def test_types_say_what_values_are() -> None:
    anys = {
        file: sum(isinstance(node, ast.Name) and node.id == "Any" for node in found) for file, found in nodes().items()
    }

    assert sum(anys.values()) <= MOST_ANY, sorted(anys.items(), key=lambda item: -item[1])[:10]


def test_functions_are_short() -> None:
    lengths = [lines_of(node) for _, node in functions()]

    assert statistics.median(lengths) <= MEDIAN_LINES
    assert statistics.quantiles(lengths, n=10)[-1] <= P90_LINES
