"""A storage in front of a study's own: it is read from memory, and what trials say is written some at a time, together."""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mqtune.core.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

try:
    import optuna
    from optuna.distributions import BaseDistribution, check_distribution_compatibility
    from optuna.exceptions import UpdateFinishedTrialError
    from optuna.storages import BaseStorage, JournalStorage, RDBStorage, _CachedStorage
    from optuna.storages.journal import BaseJournalBackend
    from optuna.storages.journal._base import BaseJournalSnapshot
    from optuna.study import StudyDirection
    from optuna.trial import FrozenTrial, TrialState
except ImportError as error:  # pragma: no cover - the tests have it
    raise ConfigurationError(f"Optuna can't be imported ({error}); pip install 'mqtune[optuna]'") from error

logger = optuna.logging.get_logger("optuna.mqtune")

_Write = Callable[[], object]
#: Of a storage that knows it without another read: the study and number of each trial's id.
_NUMBERS: Final = "_trial_id_to_study_id_and_number"


class DeferredStorage(BaseStorage):
    """The storage of one study, as the process sees it that runs its trials; one thread uses it.

    A trial is in the storage behind it from its first moment. What is set of it then, its end too, is seen here at once, and there
    after ``flush``, in one transaction where it is a database, and one write where it is a journal's file. A trial that
    somebody else has ended stays as they ended it. What others do with the study is seen after ``refresh``.

    Args:
        behind: the study's own storage.
        study_id: the study.
    """

    def __init__(self, behind: BaseStorage, study_id: int) -> None:
        self._behind, self._study_id = _joinable(behind), study_id
        #: By number, and in that order.
        self._trials: dict[int, FrozenTrial] = {}
        #: Those that run here, and those whose end is not written, by id.
        self._own: dict[int, FrozenTrial] = {}
        self._distributions: dict[str, BaseDistribution] = {}
        #: By trial and what is set; of an attribute that is set twice, the last.
        self._pending: dict[tuple[int, *tuple[object, ...]], _Write] = {}
        self._since = 0.0
        self._is_trying = False
        self.refresh()

    def due_s(self, lag_s: float) -> float:
        """Return in how many seconds something will have waited for *lag_s* to be written; infinity where nothing waits."""
        return self._since + lag_s - time.monotonic() if self._pending else math.inf

    # Towards the storage behind.

    def refresh(self) -> None:
        """Take in what others have done with the study."""
        trials: dict[int, FrozenTrial] = {}
        for trial in self._behind.get_all_trials(self._study_id, deepcopy=False):
            own = self._own.get(trial._trial_id)
            if own is not None and trial.state.is_finished() and not own.state.is_finished():
                own = None
                del self._own[trial._trial_id]
            trials[trial.number] = own or trial
            if own is None and self._trials.get(trial.number) is not trial:
                self._distributions.update(trial.distributions)
        self._trials = trials

    def flush(self, then: _Write | None = None) -> None:
        """Write what waits, and *then* together with it.

        Raises:
            what the storage behind does; all that waits is written the next time then.
        """
        writes = [write for (id_, *_), write in self._pending.items() if id_ in self._own]
        last = [then] if then is not None else []
        if isinstance(journal := getattr(self._behind, "_backend", None), _HeldBack):
            journal.hold(writes)
            for write in last or [journal.append_held]:
                write()
        elif (writes or last) and not _written_together(self._behind, [*writes, *last]):
            for write in writes:
                _write_alone(write)
            for write in last:
                write()
        self._pending.clear()
        self._own = {id_: trial for id_, trial in self._own.items() if not trial.state.is_finished()}

    def _later(self, write: _Write, trial_id: int, *what: object) -> None:
        if not self._pending:
            self._since = time.monotonic()
        self._pending[trial_id, *what] = write

    # Trials that run here.

    def take_over(self, trial_id: int) -> FrozenTrial:
        """Have a trial be one of those that run here, unless it has ended, and return it."""
        trial = self.get_trial(trial_id)
        if trial_id not in self._own and not trial.state.is_finished():
            trial = copy.deepcopy(trial)
            self._keep(trial)
        return trial

    def _keep(self, trial: FrozenTrial) -> None:
        self._own[trial._trial_id] = self._trials[trial.number] = trial

    @contextlib.contextmanager
    def trying(self, trial_id: int) -> Iterator[list[tuple[str, BaseDistribution, float]]]:
        """Take back the parameters that a trial that runs here gets within the block; afterwards the list has them."""
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

    def _running(self, trial_id: int) -> FrozenTrial | None:
        """Return a trial that runs here; None for any other."""
        trial = self._own.get(trial_id)
        if trial is not None:
            self.check_trial_is_updatable(trial_id, trial.state)
        return trial

    # What Optuna calls: trials.

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """Create a trial, at once, and write with it what waits."""
        created: list[int] = []
        self.flush(lambda: created.append(self._behind.create_new_trial(study_id, template_trial)))
        id_ = created[-1]
        known = getattr(self._behind, _NUMBERS, {}).get(id_)
        if template_trial is not None and template_trial.state is not TrialState.RUNNING:
            # A trial that is queued begins as any other that is, and one that has ended is not written again.
            self.refresh()
            return id_
        if template_trial is None or known is None:
            self.take_over(id_)
            return id_
        trial = copy.deepcopy(template_trial)
        trial._trial_id, trial.number = id_, known[1]
        self._keep(trial)
        return id_

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution
    ) -> None:
        """Set a parameter."""
        write = partial(self._behind.set_trial_param, trial_id, param_name, param_value_internal, distribution)
        if (trial := self._running(trial_id)) is None:
            write()
            return
        check_distribution_compatibility(self._distributions.setdefault(param_name, distribution), distribution)
        trial.params[param_name] = distribution.to_external_repr(param_value_internal)
        trial.distributions[param_name] = distribution
        if not self._is_trying:
            self._later(write, trial_id, "parameter", param_name)

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        """End a trial, or begin a queued one."""
        write = partial(self._behind.set_trial_state_values, trial_id, state, values)
        if (trial := self._running(trial_id)) is None:
            return write()
        trial.values = None if values is None else list(values)
        trial.state, trial.datetime_complete = state, datetime.now()  # noqa: DTZ005 - as Optuna does
        self._later(write, trial_id, "state")
        return True

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        """Set the value at a step."""
        write = partial(self._behind.set_trial_intermediate_value, trial_id, step, intermediate_value)
        if (trial := self._running(trial_id)) is None:
            write()
            return
        trial.intermediate_values[step] = intermediate_value
        self._later(write, trial_id, "step", step)

    def set_trial_user_attr(self, trial_id: int, key: str, value: object) -> None:
        """Set a user attribute."""
        write = partial(self._behind.set_trial_user_attr, trial_id, key, value)
        if (trial := self._running(trial_id)) is None:
            write()
            return
        trial.user_attrs[key] = value
        self._later(write, trial_id, "user attribute", key)

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Set a system attribute."""
        write = partial(self._behind.set_trial_system_attr, trial_id, key, value)
        if (trial := self._running(trial_id)) is None:
            write()
            return
        # Pruners set one between reading all trials and counting those that have it: what they have read stays, as in Optuna.
        trial = copy.copy(trial)
        trial.system_attrs = {**trial.system_attrs, key: value}
        self._keep(trial)
        self._later(write, trial_id, "system attribute", key)

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """Return a trial."""
        return self._own.get(trial_id) or self._behind.get_trial(trial_id)

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """Return the trials, by number."""
        trials = [trial for trial in self._trials.values() if states is None or trial.state in states]
        return copy.deepcopy(trials) if deepcopy else trials

    # What Optuna calls: studies.

    def create_new_study(self, directions: Sequence[StudyDirection], study_name: str | None = None) -> int:
        """Create a study."""
        return self._behind.create_new_study(directions, study_name)

    def delete_study(self, study_id: int) -> None:
        """Delete a study."""
        self._behind.delete_study(study_id)

    def set_study_user_attr(self, study_id: int, key: str, value: object) -> None:
        """Set a user attribute of a study."""
        self._behind.set_study_user_attr(study_id, key, value)

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        """Set a system attribute of a study."""
        self._behind.set_study_system_attr(study_id, key, value)

    def get_study_id_from_name(self, study_name: str) -> int:
        """Return a study's id."""
        return self._behind.get_study_id_from_name(study_name)

    def get_study_name_from_id(self, study_id: int) -> str:
        """Return a study's name."""
        return self._behind.get_study_name_from_id(study_id)

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        """Return a study's directions."""
        return self._behind.get_study_directions(study_id)

    def get_study_user_attrs(self, study_id: int) -> dict[str, object]:
        """Return a study's user attributes."""
        return self._behind.get_study_user_attrs(study_id)

    def get_study_system_attrs(self, study_id: int) -> dict[str, object]:
        """Return a study's system attributes."""
        return self._behind.get_study_system_attrs(study_id)

    def get_all_studies(self) -> list[Any]:
        """Return all studies."""
        return self._behind.get_all_studies()


class _HeldBack(BaseJournalBackend):
    """A journal's backend that holds back what is to be appended together with what comes next.

    Of a process's own logs Optuna raises at the first that others have made impossible, and reads no further. So what is held
    back bears another name than this process's: where a trial has ended, Optuna leaves it out, here as everywhere.
    """

    def __init__(self, backend: BaseJournalBackend) -> None:
        self._backend = backend
        self._is_holding = False
        self._held: list[dict[str, object]] = []

    def hold(self, writes: Iterable[_Write]) -> None:
        """Hold back what these write, and nothing else."""
        self._held = []
        self._is_holding = True
        try:
            for write in writes:
                write()
        finally:
            self._is_holding = False

    def append_held(self) -> None:
        """Append what was held back."""
        if self._held:
            self.append_logs([])

    def append_logs(self, logs: list[dict[str, object]]) -> None:
        """Append logs, behind what was held back, or hold them back."""
        if self._is_holding:
            self._held += [{**log, "worker_id": f"{log['worker_id']}-held"} for log in logs]
        else:
            self._backend.append_logs([*self._held, *logs])
            self._held = []

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, object]]:
        """Read logs; none where nothing was written."""
        return () if self._is_holding else self._backend.read_logs(log_number_from)


class _HeldBackWithSnapshots(_HeldBack, BaseJournalSnapshot):
    """The same, of a journal that keeps snapshots."""

    def __init__(self, backend: BaseJournalBackend, snapshots: BaseJournalSnapshot) -> None:
        super().__init__(backend)
        self._snapshots = snapshots

    def save_snapshot(self, snapshot: bytes) -> None:
        """Save one."""
        self._snapshots.save_snapshot(snapshot)

    def load_snapshot(self) -> bytes | None:
        """Return the last one."""
        return self._snapshots.load_snapshot()


def _joinable(storage: BaseStorage) -> BaseStorage:
    """Return a storage whose writes can be joined, and that nobody else uses: a journal or database is opened once more."""
    if type(storage) is JournalStorage:
        backend = storage._backend
        if isinstance(backend, BaseJournalSnapshot):
            return JournalStorage(_HeldBackWithSnapshots(backend, backend))
        return JournalStorage(_HeldBack(backend))
    if isinstance(storage, RDBStorage):
        return _copy_of(storage)
    return _CachedStorage(_copy_of(storage._backend)) if type(storage) is _CachedStorage else storage


def _copy_of(database: RDBStorage) -> RDBStorage:
    """Return a database with the same connections; copy.copy would make others, and one in memory would be another one."""
    copied = object.__new__(type(database))
    vars(copied).update(vars(database))
    return copied


def _write_alone(write: _Write) -> None:
    try:
        write()
    except UpdateFinishedTrialError:
        # Somebody else has ended the trial.
        pass
    except (ValueError, KeyError) as error:
        # Another process has a parameter of this name from another distribution, or has deleted the trial.
        logger.warning("the study's storage refuses a value: %s", error)


def _written_together(storage: BaseStorage, writes: Sequence[_Write]) -> bool:
    """Make *writes* in one transaction; whether it is a database, and accepted them: otherwise it has none of them."""
    database = getattr(storage, "_backend", storage)
    if not isinstance(database, RDBStorage):
        return False
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415 - a study of another storage needs none

    sessions = database.scoped_session
    with sessions() as session:
        joined = _Joined(session)
        # Nobody else uses this object: see _joinable.
        vars(database)["scoped_session"] = lambda: joined
        try:
            # No write depends on what another one has added: that all goes out together, at the end.
            with session.no_autoflush:
                for write in writes:
                    write()
            if joined.is_rolled_back:
                return False
            session.commit()
        except (UpdateFinishedTrialError, ValueError, KeyError, SQLAlchemyError):
            session.rollback()
            return False
        finally:
            vars(database)["scoped_session"] = sessions
    return True


class _Joined:
    """A session of SQLAlchemy that is committed later."""

    def __init__(self, session: Session) -> None:
        self.is_rolled_back = False
        self._session = session

    def __getattr__(self, name: str) -> object:
        return getattr(self._session, name)

    def commit(self) -> None:
        pass

    def rollback(self) -> None:
        self.is_rolled_back = True
        self._session.rollback()

    def close(self) -> None:
        pass
