"""Programs tune what they have: closures, lambdas, methods, and functions of a notebook with the data of its cells."""

from __future__ import annotations

import pytest
from harness import WAYS_ANEW, Programs

#: On one machine each trial is a fork of the driver. On a fleet other kinds go as a closure does: see
#: test_rebuilt_trainables.py.
RUNS = [("alone", "lambda"), ("fleet", "instance")]


@pytest.mark.parametrize("programs", ["resumed on a fleet"], indirect=True)
def test_a_closure_over_self_is_tuned(programs: Programs):
    programs.check("closure_over_self.py")


@pytest.mark.parametrize(("programs", "kind"), RUNS, indirect=["programs"])
def test_an_objective_that_has_no_name_in_the_program_is_tuned(programs: Programs, kind: str):
    programs.check("objectives.py", kind, name=f"objectives-{kind}")


@pytest.mark.parametrize("programs", WAYS_ANEW, indirect=True)
def test_a_function_of_a_notebook_has_the_arrays_and_frames_of_other_cells(programs: Programs):
    pytest.importorskip("pyarrow", reason="frames travel by it")
    programs.check("notebook.ipynb")
