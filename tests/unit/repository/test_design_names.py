"""docs/design.md names only attributes that exist, so that a search finds them."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pages import nodes_of

import mqtune

ROOT: Final = Path(mqtune.__file__).parent
#: An attribute of a class, such as `Loop._act_on`.
NAME: Final = re.compile(r"`([A-Z]\w+)\.(\w+)`")


def attributes(tree: ast.ClassDef) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                yield name


def test_each_attribute_that_the_design_names_is_in_a_class_of_that_name() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for path in ROOT.rglob("*.py"):
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                found[node.name].update(attributes(node))
    named = NAME.findall((ROOT.parent / "docs" / "design.md").read_text())

    assert named
    assert [f"{of}.{name}" for of, name in named if name not in found[of]] == []
