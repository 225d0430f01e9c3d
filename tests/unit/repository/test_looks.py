"""docs/design.md lists what is looked at from time to time: all of it, as often as the code does, and no more than can be kept in mind."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Final

from mqtune.core.timing import Timing

ROOT: Final = Path(__file__).parents[3]
#: More are more than one head holds.
MOST: Final = 12
_ROW: Final = re.compile(r"^\| \w* ?\| ([\d.]+) s \| (?:`([\w/]+)\.py` )?`(\w+)` \|", re.MULTILINE)
#: How a look is written: a timer, or a thread that waits until it is to end.
_LOOK: Final = re.compile(r"(?:\b_Timer\(|\bevery\(|while not [\w.]+\.wait\()(?:[\w.]*timing\.)?([A-Z_]+|\w+_s)\b")


def listed() -> list[tuple[float, str, str]]:
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    return [(float(seconds), place, name) for seconds, place, name in _ROW.findall(text)]


def test_each_is_as_often_as_the_list_says_and_there_are_few() -> None:
    looks = listed()

    assert 0 < len(looks) <= MOST
    for seconds, place, name in looks:
        owner = importlib.import_module(f"mqtune.{place.replace('/', '.')}") if place else Timing()
        assert getattr(owner, name) == seconds, name


def test_the_list_has_those_of_drivers_and_workers() -> None:
    files = [file for folder in ("driver", "worker") for file in (ROOT / "mqtune" / folder).glob("*.py")]
    found = {name for file in files for name in _LOOK.findall(file.read_text(encoding="utf-8"))}

    assert len(found) >= 5
    assert found <= {name for _, _, name in listed()}
