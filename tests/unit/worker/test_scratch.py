"""Attempts' folders: made by who needs them, gone afterwards, also when a worker was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from pathlib import Path

from waiting import ended_process as dead

from mqtune.core.machine import process_mark, started_at
from mqtune.core.trial import TrialId
from mqtune.journal import Claim
from mqtune.worker import Scratch

CLAIM = Claim(TrialId("0007"), 2, "0123456789abcdef")


def swept(root: Path) -> None:
    with contextlib.closing(Scratch(root)) as scratch:
        scratch.sweep()


def test_an_attempts_folder_is_deleted_with_all_that_is_in_it(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    folder = scratch.folder("mnist", CLAIM)
    assert not folder.exists()
    assert folder != scratch.folder("mnist", Claim(*CLAIM[:2], "fedcba9876543210"))
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file").write_text("x")

    scratch.remove(folder)
    scratch.remove(folder)
    scratch.close()

    assert list(tmp_path.iterdir()) == []


def test_a_sweep_takes_what_dead_workers_of_this_machine_left_and_nothing_else(tmp_path: Path) -> None:
    left = tmp_path / ".scratch"
    place, began = process_mark().split(".")
    gone = [f"here.{dead()}.{place}.{began}", f"here.{os.getppid()}.{place}.12345"]
    parents = f"{place}.{started_at(os.getppid())}"
    kept = [f"here.{os.getppid()}.{parents}", "something", f"here.{dead()}"]
    for name in gone + kept:
        (left / name / "attempt").mkdir(parents=True)
    swept(tmp_path)

    # One of another start than the process of its number is of one that has ended.
    assert {path.name for path in left.iterdir()} == set(kept)


def test_a_living_worker_of_another_machine_of_this_name_keeps_its_folders(tmp_path: Path) -> None:
    theirs = tmp_path / ".scratch" / f"{socket.gethostname()}.{dead()}.0123456789abcdef.77"
    (theirs / "attempt").mkdir(parents=True)
    lock = theirs.with_name(f"{theirs.name}.lock")
    hour_ago = time.time() - 3601

    lock.touch()
    swept(tmp_path)
    assert theirs.exists(), "its worker has just said that it lives"

    os.utime(lock, (hour_ago, hour_ago))
    with lock.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        swept(tmp_path)
        assert theirs.exists(), "its worker holds it"

    swept(tmp_path)
    assert not theirs.exists()
    assert not lock.exists()
