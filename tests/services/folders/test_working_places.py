"""Unused places of working folders are deleted, and new files of dead attempts are kept."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attempts import TrialProcess
from waiting import ended_process, eventually

from mqtune.core.machine import process_mark
from mqtune.core.trial import AttemptEnd, TrialId
from mqtune.journal import Claim
from mqtune.services.folders.worker import Folders
from mqtune.services.folders.working_folder import make
from mqtune.trainable import Program, TrainableSpec
from mqtune.worker import Scratch


def an_attempt(trial: str, **definition: str) -> Any:
    journal = SimpleNamespace(experiment="x")
    return SimpleNamespace(
        journal=journal,
        claim=Claim(TrialId(trial), 1, "0123456789abcdef"),
        definition={"working_dir": "trial", **definition},
    )


def used(place: Path, working_dir: Path | None, source: Path, file: str = "") -> None:
    """Make a working folder, as a trial's process does, and write a file in it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    working = make(source, place)
    if file:
        (working / file).write_text("new")
    if working_dir is not None:
        working_dir.parent.mkdir(parents=True, exist_ok=True)
        working_dir.symlink_to(working)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "data.txt").write_text("old")
    return tmp_path / "project"


def test_a_worker_that_ends_deletes_unused_places_alone(tmp_path: Path, source: Path) -> None:
    log_root = tmp_path / "logs"
    scratch = Scratch(log_root)
    folders = Folders(log_root, scratch)
    places = log_root / "x" / ".work" / scratch.name
    ended, runs = an_attempt("0001"), an_attempt("0002")
    used(places / "ended", folders.working_dir(ended), source, "model.txt")
    used(places / "runs", folders.working_dir(runs), source, "model.txt")
    used(places / "unused", None, source)

    folders.ending(ended, AttemptEnd.COMPLETED)
    folders.close()

    assert {path.name for path in places.iterdir()} == {"runs"}
    assert [*map(str, (folders.working_dir(ended) or Path()).rglob("*.txt"))] == [
        str(log_root / "x" / "0001" / f"1-{ended.claim.mark}" / "model.txt")
    ]
    (folders.working_dir(runs) or Path()).unlink()
    folders.close()
    assert not places.parent.exists()


def test_new_files_of_a_killed_workers_attempts_reach_their_working_directory(tmp_path: Path, source: Path) -> None:
    log_root = tmp_path / "logs"
    killed = f"here.{ended_process()}.{process_mark()}"
    (log_root / ".scratch" / killed).mkdir(parents=True)
    working_dir = log_root / "x" / "0001" / "1-mark"
    used(log_root / "x" / ".work" / killed / "place", working_dir, source, "model.txt")

    with contextlib.closing(Scratch(log_root)) as scratch:
        Folders(log_root, scratch)
        scratch.sweep()

    assert not working_dir.is_symlink()
    assert [path.name for path in working_dir.iterdir()] == ["model.txt"]
    assert not (log_root / "x" / ".work" / killed).exists()


def test_a_process_that_no_attempt_uses_deletes_its_place(tmp_path: Path, source: Path) -> None:
    (source / "job.py").write_text("def train(config): ...")
    places = tmp_path / "logs" / "x" / ".work" / "worker"
    spec, parts = TrainableSpec("train", module="job"), (("mqtune.services.folders.part", str(places)),)
    program = Program(spec, source, source, parts=parts, spawns=True)
    (tmp_path / "attempt").mkdir()

    spare = TrialProcess(tmp_path / "attempt", spec, source, program=program)
    with contextlib.closing(spare):
        eventually(lambda: [*places.glob("*/project/data.txt")])
        spare.leave()

    assert [path.name for path in places.iterdir()] == [".links"]
