"""Attempts' folders: made by who needs them, gone afterwards, also when a worker was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from mqtune.journal.base import Claim
from mqtune.trial import TrialId
from mqtune.worker.scratch import Scratch

CLAIM = Claim(TrialId("0007"), 2, "0123456789abcdef")


def test_an_attempts_folder_is_deleted_with_all_that_is_in_it(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path, "here")
    folder = scratch.folder("mnist", CLAIM)
    assert not folder.exists()
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").write_text("x")

    scratch.remove(folder)
    scratch.remove(folder)
    scratch.close()

    assert list(tmp_path.iterdir()) == []


def test_two_claims_of_one_name_have_folders_of_their_own(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path, "here")

    assert scratch.folder("mnist", CLAIM) != scratch.folder("mnist", CLAIM._replace(token="fedcba9876543210"))
    assert scratch.folder("mnist", CLAIM) != Scratch(tmp_path, "there").folder("mnist", CLAIM)


def test_a_sweep_takes_what_dead_workers_of_this_machine_left_and_nothing_else(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = tmp_path / ".scratch"
    names = [f"here.{dead.pid}", f"here.{os.getpid()}", f"here.{os.getppid()}", f"there.{dead.pid}", "something"]
    for name in names:
        (left / name / "attempt").mkdir(parents=True)

    Scratch(tmp_path, "here").sweep()

    # One that has this process's number is from a time before it had it.
    assert sorted(path.name for path in left.iterdir()) == sorted(names[2:])


def test_a_sweep_of_nothing_is_fine(tmp_path: Path) -> None:
    Scratch(tmp_path, "here").sweep()

    assert list(tmp_path.iterdir()) == []
