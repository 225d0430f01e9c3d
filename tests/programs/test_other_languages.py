"""Programs of other languages are called as they want to be called, and their output is read as it is."""

from __future__ import annotations

from harness import Programs


def test_a_program_that_only_prints_is_tuned_by_a_pattern(programs: Programs):
    programs.check("tree_search.py")


def test_a_program_with_short_flags_and_a_file_is_tuned_by_a_template(programs: Programs):
    programs.check("svm_search.py")
