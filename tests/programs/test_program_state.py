"""A program changes its libraries once in each trial, as by hand."""

from __future__ import annotations

from harness import Programs


def test_a_program_registers_and_patches_once(programs: Programs):
    programs.check("registers_at_top.py")
