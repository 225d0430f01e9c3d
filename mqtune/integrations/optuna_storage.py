"""A storage in front of a study's own one, with cached reads and combined writes."""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from mqtune.extend import importing

with importing("Optuna", "optuna"):
    import optuna
    from optuna.distributions import BaseDistribution, check_distribution_compatibility
    from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
    from optuna.storages import BaseStorage, RDBStorage, get_storage
    from optuna.study import StudyDirection
    from optuna.trial import FrozenTrial, TrialState, create_trial

    from mqtune.integrations.optuna_private import database_of

logger = optuna.logging.get_logger("optuna.mqtune")

_Write = Callable[[], object]


class DeferredStorage(BaseStorage):
    """Storage of one study in the process that runs its trials, for a single thread.

    A new trial is written immediately. Its values and its end are visible here immediately, and in the study's own
    storage after ``flush``. An end set by another process is kept. Changes by other processes are visible after
    ``refresh``.
    """

    def __init__(self, behind: BaseStorage, study_id: int) -> None:
        #: The database with connections of its own, as other threads use the study's.
        self._database = _reopen(behind)
        self._behind = get_storage(self._database) if self._database is not None else behind
        self._study_id = study_id
        self._trials: dict[int, FrozenTrial] = {}
        #: The trials that run here or have an unwritten end, by id.
        self._own: dict[int, FrozenTrial] = {}
        self._distributions: dict[str, BaseDistribution] = {}
        #: The writes to make, by trial and subject. A later write of one attribute replaces an earlier one.
        self._pending: dict[tuple[int, *tuple[object, ...]], _Write] = {}
        self._since = 0.0
        self._is_trying = False
        #: The system attributes for the next trial, and the list that its id is added to.
        self._marks: dict[str, object] = {}
        self._begun: list[int] = []
        self.refresh()

    def close(self) -> None:
        """Close this storage's own connections."""
        if self._database is not None:
            self._database.remove_session()
            self._database.engine.dispose()

    def due_s(self, lag_s: float) -> float:
        """Return the seconds until the oldest pending write is *lag_s* old, or infinity without one."""
        return self._since + lag_s - time.monotonic() if self._pending else math.inf

    def refresh(self) -> None:
        """Read the changes of the study by other processes."""
        trials: dict[int, FrozenTrial] = {}
        ids = {trial.number: id_ for id_, trial in self._own.items()}
        for trial in self._behind.get_all_trials(self._study_id, deepcopy=False):
            own = self._own[ids[trial.number]] if trial.number in ids else None
            if own is not None and trial.state.is_finished() and not own.state.is_finished():
                own = None
                del self._own[ids[trial.number]]
            trials[trial.number] = own or trial
            if own is None and self._trials.get(trial.number) is not trial:
                self._distributions.update(trial.distributions)
        self._trials = trials

    def flush(self, then: _Write | None = None) -> None:
        """Make the pending writes, and then call *then*. In a database, all is one transaction.

        After a failure of the storage, which is raised, the next call repeats all pending writes.
        """
        writes = [write for (id_, *_), write in self._pending.items() if id_ in self._own]
        last = [then] if then is not None else []
        if not (self._database and writes and _write_together(self._database, [*writes, *last])):
            for write in writes:
                _write_alone(write)
            for write in last:
                write()
        self._pending.clear()
        self._own = {id_: trial for id_, trial in self._own.items() if not trial.state.is_finished()}

    def _defer(self, write: _Write, trial_id: int, *change: object) -> None:
        if not self._pending:
            self._since = time.monotonic()
        self._pending[trial_id, *change] = write

    def take_over(self, trial_id: int) -> FrozenTrial:
        """Return a trial. If it has not ended, defer its further changes, as this process runs it now."""
        trial = self.get_trial(trial_id)
        if trial_id not in self._own and not trial.state.is_finished():
            trial = copy.deepcopy(trial)
            self._put(trial_id, trial)
        return trial

    def _put(self, trial_id: int, trial: FrozenTrial) -> None:
        self._own[trial_id] = self._trials[trial.number] = trial

    def last_seen(self, number: int) -> FrozenTrial:
        """Return a trial as last set or read here."""
        return self._trials[number]

    @contextlib.contextmanager
    def mark_next(self, marks: Mapping[str, object]) -> Iterator[list[int]]:
        """Set system attributes on the trial that begins within the block.

        Yield a list, which has the trial's id afterwards.
        """
        self._marks, self._begun = dict(marks), []
        try:
            yield self._begun
        finally:
            self._marks = {}

    @contextlib.contextmanager
    def trying(self, trial_id: int) -> Iterator[list[tuple[str, BaseDistribution, float]]]:
        """List the parameters that a trial gets within the block, and withdraw them at its end."""
        trial, tried = self._own[trial_id], list[tuple[str, BaseDistribution, float]]()
        before = {*trial.params}
        self._is_trying = True
        try:
            yield tried
        finally:
            self._is_trying = False
            for name in [name for name in trial.params if name not in before]:
                distribution = trial.distributions.pop(name)
                tried.append((name, distribution, distribution.to_internal_repr(trial.params.pop(name))))

    def _own_running(self, trial_id: int) -> FrozenTrial | None:
        """Return a trial if it runs here, or None.

        Raises:
            UpdateFinishedTrialError: it runs here no more, as it has ended.
        """
        trial = self._own.get(trial_id)
        if trial is not None:
            self.check_trial_is_updatable(trial_id, trial.state)
        return trial

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """Create a trial in the study's own storage, after the pending writes."""
        is_next = template_trial is None and bool(self._marks)
        template = create_trial(state=TrialState.RUNNING, system_attrs=self._marks) if is_next else template_trial
        created: list[int] = []
        self.flush(lambda: created.append(self._behind.create_new_trial(study_id, template)))
        id_ = created[-1]
        if template is not None and template.state is not TrialState.RUNNING:
            # An enqueued trial begins later, as one of another process would. An ended one is not written again.
            self.refresh()
            return id_
        self.take_over(id_)
        if is_next:
            self._begun.append(id_)
        return id_

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution
    ) -> None:
        write = partial(self._behind.set_trial_param, trial_id, param_name, param_value_internal, distribution)
        if (trial := self._own_running(trial_id)) is None:
            write()
            return
        check_distribution_compatibility(self._distributions.setdefault(param_name, distribution), distribution)
        trial.params[param_name] = distribution.to_external_repr(param_value_internal)
        trial.distributions[param_name] = distribution
        if not self._is_trying:
            self._defer(write, trial_id, "parameter", param_name)

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        """End a trial, or begin an enqueued one. Return whether its state has changed."""
        write = partial(self._behind.set_trial_state_values, trial_id, state, values)
        if (trial := self._own_running(trial_id)) is None:
            has_changed = write()
            if has_changed and self._marks and state is TrialState.RUNNING:
                for key, value in self._marks.items():
                    self.set_trial_system_attr(trial_id, key, value)
                self.take_over(trial_id)
                self._begun.append(trial_id)
            return has_changed
        trial.values = None if values is None else list(values)
        trial.state, trial.datetime_complete = state, datetime.now()  # noqa: DTZ005 - as Optuna does
        self._defer(write, trial_id, "state")
        return True

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        write = partial(self._behind.set_trial_intermediate_value, trial_id, step, intermediate_value)
        if (trial := self._own_running(trial_id)) is None:
            write()
            return
        trial.intermediate_values[step] = intermediate_value
        self._defer(write, trial_id, "step", step)

    def set_trial_user_attr(self, trial_id: int, key: str, value: object) -> None:
        write = partial(self._behind.set_trial_user_attr, trial_id, key, value)
        if (trial := self._own_running(trial_id)) is None:
            write()
            return
        trial.user_attrs[key] = value
        self._defer(write, trial_id, "user attribute", key)

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        write = partial(self._behind.set_trial_system_attr, trial_id, key, value)
        if (trial := self._own_running(trial_id)) is None:
            write()
            return
        # On a copy, as a pruner sets its attribute while it still uses the trials that it has read.
        trial = copy.copy(trial)
        trial.system_attrs = {**trial.system_attrs, key: value}
        self._put(trial_id, trial)
        self._defer(write, trial_id, "system attribute", key)

    def get_trial(self, trial_id: int) -> FrozenTrial:
        return self._own.get(trial_id) or self._behind.get_trial(trial_id)

    def get_trial_id_from_study_id_trial_number(self, study_id: int, trial_number: int) -> int:
        return self._behind.get_trial_id_from_study_id_trial_number(study_id, trial_number)

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        trials = [trial for trial in self._trials.values() if states is None or trial.state in states]
        return copy.deepcopy(trials) if deepcopy else trials

    # Calls about studies.

    def create_new_study(self, directions: Sequence[StudyDirection], study_name: str | None = None) -> int:
        return self._behind.create_new_study(directions, study_name)

    def delete_study(self, study_id: int) -> None:
        self._behind.delete_study(study_id)

    def set_study_user_attr(self, study_id: int, key: str, value: object) -> None:
        self._behind.set_study_user_attr(study_id, key, value)

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        self._behind.set_study_system_attr(study_id, key, value)

    def get_study_id_from_name(self, study_name: str) -> int:
        return self._behind.get_study_id_from_name(study_name)

    def get_study_name_from_id(self, study_id: int) -> str:
        return self._behind.get_study_name_from_id(study_id)

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        return self._behind.get_study_directions(study_id)

    def get_study_user_attrs(self, study_id: int) -> dict[str, object]:
        return self._behind.get_study_user_attrs(study_id)

    def get_study_system_attrs(self, study_id: int) -> dict[str, object]:
        return self._behind.get_study_system_attrs(study_id)

    def get_all_studies(self) -> list[Any]:
        return self._behind.get_all_studies()


def _reopen(storage: BaseStorage) -> RDBStorage | None:
    """Return a storage's database with connections of its own, or None for any other storage."""
    database = database_of(storage)
    if database is None:
        return None
    from sqlalchemy.pool import QueuePool  # noqa: PLC0415 - a study of another storage needs none

    # For a database in memory, another connection would create another database.
    if not isinstance(database.engine.pool, QueuePool):
        return None
    return RDBStorage(database.url, database.engine_kwargs, skip_compatibility_check=True, skip_table_creation=True)


def _write_alone(write: _Write) -> None:
    try:
        write()
    except UpdateFinishedTrialError:
        # Another process has ended the trial.
        pass
    except (ValueError, KeyError) as error:
        # Another process has a conflicting distribution, or has deleted the trial.
        logger.warning("the study's storage refuses a value: %s", error)


def _write_together(database: RDBStorage, writes: Sequence[_Write]) -> bool:
    """Make *writes* in one transaction. If one is refused, write nothing and return False."""
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415 - as above
    from sqlalchemy.orm import scoped_session, sessionmaker  # noqa: PLC0415 - as above

    usual = database.scoped_session
    try:
        # SQLAlchemy's "joining a session into an external transaction": commits wait for the outer one.
        with database.engine.begin() as connection:
            joined = sessionmaker(bind=connection, join_transaction_mode="rollback_only")
            database.scoped_session = scoped_session(joined)
            for write in writes:
                write()
    except (UpdateFinishedTrialError, ValueError, KeyError, SQLAlchemyError, StorageInternalError):
        return False
    finally:
        database.scoped_session = usual
    return True
