"""Checkpoints of real trials: what is kept, what is deleted, and what a broken one, or a store that isn't there, does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trainables_saving as saving
from pair import SPACE, Tune, both_run, counting, paused, rows, tuners, two_workers

import mqtune
from mqtune.checkpoints import open_store
from mqtune.core.errors import StoreMissing, StoreUnavailable, TrainableNotFound
from mqtune.core.trial import CheckpointId, TrialStatus
from mqtune.testing.backends.world import drive


@pytest.fixture(scope="module")
def pair(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with two_workers(broker, tmp_path_factory.mktemp("pair")):
        yield broker


@pytest.fixture
def tune(pair: str, tmp_path: Path) -> Iterator[Tune]:
    with tuners(pair, tmp_path / "store") as build:
        yield build


def folder_of(tuner: mqtune.Tuner, tmp_path: Path, checkpoint: str) -> Path:
    return tmp_path / "store" / tuner.name / checkpoint


# What a trial goes on from.


@pytest.mark.parametrize(
    "trainable",
    [saving.Counts, saving.CountsInDict, saving.in_files, saving.in_dicts, saving.in_folders],
    ids=lambda trainable: trainable.__name__,
)
def test_a_trial_that_is_paused_on_one_worker_goes_on_on_the_other(tune: Tune, trainable):
    tuner = tune(trainable, counting(lr=2), counting())
    trial, other = both_run(tuner)
    paused(tuner, trial)
    follower = tuner.add(counting())
    drive(tuner, lambda: follower.status is TrialStatus.RUNNING)
    tuner.trial(other).stop()
    drive(tuner, lambda: other.status.is_terminal)

    tuner.trial(trial).resume()
    drive(tuner, lambda: trial.attempt.reports >= 2)

    first, second = trial.attempts
    assert (first.worker, second.worker) == (follower.attempt.worker, other.attempt.worker)
    before, after = rows(tuner, trial, 1), rows(tuner, trial, 2)
    done = before[-1]["step"]
    assert [row["step"] for row in after[:2]] == [done + 1, done + 2]
    assert [row["training_iteration"] for row in after[:2]] == [done + 1, done + 2]
    assert after[0]["loss"] == -2.0 * (done + 1)
    ran_s = first.ended_at - first.started_at
    assert before[-1]["time_total_s"] < after[0]["time_total_s"] < ran_s + after[0]["time_this_iter_s"]
    if "iterations_since_restore" in after[0]:
        assert after[0]["iterations_since_restore"] == 1
    elif "before_s" in after[0]:
        assert 0.01 * done <= after[0]["before_s"] <= ran_s


# What is broken.


def _remove(folder: Path) -> None:
    open_store(str(folder.parent)).delete(CheckpointId(folder.name))


def _change(folder: Path) -> None:
    path = folder / "files" / "weights.bin"
    path.chmod(0o600)
    path.write_bytes(b"?" * path.stat().st_size)


@pytest.mark.parametrize(
    ("harm", "kind", "words"),
    [
        (_remove, "CheckpointGone", "it was deleted, or never saved there"),
        (_change, "CheckpointBroken", "'weights.bin' has the hash"),
    ],
    ids=["removed", "changed"],
)
def test_a_checkpoint_that_is_harmed_fails_its_trial_clearly_and_the_rest_goes_on(
    tune: Tune, tmp_path: Path, harm, kind, words
):
    tuner = tune(saving.in_files, counting(), counting())
    trial, other = both_run(tuner)
    paused(tuner, trial)
    harm(folder_of(tuner, tmp_path, trial.checkpoint))

    tuner.trial(trial).resume()
    drive(tuner, lambda: trial.status.is_terminal)

    assert (trial.status, trial.attempt.error_type) == (TrialStatus.FAILED, kind)
    assert words in trial.attempt.error
    assert trial.attempts[1].checkpoint in trial.reason
    reports = other.reports
    drive(tuner, lambda: other.reports > reports + 3)


@pytest.mark.parametrize(
    ("trainable", "options"),
    [(saving.in_files, {}), (saving.Counts, {"space": {**SPACE, "every": 1}})],
    ids=["a function", "a class"],
)
@pytest.mark.parametrize("max_failures", [0, 3])
def test_a_folder_without_a_store_ends_the_run_at_the_first_trial_that_saves_one(
    tune: Tune, trainable: Any, options: dict[str, Any], max_failures: int
):
    failures = mqtune.Failures(max_failures=max_failures)
    tuner = tune(trainable, *[counting(3)] * 50, store=None, failures=failures, **options)

    with pytest.raises(
        StoreMissing, match=r"^trial \d+: a checkpoint that is a directory needs a store .*Checkpoints\("
    ):
        tuner.run()

    assert len(tuner.get_trials()) < 50
    assert {len(trial.attempts) for trial in tuner.get_trials()} == {1}


# What is refused before the first trial.


def test_a_store_that_the_driver_can_not_write_is_refused_and_nothing_is_started(tune: Tune):
    tuner = tune(saving.in_files, counting(3), checkpoints=mqtune.Checkpoints("/proc/checkpoints"))

    with pytest.raises(StoreUnavailable, match="/proc/checkpoints"):
        tuner.run()

    assert tuner.get_trials() == []


def test_a_store_that_a_worker_can_not_reach_is_refused_before_the_first_trial_runs(tune: Tune):
    """Each process has a memory of its own."""
    tuner = tune(saving.in_files, *[counting(3)] * 5, checkpoints=mqtune.Checkpoints("memory://store"))

    with pytest.raises(StoreUnavailable, match=r"worker (one|two)@.*memory://store"):
        tuner.run()

    assert sum(trial.reports for trial in tuner.get_trials()) == 0
    assert {attempt.pid for trial in tuner.get_trials() for attempt in trial.attempts} == {0}


def test_a_script_that_is_not_executable_is_refused_when_the_tuner_is_built(tune: Tune, tmp_path: Path):
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\necho '[tune-metric]: {\"loss\": 1}'\n")

    with pytest.raises(TrainableNotFound, match=r"train\.sh' is not executable; run: chmod \+x"):
        tune(str(script), counting())
