"""The page of faults: its tables are those of the data, and each promise has tests that are there."""

from __future__ import annotations

from fault_table import FAULTS, PAGE, with_tables
from pages import absent_tests


def test_the_tables_of_the_page_are_those_of_the_data() -> None:
    """`python tests/fault_table.py` writes them."""
    page = PAGE.read_text()

    assert with_tables(page) == page
    assert [fault for fault in FAULTS if f"| {' | '.join(fault.cells)} |" not in page] == []


def test_every_promise_has_tests_that_are_there() -> None:
    untested = {fault.section for fault in FAULTS if not fault.tests}

    assert untested == {"What mqtune does not survive"}
    assert absent_tests(test for fault in FAULTS for test in fault.tests) == []
