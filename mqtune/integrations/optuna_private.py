"""What mqtune uses of Optuna that Optuna keeps to itself: no public interface of Optuna 4.3 to 5 has it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING

import optuna
from optuna.storages import BaseStorage, InMemoryStorage, RDBStorage
from optuna.trial import FrozenTrial

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, scoped_session


def storage_of(study: optuna.Study) -> BaseStorage:
    """Return the storage of a study."""
    return study._storage


def copy_over(study: optuna.Study, storage: BaseStorage) -> optuna.Study:
    """Return a copy of a study, which reads and writes another storage."""
    copied = copy.copy(study)
    copied._storage = storage
    return copied


def is_in_loop(study: optuna.Study) -> bool:
    """Whether this thread optimizes a study."""
    return study._thread_local.in_optimize_loop


def begin_loop(study: optuna.Study) -> None:
    """Have a study take ``stop``, and refuse ``optimize``, in this thread, as it does within ``optimize``."""
    study._thread_local.in_optimize_loop = True
    study._stop_flag = False


def end_loop(study: optuna.Study) -> None:
    """Have a study refuse ``stop``, and take ``optimize``, in this thread again."""
    study._thread_local.in_optimize_loop = False


def is_stopped(study: optuna.Study) -> bool:
    """Whether ``stop`` was called since the loop began, or since ``unstop``."""
    return study._stop_flag


def unstop(study: optuna.Study) -> None:
    """Have a study forget that it was stopped."""
    study._stop_flag = False


def backend_of(storage: BaseStorage) -> object:
    """Return the backend of a journal, or the database behind a cache; None for a storage that has neither."""
    return getattr(storage, "_backend", None)


def sessions_of(database: RDBStorage) -> scoped_session[Session]:
    """Return the sessions in which a database makes its writes."""
    return database.scoped_session


@contextlib.contextmanager
def in_session(database: RDBStorage, session: object) -> Iterator[None]:
    """Have a database make all of its writes in one session within the block; no other thread may use it meanwhile."""
    sessions = database.scoped_session
    vars(database)["scoped_session"] = lambda: session
    try:
        yield
    finally:
        vars(database)["scoped_session"] = sessions


def replace_trial(storage: InMemoryStorage, trial_id: int, trial: FrozenTrial) -> None:
    """Put another trial in the place of one that is in memory."""
    storage._set_trial(trial_id, trial)


def give_id(trial: optuna.Trial, trial_id: int) -> None:
    """Give a trial its id, by which Optuna's artifacts and terminators set attributes in its storage."""
    trial._trial_id = trial_id
