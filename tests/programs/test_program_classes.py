"""Classes and functions of a program are pickled, and found in processes that a trial begins, as they are by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import Programs


def test_pools_of_each_kind_call_a_function_of_the_program(programs: Programs):
    programs.check("process_pool.py")


@pytest.mark.parametrize("programs", ["fleet"], indirect=True)
def test_joblib_returns_objects_of_the_program(programs: Programs):
    programs.check("loky.py")


@pytest.mark.parametrize("programs", ["fleet"], indirect=True)
def test_the_program_loads_the_model_that_its_best_trial_has_pickled(programs: Programs):
    finished = programs.check("pickled_model.py")
    assert "pickle: Model(slope=0.6)" in finished.output
    assert "joblib: Model(slope=0.6)" in finished.output


def test_a_program_that_rewraps_its_output_prints_into_that_of_each_trial_and_its_arrays_are_reported(
    programs: Programs,
):
    finished = programs.check("rewrapped_stdout.py")
    for trial in finished.results:
        printed = Path(trial.log_paths[0]).read_text(encoding="utf-8")
        assert "loading the data …" in printed
        assert f"training with {trial.config['x']} …" in printed
