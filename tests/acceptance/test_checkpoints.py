"""Checkpoints of real trials: what is kept, what is deleted, and what a broken one, or a store that isn't there, does."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trainables_saving as saving
from pair import SPACE, Tune, both_run, counting, finished, paused, rows, tuners, two_workers
from waiting import eventually

import mqtune
from mqtune.checkpoints import CheckpointStore, experiment_url, open_store
from mqtune.core.errors import CheckpointGone, ConfigurationError, StoreMissing, StoreUnavailable, TrainableNotFound
from mqtune.core.keys import ExperimentKeys
from mqtune.core.trial import CheckpointId, TrialStatus
from mqtune.journal.connection import connect
from mqtune.journal.redis import RedisJournal
from mqtune.testing.backends.world import drive


@pytest.fixture(scope="module")
def pair(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with two_workers(broker, tmp_path_factory.mktemp("pair")):
        yield broker


@pytest.fixture
def tune(pair: str, tmp_path: Path) -> Iterator[Tune]:
    with tuners(pair, tmp_path / "store") as build:
        yield build


@pytest.fixture
def held(pair: str) -> Iterator[Callable[[mqtune.Tuner], set[str]]]:
    """What Redis holds of an experiment's dicts."""
    with contextlib.closing(connect(pair)) as client:

        def held(tuner: mqtune.Tuner) -> set[str]:
            return {key.decode() for key in client.hkeys(ExperimentKeys(tuner.name).checkpoints)}

        yield held


def store_of(tuner: mqtune.Tuner, tmp_path: Path) -> CheckpointStore:
    return open_store(experiment_url(tmp_path / "store", tuner.name))


def folder_of(tuner: mqtune.Tuner, tmp_path: Path, checkpoint: str) -> Path:
    return tmp_path / "store" / tuner.name / checkpoint


# What is kept.


def test_the_last_and_the_best_checkpoints_are_kept_and_all_others_deleted(tune: Tune, tmp_path: Path):
    tuner = tune(
        saving.CountsOften, counting(30, step_s=0.002), checkpoints=mqtune.Checkpoints(keep_last=2, keep_best=2)
    )
    store = store_of(tuner, tmp_path)

    (trial,) = finished(tuner)
    tuner.close()

    # The loss falls with each step, so that the best are the last.
    assert store.ids() == sorted(trial.checkpoints)
    assert [saved.metrics["step"] for saved in trial.checkpoints.values()] == [29, 30]
    store.fetch(trial.checkpoint, tmp_path / "fetched")
    assert json.loads((tmp_path / "fetched" / "total.json").read_text()) == 30.0


def test_a_best_checkpoint_outlives_later_ones_that_are_worse(tune: Tune, tmp_path: Path):
    keeps = mqtune.Checkpoints(keep_last=1, keep_best=1, score="step", mode="min")
    tuner = tune(saving.CountsOften, counting(20, step_s=0.002), checkpoints=keeps)

    (trial,) = finished(tuner)
    tuner.close()

    assert [saved.metrics["step"] for saved in trial.checkpoints.values()] == [1, 20]
    assert store_of(tuner, tmp_path).ids() == sorted(trial.checkpoints)


def test_dicts_that_nothing_needs_are_deleted_from_redis(tune: Tune, held):
    tuner = tune(saving.in_dicts, counting(), counting())
    first, second = both_run(tuner, 10)
    drive(tuner, lambda: len(held(tuner)) <= 6)
    paused(tuner, first)
    drive(tuner, lambda: held(tuner) >= {first.checkpoint})

    tuner.trial(second).stop()
    drive(tuner, lambda: second.status.is_terminal)
    tuner.trial(first).stop()
    finished(tuner)

    best = tuner.results().best.trial
    eventually(lambda: held(tuner) == set(best.checkpoints))
    assert [trial.checkpoints for trial in (first, second) if trial is not best] == [{}]


def test_what_a_paused_trial_names_stays_and_goes_when_it_ends(tune: Tune, tmp_path: Path):
    tuner = tune(saving.CountsOften, counting(), counting(lr=9), checkpoints=mqtune.Checkpoints(delete=True))
    store = store_of(tuner, tmp_path)
    trial, other = both_run(tuner)
    paused(tuner, trial)
    named = trial.checkpoint

    reports = other.reports
    drive(tuner, lambda: other.reports > reports + 20)
    assert named in store.ids()
    tuner.trial(trial).stop()

    eventually(lambda: not [one for one in store.ids() if one.split("-")[1] == trial.id])
    assert trial.checkpoints == {}


def test_what_a_fork_began_with_stays_until_it_has_its_own(tune: Tune, tmp_path: Path):
    tuner = tune(saving.CountsOften, counting(lr=0.01), checkpoints=mqtune.Checkpoints(delete=True))
    store = store_of(tuner, tmp_path)
    drive(tuner, lambda: tuner.get_trials() and tuner.trial("0001").record.checkpoint)
    source = tuner.trial("0001").record

    fork = tuner.add(counting(lr=9, step_s=2), source=source)
    named = fork.attempt.checkpoint
    drive(tuner, lambda: fork.status is TrialStatus.RUNNING)
    tuner.trial(source).stop()
    better = tuner.add(counting(3, lr=9.5))
    drive(tuner, lambda: better.status.is_terminal and source.status.is_terminal)

    # The source ended as the best one, and is no more: nothing else of it is left.
    eventually(lambda: [one for one in store.ids() if one.split("-")[1] == source.id] == [named])
    drive(tuner, lambda: fork.reports >= 1)
    saved = [r for r in tuner.results().reports(source.id) if r.checkpoint == named]
    assert fork.last_metrics["loss"] == saved[0].metrics["loss"] - 9
    tuner.trial(fork).stop()
    drive(tuner, lambda: fork.status.is_terminal)
    eventually(lambda: named not in store.ids())


def test_checkpoints_of_stopped_trials_are_deleted_if_that_is_asked_for_and_never_the_best_ones(
    tune: Tune, tmp_path: Path
):
    tuner = tune(
        saving.CountsOften,
        counting(lr=1),
        counting(lr=5),
        counting(4, lr=0.5),
        stop={"loss": -40.0},
        checkpoints=mqtune.Checkpoints(delete="stopped"),
    )
    drive(tuner, lambda: sum(trial.reports > 0 for trial in tuner.get_trials()) == 2)
    tuner.trial("0001").stop()
    trials = finished(tuner)
    tuner.close()

    kept = {one.split("-")[1] for one in store_of(tuner, tmp_path).ids()}
    assert trials[0].status is TrialStatus.EARLY_STOPPED
    assert tuner.results().best.id == "0002"
    assert kept == {"0002", "0003"}


def test_the_local_copy_of_a_checkpoint_goes_with_its_attempt_and_the_checkpoint_stays_as_it_was(
    tune: Tune, tmp_path: Path
):
    tuner = tune(saving.in_files, counting(), counting())
    trial, _ = both_run(tuner)
    paused(tuner, trial)
    named = trial.checkpoint
    tuner.trial(trial).resume()
    drive(tuner, lambda: trial.attempt.reports)
    row = rows(tuner, trial, 2)[0]
    assert (Path(row["copy"]) / "scratched").is_file()

    again = folder_of(tuner, tmp_path, named)
    assert not list(again.rglob("scratched"))
    paused(tuner, trial)

    assert not Path(row["copy"]).exists()
    assert not Path(row["folder"]).exists()


def test_a_function_saves_when_it_is_asked_to(tune: Tune, held):
    tuner = tune(saving.on_demand, counting(), counting())
    trial, other = both_run(tuner)
    assert not trial.checkpoint

    tuner.trial(trial).save()
    drive(tuner, lambda: trial.checkpoint)

    assert trial.checkpoint in held(tuner)
    reports = trial.reports
    drive(tuner, lambda: trial.reports > reports + 3)
    assert trial.last_metrics["saved"] == 1
    assert other.last_metrics["saved"] == 0


def test_a_class_saves_between_two_steps_when_it_is_asked_to(tune: Tune, tmp_path: Path):
    tuner = tune(saving.Counts, counting(), counting())
    trial, _ = both_run(tuner)

    tuner.trial(trial).save()
    drive(tuner, lambda: trial.checkpoint)

    counters = store_of(tuner, tmp_path).fetch(trial.checkpoint, tmp_path / "fetched")
    assert json.loads((tmp_path / "fetched" / "total.json").read_text()) == counters["training_iteration"]
    assert counters["time_total_s"] > 0


# What is broken.


def _remove(folder: Path) -> None:
    open_store(str(folder.parent)).delete(CheckpointId(folder.name))


def _cut(folder: Path) -> None:
    path = folder / "files" / "weights.bin"
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1])


def _change(folder: Path) -> None:
    path = folder / "files" / "weights.bin"
    path.chmod(0o600)
    path.write_bytes(b"?" * path.stat().st_size)


def _age(folder: Path) -> None:
    path = folder / "manifest.json"
    path.chmod(0o600)
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 99}))


def _lose_a_file(folder: Path) -> None:
    (folder / "files" / "weights.bin").unlink()


@pytest.mark.parametrize(
    ("harm", "kind", "words"),
    [
        (_remove, "CheckpointGone", "it was deleted, or never saved there"),
        (_cut, "CheckpointBroken", "'weights.bin' has 999 bytes instead of 1,000"),
        (_change, "CheckpointBroken", "'weights.bin' has the hash"),
        (_lose_a_file, "CheckpointBroken", "weights.bin"),
        (_age, "CheckpointVersionError", "manifest of version 99"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
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


def test_a_dict_that_is_gone_from_redis_fails_its_trial_clearly_and_the_rest_goes_on(tune: Tune, pair: str):
    tuner = tune(saving.in_dicts, counting(), counting())
    trial, other = both_run(tuner)
    paused(tuner, trial)
    with contextlib.closing(connect(pair)) as client:
        assert client.hdel(ExperimentKeys(tuner.name).checkpoints, trial.checkpoint) == 1
        assert RedisJournal(client, tuner.name).checkpoint(trial.checkpoint) is None

    tuner.trial(trial).resume()
    drive(tuner, lambda: trial.status.is_terminal)

    assert (trial.status, trial.attempt.error_type) == (TrialStatus.FAILED, "CheckpointGone")
    assert f"checkpoint {trial.attempt.checkpoint} was held in Redis and is gone" in trial.reason
    reports = other.reports
    drive(tuner, lambda: other.reports > reports + 3)


def test_a_trial_whose_checkpoint_is_gone_is_restarted_from_scratch_or_from_another(tune: Tune, tmp_path: Path):
    tuner = tune(saving.in_files, counting(), counting())
    trial, other = both_run(tuner)
    paused(tuner, trial)
    _remove(folder_of(tuner, tmp_path, trial.checkpoint))

    tuner.trial(trial).restart(source=other.id)
    drive(tuner, lambda: trial.attempt.reports)

    assert rows(tuner, trial, 2)[0]["step"] > 1
    assert trial.attempt.source == other.id


def test_trials_start_from_a_folder_of_the_drivers_machine_and_from_a_checkpoint_that_is_chosen(
    tune: Tune, tmp_path: Path
):
    tuner = tune(saving.in_folders, checkpoints=mqtune.Checkpoints(keep_last=None))
    folder = tmp_path / "from elsewhere"
    folder.mkdir()
    (folder / "state.json").write_text(json.dumps({"step": 40, "total": 400.0}))

    first = tuner.add(counting(44, step_s=0.001), checkpoint=folder)
    drive(tuner, lambda: first.status is TrialStatus.COMPLETED)
    _, begun_with, *_ = first.checkpoints
    second = tuner.add(counting(44, step_s=0.001), checkpoint=begun_with)
    drive(tuner, lambda: second.status is TrialStatus.COMPLETED)

    assert [row["step"] for row in rows(tuner, first, 1)] == [41, 42, 43, 44]
    assert [row["step"] for row in rows(tuner, second, 1)] == [42, 43, 44]
    assert (second.parent, second.attempt.checkpoint) == (first.id, begun_with)


def test_what_can_not_be_saved_fails_its_trial_with_the_way_out(tune: Tune):
    tuner = tune(saving.too_large, counting(3))

    (trial,) = finished(tuner)

    assert trial.status is TrialStatus.FAILED
    assert "the dict has 2,000,058 bytes and the most is 1,000,000" in trial.reason


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
    assert {len(trial.attempts) for trial in tuner.get_trials() if trial.reports} <= {1}


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


def test_a_mutation_of_what_the_space_does_not_have_is_refused_when_the_tuner_is_built(tune: Tune):
    pbt = mqtune.PBT(perturbation_interval=3, hyperparam_mutations={"momentum": mqtune.uniform(0, 1)})

    with pytest.raises(ConfigurationError, match="'momentum'"):
        tune(saving.CountsOften, counting(), scheduler=pbt)


def test_a_script_that_is_not_executable_is_refused_when_the_tuner_is_built(tune: Tune, tmp_path: Path):
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\necho '[tune-metric]: {\"loss\": 1}'\n")

    with pytest.raises(TrainableNotFound, match=r"train\.sh' is not executable; run: chmod \+x"):
        tune(str(script), counting())


def test_a_script_that_is_not_executable_on_the_worker_ends_the_run_and_says_what_to_do(tune: Tune):
    script = Path(saving.__file__).with_name(f"script-{os.getpid()}.sh")
    with contextlib.ExitStack() as stack:
        stack.callback(script.unlink)
        script.write_text("#!/bin/sh\necho '[tune-metric]: {\"loss\": 1}'\n")
        script.chmod(0o755)
        stack.enter_context(contextlib.chdir(script.parent))
        tuner = tune(script.name, *[counting()] * 3)
        script.chmod(0o644)

        with pytest.raises(TrainableNotFound, match=r"worker (one|two)@(?s:.*)is not executable; run: chmod \+x"):
            tuner.run()


# What a user gets back.


@pytest.mark.parametrize("trainable", [saving.in_dicts, saving.in_files], ids=["dict", "files"])
def test_the_best_trials_checkpoint_is_there_on_the_drivers_machine_after_the_run(tune: Tune, trainable):
    tuner = tune(trainable, counting(4), counting(6))
    best = tuner.run().best

    checkpoint = tuner.trial(best.id).get_checkpoint()

    text = json.dumps(checkpoint.data) if checkpoint.is_dict else (checkpoint.path / "deep/state.json").read_text()
    assert json.loads(text) == {"step": 6, "total": 6.0}
    assert checkpoint.counters["training_iteration"] == 6


def test_a_class_writes_its_model_again_from_a_checkpoint(tune: Tune, tmp_path: Path):
    tuner = tune(saving.CountsOften, counting(4))
    tuner.run()

    tuner.trial("0001").export_model("text", tmp_path / "model")

    assert (tmp_path / "model" / "total.txt").read_text() == "4.0"
    with pytest.raises(ConfigurationError, match=r"'onnx'.*text"):
        tuner.trial("0001").export_model("onnx", tmp_path / "other")


def test_what_has_no_checkpoint_or_lost_it_can_not_be_fetched(tune: Tune, tmp_path: Path):
    tuner = tune(saving.in_files, counting(3), counting(0), run=mqtune.RunOptions(max_concurrent=1))
    first, second = finished(tuner)
    _remove(folder_of(tuner, tmp_path, first.checkpoint))

    with pytest.raises(CheckpointGone, match=first.checkpoint):
        tuner.trial(first).get_checkpoint()
    with pytest.raises(ConfigurationError, match="trial 0002 has no checkpoint"):
        tuner.trial(second).get_checkpoint()
