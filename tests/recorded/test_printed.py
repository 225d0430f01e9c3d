"""Golden files: each command prints of each recorded experiment what it printed."""

from __future__ import annotations

from pathlib import Path

import pytest
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
