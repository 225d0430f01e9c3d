"""The kernel and other services hardly name a feature, so that a feature can change in its own folder."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from feature_names import FEATURES, counts, naming_lines

#: How many modules and Lua scripts name a feature outside its folder. Lower a number when it falls.
#: The aims for modules are 12 for gangs, 5 for shares, 0 for reuse, 6 for recovery and 5 for packing.
MOST: Final = {"gangs": (19, 5), "shares": (18, 4), "reuse": (6, 0), "recovery": (25, 2), "packing": (4, 0)}


@pytest.mark.slow
@pytest.mark.parametrize("feature", MOST)
def test_a_feature_is_named_in_no_further_module(feature: str) -> None:
    found = naming_lines(feature)
    too_many = [now > most for now, most in zip(counts(found), MOST[feature], strict=True)]

    assert not any(too_many), "\n".join(found)


@pytest.mark.parametrize(
    ("feature", "text", "names_it"),
    [
        ("gangs", "takes_gangs = True", True),
        ("gangs", "#: Each seat has an order.", True),
        ("gangs", "MOST_SEATS = 2", True),
        ("gangs", "the organgs reseat it", False),
        ("shares", "a quota is used up", True),
        ("shares", "share: float = option(1.0)", True),
        ("shares", "trials share a GPU, and it is saved on demand", False),
        ("reuse", "Process(reuse=True)", True),
        ("reuse", "its number may have been reused", False),
        ("recovery", "Restore the journal.", True),
        ("recovery", "restore the signal handler", False),
        ("packing", "pack_gpus: int | None = None", True),
        ("packing", "packing an entry", False),
    ],
)
def test_a_module_names_a_feature_by_its_words(feature: str, text: str, names_it: bool, tmp_path: Path) -> None:
    (tmp_path / "services" / feature).mkdir(parents=True)
    for path in (tmp_path / "loop.py", tmp_path / "services" / feature / "driver.py", tmp_path / "services/driver.py"):
        path.write_text(f"first = 1\n{text}\n")

    assert naming_lines(feature, tmp_path) == ({"loop.py": [(2, text)]} if names_it else {})


def test_each_counted_feature_has_a_number() -> None:
    assert MOST.keys() == FEATURES.keys()
