"""The page of faults: each row says everything, and each promise on it has tests that are there."""

from __future__ import annotations

from typing import Final

from fault_rows import TESTS
from pages import ROOT, absent_tests

PAGE: Final = ROOT / "docs" / "faults.md"
#: How many cells the rows of a table have, by the first cell of its head.
CELLS: Final = {"what breaks": {3, 4}, "how it fails elsewhere": {2}, "wish": {2}}


def tables() -> dict[str, list[list[str]]]:
    """The tables of faults, by the heading that each stands below: the head of each, then its rows."""
    found: dict[str, list[list[str]]] = {}
    heading = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("|") and set(line) != {"|", "-"}:
            found.setdefault(heading, []).append([cell.strip() for cell in line.strip("|").split("|")])
    return {heading: rows for heading, rows in found.items() if rows[0][0] in CELLS}


def test_every_promise_has_tests_that_are_there() -> None:
    """What mqtune does not survive has none, nor any other fault that the page doesn't have."""
    promised = {heading: [row[0] for row in rows[1:]] for heading, rows in tables().items()}
    del promised["What mqtune does not survive"]

    assert {heading: [*rows] for heading, rows in TESTS.items()} == promised
    named = [names for rows in TESTS.values() for names in rows.values()]
    assert all(named)
    assert absent_tests(name for names in named for name in names) == []
