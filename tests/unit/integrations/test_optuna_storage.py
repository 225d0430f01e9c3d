"""Storage in front of a study's own: flushed writes, and changes by other processes."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend
from optuna.trial import TrialState, create_trial

from mqtune.integrations import DeferredStorage

X = FloatDistribution(0, 1)
optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with Optuna's tables, which take long to make."""
    path = tmp_path_factory.mktemp("optuna") / "study.db"
    optuna.storages.get_storage(f"sqlite:///{path}").remove_session()
    return path


@pytest.fixture
def database(tmp_path: Path, empty_database: Path) -> str:
    """The address of a database of its own."""
    return f"sqlite:///{shutil.copy(empty_database, tmp_path)}"


@pytest.fixture(params=["memory", "sqlite", "journal"])
def behind(request: pytest.FixtureRequest, tmp_path: Path) -> BaseStorage:
    if request.param == "journal":
        return JournalStorage(JournalFileBackend(f"{tmp_path}/study.log"))
    if request.param == "memory":
        return InMemoryStorage()
    return optuna.storages.get_storage(request.getfixturevalue("database"))


def deferred(behind: BaseStorage) -> tuple[DeferredStorage, int, int]:
    """A study with a trial that runs, with its parameter."""
    study = behind.create_new_study([optuna.study.StudyDirection.MINIMIZE], "study")
    storage = DeferredStorage(behind, study)
    trial = storage.create_new_trial(study, create_trial(state=TrialState.RUNNING, user_attrs={"mark": 1}))
    storage.set_trial_param(trial, "x", 0.25, X)
    return storage, study, trial


def say_all(storage: BaseStorage, trial: int) -> None:
    storage.set_trial_param(trial, "y", 1.0, CategoricalDistribution(["a", "b"]))
    storage.set_trial_intermediate_value(trial, 3, 0.5)
    storage.set_trial_user_attr(trial, "user", [1, None])
    storage.set_trial_user_attr(trial, "user", [2])
    storage.set_trial_system_attr(trial, "system", "s")
    storage.set_trial_state_values(trial, TrialState.COMPLETE, [0.75])


def test_the_storage_behind_has_after_a_flush_what_was_seen_at_once(behind: BaseStorage) -> None:
    storage, study, trial = deferred(behind)
    say_all(storage, trial)
    assert (there := behind.get_trial(trial)).state is TrialState.RUNNING
    assert (there.params, there.user_attrs) == ({}, {"mark": 1})
    seen = storage.get_all_trials(study)

    storage.flush()

    written = behind.get_all_trials(study)
    for trials in (seen, written):
        trials[0].datetime_complete = None
    assert written == seen
    assert written[0].params == {"x": 0.25, "y": "b"}
    assert storage.get_best_trial(study).value == 0.75


class Full(BaseJournalBackend):
    """A journal in memory whose disk can be full."""

    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []
        self.is_full = False

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.logs += logs

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        return self.logs[log_number_from:]


def test_writes_that_a_full_disk_has_refused_are_made_the_next_time() -> None:
    journal = Full()
    storage, study, trial = deferred(JournalStorage(journal))
    say_all(storage, trial)
    journal.is_full = True
    with pytest.raises(OSError, match="No space left"):
        storage.create_new_trial(study)
    journal.is_full = False

    storage.create_new_trial(study)

    first, second = JournalStorage(journal).get_all_trials(study)
    assert (first.state, first.params, first.value) == (TrialState.COMPLETE, {"x": 0.25, "y": "b"}, 0.75)
    assert second.state is TrialState.RUNNING


def test_a_trial_that_somebody_else_ends_stays_so_and_others_are_written(behind: BaseStorage) -> None:
    storage, study, trial = deferred(behind)
    second, third = (storage.create_new_trial(study) for _ in range(2))
    for each in (trial, second):
        behind.set_trial_state_values(each, TrialState.FAIL)
    storage.set_trial_user_attr(third, "kept", 1)
    storage.set_trial_state_values(second, TrialState.COMPLETE, [1.0])

    storage.flush()
    storage.refresh()

    assert behind.get_trial(third).user_attrs == {"kept": 1}
    assert [each.state for each in storage.get_all_trials(study)] == [TrialState.FAIL] * 2 + [TrialState.RUNNING]
    with pytest.raises(UpdateFinishedTrialError):
        storage.set_trial_user_attr(trial, "late", 1)
    storage.flush()


def test_a_value_that_another_process_makes_impossible_ends_nothing(database: str) -> None:
    behind, elsewhere = optuna.storages.get_storage(database), optuna.storages.get_storage(database)
    storage, study, trial = deferred(behind)
    theirs = elsewhere.create_new_trial(study)
    elsewhere.set_trial_param(theirs, "x", 0, CategoricalDistribution(["a"]))
    say_all(storage, trial)

    storage.flush()

    assert (written := behind.get_trial(trial)).state is TrialState.COMPLETE
    assert written.params == {"y": "b"}


def test_trials_of_others_are_seen_after_a_refresh(behind: BaseStorage) -> None:
    storage, study, trial = deferred(behind)
    queued = behind.create_new_trial(study, create_trial(state=TrialState.WAITING))
    assert len(storage.get_all_trials(study)) == 1
    storage.refresh()
    assert [each.state for each in storage.get_all_trials(study)] == [TrialState.RUNNING, TrialState.WAITING]
    assert storage.set_trial_state_values(queued, TrialState.RUNNING)
    storage.take_over(queued)
    storage.set_trial_param(queued, "x", 0.5, X)
    with pytest.raises(ValueError, match="different distribution kind"):
        storage.set_trial_param(trial, "x", 0, CategoricalDistribution(["a"]))
    storage.flush()
    assert behind.get_trial(queued).params == {"x": 0.5}


@pytest.mark.parametrize("is_queued", [False, True])
def test_a_new_or_queued_trial_has_its_marks_from_the_beginning(behind: BaseStorage, is_queued: bool) -> None:
    storage, *_ = deferred(behind)
    own = optuna.Study("study", storage)
    if is_queued:
        own.enqueue_trial({"x": 0.5})

    with storage.mark_next({"mark": "m"}) as begun:
        handle = own.ask()

    (id_,) = begun
    there = behind.get_trial(id_)
    assert (there.number, there.system_attrs["mark"], "fixed_params" in there.system_attrs) == (1, "m", is_queued)
    assert (there.state, storage.last_seen(1).system_attrs) == (TrialState.RUNNING, there.system_attrs)
    handle.suggest_float("x", 0, 1)
    assert (behind.get_trial(id_).params, "x" in storage.last_seen(1).params) == ({}, True)
    assert own.ask().number == 2
    assert "mark" not in storage.last_seen(2).system_attrs


def test_trials_that_were_read_do_not_get_system_attributes_that_are_set_later(behind: BaseStorage) -> None:
    storage, study, trial = deferred(behind)
    (read,) = storage.get_all_trials(study, deepcopy=False)

    storage.set_trial_system_attr(trial, "rung", 0.5)
    storage.set_trial_param(trial, "y", 0.5, X)

    assert "rung" not in read.system_attrs
    now = storage.get_trial(trial)
    assert (now.system_attrs["rung"], now.params) == (0.5, {"x": 0.25, "y": 0.5})
    assert storage.get_all_trials(study, deepcopy=False) == [now]
