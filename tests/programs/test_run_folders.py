"""Programs that write below the working directory have it for themselves, and still read the project's files there."""

from __future__ import annotations

import pytest
from harness import Programs


@pytest.mark.parametrize("programs", ["alone"], indirect=True)
def test_loggers_that_take_the_next_free_folder_share_none(programs: Programs):
    programs.check("lightning_like.py")


@pytest.mark.parametrize("programs", ["fleet"], indirect=True)
def test_trainers_with_a_fixed_output_folder_keep_their_checkpoints_apart_and_read_data_beside_it(programs: Programs):
    programs.check("trainer_like.py")
