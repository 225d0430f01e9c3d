"""The page of faults: each row says everything, and the tests that it names are there."""

from __future__ import annotations

import re
from typing import Final

import pytest
from pages import CODE, ROOT, absent_tests, table_lines

PAGE: Final = ROOT / "docs" / "faults.md"
_NUMBER: Final = re.compile(r"(\d+)\. ")


def rows(section: str) -> list[list[str]]:
    """Return the rows of a section's tables, without their heads."""
    found = [cells for of, _, cells in table_lines(PAGE) if of == section]
    return [cells for cells in found if set(cells[0]) != {"-"} and cells[0] not in HEADS]


HEADS: Final = {"what breaks", "how it fails elsewhere", "what is asked for"}
#: How many cells a row has in each section.
CELLS: Final = {"What breaks": 5, "What mqtune does not survive": 3, "How such systems fail elsewhere": 3}


@pytest.mark.parametrize(("section", "cells"), CELLS.items())
def test_every_row_says_everything(section: str, cells: int) -> None:
    found = rows(section)

    assert found
    assert [row for row in found if len(row) != cells or not all(row)] == []


@pytest.mark.parametrize("section", ["What breaks", "How such systems fail elsewhere"])
def test_every_fault_names_tests_that_are_there(section: str) -> None:
    named = [CODE.findall(row[-1]) for row in rows(section)]

    assert all(named)
    assert absent_tests(name for names in named for name in names) == []


def test_no_known_failure_of_others_is_left_out() -> None:
    numbers = [int(found[1]) for row in rows("How such systems fail elsewhere") if (found := _NUMBER.match(row[0]))]

    assert numbers == [*range(1, 16), *range(1, 21)]
