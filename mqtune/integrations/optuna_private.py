"""Functions that use private parts of Optuna, for which Optuna 4.3 to 5 has no public ones."""

from __future__ import annotations

import copy
import gc
import sys
from inspect import signature
from typing import Any, ClassVar, Final

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import TPESampler
from optuna.samplers._tpe import sampler as tpe
from optuna.storages import BaseStorage, InMemoryStorage, RDBStorage
from optuna.trial import FrozenTrial, TrialState


class OneSplitTPESampler(TPESampler):
    """TPE for one suggestion. It splits the trials only once, and limits the number of bad ones."""

    #: How many bad trials TPE learns from: the newest, as each takes time and older ones count less.
    most_bad: ClassVar[int] = 1_000
    _divided: tuple[list[FrozenTrial], list[FrozenTrial]] | None = None

    def _sample(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if self._divided is None:
            self._divided = self.divide(study, trial)
        good, bad = self._divided
        of_good = self._build_parzen_estimator(study, search_space, good, handle_below=True)
        of_bad = self._build_parzen_estimator(study, search_space, bad, handle_below=False)
        samples = of_good.sample(self._rng.rng, self._n_ei_candidates)
        chosen = self._compare(samples, self._compute_acquisition_func(samples, of_good, of_bad))
        return {name: distribution.to_external_repr(chosen[name]) for name, distribution in search_space.items()}

    def divide(self, study: optuna.Study, trial: FrozenTrial) -> tuple[list[FrozenTrial], list[FrozenTrial]]:
        """Return the good trials, and the newest bad ones. Running trials count as bad."""
        states = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
        trials = [frozen for frozen in study.get_trials(deepcopy=False, states=states) if frozen.number != trial.number]
        ended = sum(frozen.state is not TrialState.RUNNING for frozen in trials)
        usual = tpe.default_gamma if len(study.directions) == 1 else _GAMMA_OF_SEVERAL
        more: list[bool] = [self._constraints_func is not None] if _ASKS_FOR_CONSTRAINTS else []
        good, bad = tpe._split_trials(study, trials, (self._gamma or usual)(ended), *more)
        return good, bad[-self.most_bad :]


_GAMMA_OF_SEVERAL: Final = getattr(tpe, "default_gamma_multiobjective", tpe.default_gamma)
_ASKS_FOR_CONSTRAINTS: Final = "constraints_enabled" in signature(tpe._split_trials).parameters


def storage_of(study: optuna.Study) -> BaseStorage:
    """Return a study's storage."""
    return study._storage


def copy_over(study: optuna.Study, storage: BaseStorage) -> optuna.Study:
    """Return a copy of a study that uses another storage."""
    copied = copy.copy(study)
    copied._storage = storage
    return copied


def named_parameters(sampler: optuna.samplers.BaseSampler | None) -> frozenset[str]:
    """Return the names of parameters for which a sampler was given values."""
    match sampler:
        case optuna.samplers.GridSampler():
            return frozenset(sampler._search_space)
        case optuna.samplers.PartialFixedSampler():
            return frozenset(sampler._fixed_params) | named_parameters(sampler._base_sampler)
    return frozenset()


def is_in_loop(study: optuna.Study) -> bool:
    """Return whether this thread is running ``optimize`` of a study."""
    return study._thread_local.in_optimize_loop


def begin_loop(study: optuna.Study) -> None:
    """Let ``stop`` work and ``optimize`` fail in this thread, as within ``optimize``."""
    study._thread_local.in_optimize_loop = True
    study._stop_flag = False


def end_loop(study: optuna.Study) -> None:
    """Undo ``begin_loop``: ``stop`` fails and ``optimize`` works in this thread."""
    study._thread_local.in_optimize_loop = False


def is_stopped(study: optuna.Study) -> bool:
    """Return whether ``stop`` was called since ``begin_loop`` or ``unstop``."""
    return study._stop_flag


def unstop(study: optuna.Study) -> None:
    """Clear a study's stop flag."""
    study._stop_flag = False


def database_of(storage: BaseStorage) -> RDBStorage | None:
    """Return the database of a storage, perhaps behind a cache. Return None for other storages."""
    for candidate in (storage, getattr(storage, "_backend", None)):
        if type(candidate) is RDBStorage:
            return candidate
    return None


def close_databases() -> None:
    """Close idle connections of this process's studies. They reconnect on demand."""
    if "sqlalchemy" not in sys.modules:
        return
    from sqlalchemy.pool import QueuePool  # noqa: PLC0415 - Optuna imports it for databases alone

    # A deleted study's database keeps its connections until it is collected.
    gc.collect()
    for database in gc.get_referrers(RDBStorage):
        # A database in memory has another pool, and loses its data with the connection.
        if isinstance(database, RDBStorage) and isinstance(database.engine.pool, QueuePool):
            database.engine.dispose()


def replace_trial(storage: InMemoryStorage, trial_id: int, trial: FrozenTrial) -> None:
    """Replace a trial of a storage in memory."""
    storage._set_trial(trial_id, trial)


def give_id(trial: optuna.Trial, trial_id: int) -> None:
    """Set a trial's id, as Optuna's artifacts and terminators need it."""
    trial._trial_id = trial_id
