"""Names in the package say what they name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest
from pages import ROOT, nodes_in, nodes_of

PACKAGE: Final = ROOT / "mqtune"
#: Each library's module has a callback of this name. A user imports one of them.
ONE_PER_LIBRARY: Final = {"MqtuneCallback"}
#: Words that fit any variable.
EMPTY_NAMES: Final = {"each", "found", "there", "what"}


def empty_names_in(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the line and name of each such variable and parameter, without a class's fields."""
    fields = {id(part.target) for node in nodes if isinstance(node, ast.ClassDef) for part in node.body
              if isinstance(part, ast.AnnAssign)}  # fmt: skip
    for node in nodes:
        name = ""
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields:
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
            name = node.name or ""
        if name in EMPTY_NAMES:
            yield f"{node.lineno}: {name}"


def test_no_two_classes_have_one_name() -> None:
    modules = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                modules[node.name].add(str(path.relative_to(ROOT)))

    twice = {name: paths for name, paths in modules.items() if len(paths) > 1 and name not in ONE_PER_LIBRARY}

    assert twice == {}


@pytest.mark.parametrize(
    "folder",
    sorted({path.parent for path in PACKAGE.rglob("*.py")}),
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_a_variable_names_its_content(folder: Path) -> None:
    empty = [f"{path.name}:{place}" for path in folder.glob("*.py") for place in empty_names_in(nodes_of(path))]

    assert empty == []


@pytest.mark.parametrize(
    "source",
    [
        "found = 1",
        "with a as (b, found): pass",
        "for each, _ in a: pass",
        "[each for each in a]",
        "def f(*, what): pass",
        "lambda there: 1",
        "(found := 1)",
        "try: pass\nexcept ValueError as found: pass",
    ],
)
def test_an_empty_name_is_noticed(source: str) -> None:
    assert len(list(empty_names_in(nodes_in(source)))) == 1
