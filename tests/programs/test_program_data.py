"""Data that a program opens, splits or draws at the top is in each trial as in a program of its own."""

from __future__ import annotations

import json

import pytest
from harness import WAYS_RESUMED, Programs


def test_slots_read_an_archive_that_is_opened_at_the_top_without_mixing_it_up(programs: Programs):
    programs.check("npz_top.py")


def test_queries_run_in_trials_of_a_program_that_has_used_polars_at_the_top(programs: Programs):
    pytest.importorskip("polars")
    programs.check("polars_top.py")


@pytest.mark.parametrize("programs", ["resumed alone", "resumed on a fleet"], indirect=True)
def test_an_unseeded_split_is_one_on_all_workers_and_after_a_restart(programs: Programs):
    finished = programs.run("unseeded_split.py")
    finished.check_completed()
    if "fleet" in programs.way:
        assert len({trial.attempts[-1].worker for trial in finished.results}) == 2, "one worker ran all trials"
    assert len(finished.rows) == 6
    assert len(set(map(json.dumps, [row.get("rows") for row in finished.rows]))) == 1
    assert len(set(map(json.dumps, [row.get("columns") for row in finished.rows]))) == 1


@pytest.mark.parametrize("programs", WAYS_RESUMED, indirect=True)
def test_six_trials_draw_six_numbers_from_a_generator_that_is_made_at_the_top(programs: Programs):
    finished = programs.run("generator_top.py")
    finished.check_completed()
    kinds = ("rng", "old", "own", "uuid", "numpy", "python")
    assert {kind: len({row.get(kind) for row in finished.rows}) for kind in kinds} == dict.fromkeys(kinds, 6)
