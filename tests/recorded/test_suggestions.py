"""Suggestions that were recorded: each searcher, played again in the same course, suggests the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from suggested import COURSES, FOLDER, kept, versions


# Of what Ax and PyTorch do by themselves.
@pytest.mark.filterwarnings(r"ignore:::(ax|botorch|gpytorch|linear_operator|torch)\b")
@pytest.mark.parametrize("name", COURSES)
def test_a_searcher_suggests_what_was_recorded(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MQTUNE_HOME", str(tmp_path / "home"))
    then, course = json.loads((FOLDER / f"{name}.json").read_text()), COURSES[name]
    if (here := versions(course.libraries)) != then["versions"]:
        pytest.skip(f"recorded with {then['versions']}, and here is {here}")

    now = kept(course.run(course.tested), course.libraries)

    assert now["first"] == then["first"][: len(now["first"])]
    assert now["hashes"] == then["hashes"][: len(now["hashes"])]


def test_each_recorded_course_is_played():
    assert {path.stem for path in FOLDER.glob("*.json")} == set(COURSES)
