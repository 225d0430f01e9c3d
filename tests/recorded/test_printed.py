"""Golden files: commands, pages, pictures and searchers do with each recorded experiment what they did."""

from __future__ import annotations

import json
from pathlib import Path

import drawn
import pytest
import suggested
from answered import EXPERIMENTS as ANSWERED, FOLDER as ANSWERS, answered
from printed import EXPERIMENTS, FOLDER, printed


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_commands_print_of_a_recorded_experiment_what_they_printed(name: str, tmp_path: Path):
    """Where the change is meant, `python tests/recorded/printed.py` writes the files anew."""
    assert printed(name, tmp_path).splitlines() == (FOLDER / f"{name}.txt").read_text().splitlines()


@pytest.mark.parametrize("name", ANSWERED)
def test_the_page_answers_about_a_recorded_experiment_what_it_answered(name: str, tmp_path: Path):
    """Where the change is meant, `python tests/recorded/answered.py` writes the files anew."""
    assert answered(name, tmp_path).splitlines() == (ANSWERS / f"{name}.txt").read_text().splitlines()


@pytest.mark.parametrize("name", drawn.EXPERIMENTS)
def test_pictures_show_of_a_recorded_experiment_what_they_showed_then(name: str):
    now, then = drawn.drawn(name), json.loads((drawn.FOLDER / f"{name}.json").read_text())

    assert now.keys() == then.keys()
    for kind, picture in now.items():
        assert picture == then[kind], kind


# Of what Ax and PyTorch do by themselves.
@pytest.mark.filterwarnings(r"ignore:::(ax|botorch|gpytorch|linear_operator|torch)\b")
@pytest.mark.parametrize("name", suggested.COURSES)
def test_a_searcher_suggests_what_was_recorded(name: str):
    then, course = json.loads((suggested.FOLDER / f"{name}.json").read_text()), suggested.COURSES[name]
    if (here := suggested.versions(course.libraries)) != then["versions"]:
        pytest.skip(f"recorded with {then['versions']}, and here is {here}")

    now = suggested.kept(course.run(course.tested), course.libraries)

    assert now["first"] == then["first"][: len(now["first"])]
    assert now["hashes"] == then["hashes"][: len(now["hashes"])]


def test_each_recorded_course_is_played():
    assert {path.stem for path in suggested.FOLDER.glob("*.json")} == set(suggested.COURSES)
