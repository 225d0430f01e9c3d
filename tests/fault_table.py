"""The faults of docs/faults.md, and the tests that hold each promise: both are in faults.toml.

    python tests/fault_table.py

writes the tables of the page anew.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["FAULTS", "PAGE", "Fault", "with_tables"]

HERE: Final = Path(__file__).parent
PAGE: Final = HERE.parent / "docs" / "faults.md"
_HEADING: Final = re.compile(r"^#+ (.*)$", re.MULTILINE)


class Fault(NamedTuple):
    """A row of the page: the heading that its table stands below, its cells, and its tests as ``path::test``."""

    section: str
    cells: list[str]
    tests: list[str]


FAULTS: Final = [Fault(**row) for row in tomllib.loads((HERE / "faults.toml").read_text())["fault"]]


def with_tables(page: str) -> str:
    """Return the text of a page with its tables of faults as they are in the data."""
    parts = re.split(r"^(?=#)", page, flags=re.MULTILINE)
    return "".join(map(_with_table, parts))


def _with_table(part: str) -> str:
    """Replace the rows of the first table of a section that has faults; its head stays."""
    heading = _HEADING.match(part)
    rows = [fault for fault in FAULTS if heading is not None and fault.section == heading[1]]
    if not rows:
        return part
    lines = "".join(f"| {' | '.join(fault.cells)} |\n" for fault in rows)
    return re.sub(r"^(\|(?:---\|)+\n)(?:\|.*\n)*", lambda found: found[1] + lines, part, count=1, flags=re.MULTILINE)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
