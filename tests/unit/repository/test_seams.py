"""Unit tests import facades, and touch few private parts and constants."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Final

import pytest
from pages import ROOT, nodes_of

TESTS: Final = ROOT / "tests"
FILES: Final = sorted(TESTS.rglob("*.py"))
#: The modules of mqtune that tests of units and services may import, by their folders; "" is a folder's own facade. Their number may only fall.
IMPORTED: Final = {
    "": "|client",
    "backends": "|celery|queues",
    "checkpoints": "",
    "cli": "|doctor|machine_use",
    "cli.tune": "",
    "cli.ui": "views",
    "core": (
        "callback|calls|checks|codec|crews|entries|entry_points|errors|events|experiment|impairment|json_lines|keys|"
        "labels|machine|objective|owner|priorities|registry|resources|scope|submission|tasks|text|timing|trial|"
        "usage|version|worker_info"
    ),
    "driver": "|ports",
    "integrations": "",
    "journal": "",
    "results": "",
    "results.plots": "by_plotly",
    "schedulers": "",
    "schedulers.stopping": "",
    "search": "",
    "services": "driver|settings|worker",
    "testing": "schedulers|searchers|stores|waiting|worlds",
    "trainable": "|reporting|values",
    "trainable.process": "session",
    "worker": "|ports",
}
#: The most private attributes of other objects that tests read or patch, and the most constants that they patch. Lower them; the
#: aims are 0 and 20.
MOST_PRIVATE: Final = 18
MOST_PATCHED: Final = 0
#: Public names of named tuples, which begin so in order not to be fields.
_OF_NAMED_TUPLES: Final = {"_asdict", "_fields", "_make", "_replace"}
#: Private names of the standard library and of Hypothesis that have no public twin.
_OF_OTHERS: Final = ("os._", "sys._", "super()._", "socket._", "threading._", "providers._")


def imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the modules of mqtune that a file imports."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "mqtune":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if is_module(inner) else str(node.module)


def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def private_accesses(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the line and name of each foreign private name that a file uses or patches."""
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute(attr=name) if is_private(name) and not ast.unparse(node).startswith(_OF_OTHERS):
                yield f"{node.lineno} {ast.unparse(node)}"
            case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] == "mqtune":
                yield from (f"{node.lineno} import {alias.name}" for alias in names if is_private(alias.name))
            case ast.Call() if (patched := patched_name(node)) and not is_constant(patched) and is_private(patched):
                yield f"{node.lineno} patch {patched}"


def patched_constants(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield each constant of a module that a file patches, with its line."""
    for node in nodes:
        if isinstance(node, ast.Call) and (patched := patched_name(node)) and is_constant(patched):
            yield f"{node.lineno} {patched}"


def patched_name(call: ast.Call) -> str:
    """Return the last part of the name that a call of pytest's ``setattr`` patches, if any."""
    if not (isinstance(call.func, ast.Attribute) and call.func.attr == "setattr" and call.args):
        return ""
    named = call.args[0] if len(call.args) == 2 else call.args[1]
    return ast.unparse(named).strip("'").rpartition(".")[2]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in _OF_NAMED_TUPLES


def is_constant(name: str) -> bool:
    return name.strip("_").isupper()


def test_unit_tests_import_the_facades_alone() -> None:
    allowed = {
        ".".join(filter(None, ("mqtune", folder, name)))
        for folder, names in IMPORTED.items()
        for name in names.split("|")
    }
    found = {
        module
        for path in FILES
        if (part := path.relative_to(TESTS).parts)[0] in ("unit", "services")
        for module in imported(nodes_of(path))
        # The tests of a service know its modules.
        if not (part[0] == "services" and module.startswith(f"mqtune.services.{part[1]}."))
    }

    assert sorted(found - allowed) == [], "import the facade, or test the detail through its user"
    assert sorted(allowed - found) == [], "nothing imports it any more: take it out of the list"


@pytest.mark.parametrize(("of", "most"), [(private_accesses, MOST_PRIVATE), (patched_constants, MOST_PATCHED)])
def test_tests_touch_no_more_private_parts_and_constants(of: object, most: int) -> None:
    found = [f"{path.relative_to(ROOT)}:{each}" for path in FILES for each in of(nodes_of(path))]  # type: ignore[operator]

    assert len(found) <= most, found
