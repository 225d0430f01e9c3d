"""An experiment as a study of Optuna: for its plots, importances and dashboard."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

import optuna
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from mqtune import Space, TrialStatus
from mqtune.extend import (
    ITERATION,
    Config,
    ConfigurationError,
    Entries,
    Event,
    ExperimentCreated,
    Fold,
    Report,
    SpaceError,
    Trial,
    TrialId,
    has_nan,
    redact,
    space_of,
)
from mqtune.integrations.optuna import DIRECTIONS, EXCESSES, quiet
from mqtune.integrations.optuna_space import Shown, shown_by_value
from mqtune.search import PastTrial

_STATES: Final = {
    TrialStatus.CANDIDATE: TrialState.WAITING,
    TrialStatus.STAGED: TrialState.WAITING,
    TrialStatus.RUNNING: TrialState.RUNNING,
    # It may go on, and Optuna has nothing like it: an attribute says so.
    TrialStatus.PAUSED: TrialState.RUNNING,
    TrialStatus.COMPLETED: TrialState.COMPLETE,
    TrialStatus.EARLY_STOPPED: TrialState.PRUNED,
    TrialStatus.FAILED: TrialState.FAIL,
    TrialStatus.ABANDONED: TrialState.FAIL,
}
_SQLITE: Final = b"SQLite format 3\0"


class _StudyFold(Fold):
    """Collects what a study has of an experiment's events.

    A trial that has ended has by how much its last report violates each outcome constraint, infinity where it lacks the
    metric. User attributes have what a study lacks: ``mqtune.trial`` (the id), ``mqtune.status``, ``mqtune.reason``,
    ``mqtune.worker`` and ``mqtune.attempts``. A trial's steps are its ``training_iteration``; the first value of each
    counts.

    Args:
        created: the experiment's first event.
    """

    def __init__(self, created: ExperimentCreated) -> None:
        super().__init__(created)
        self._name = created.name
        self._space = space_of(created.definition["space"], any_unknown=True)
        self._shown = _shown_space(self._space)
        self._names = _names(self._space, self._shown)
        #: The values of each trial by step, one of each metric.
        self._values: defaultdict[TrialId, dict[int, tuple[float, ...]]] = defaultdict(dict)

    def on_report(self, report: Report, trial: Trial) -> None:
        numbers = self.experiment.objective.values(report.metrics)
        values, step = self._values[trial.id], report.metrics.get(ITERATION, trial.reports)
        if numbers is not None and isinstance(step, int) and step not in values:
            values[step] = tuple(map(float, numbers))

    def study(self) -> optuna.Study:
        """Return a study in memory with all trials."""
        objective = self.experiment.objective
        with quiet():
            study = optuna.create_study(
                study_name=self._name, directions=[DIRECTIONS[mode] for mode in objective.modes]
            )
            study.set_metric_names(list(objective.metrics))
        study.add_trials(map(self._frozen, self.experiment.trials.values()))
        return study

    def _state(self, trial: Trial) -> tuple[TrialState, tuple[float, ...] | None]:
        """Return a trial's state and values; Optuna has no completed trial without them."""
        state, values = _STATES[trial.status], self._values[trial.id]
        if state is TrialState.WAITING and len(trial.attempts) > 1:
            return TrialState.RUNNING, None
        if state is not TrialState.COMPLETE:
            return state, None
        last = values[max(values)] if values else (math.nan,)
        return (TrialState.FAIL, None) if has_nan(last) else (state, last)

    def _constraints(self, trial: Trial) -> dict[str, list[float]]:
        """Return the system attribute that says how a trial that has ended keeps to the outcome constraints, if there are any."""
        constraints = self.experiment.objective.constraints
        if not constraints or not trial.status.is_terminal:
            return {}
        excesses = (each.excess(trial.last_metrics) for each in constraints)
        return {EXCESSES: [math.inf if math.isnan(each) else each for each in excesses]}

    def _frozen(self, trial: Trial) -> FrozenTrial:
        state, result = self._state(trial)
        shown = {path: value for path, value in self._values_of(trial.config) if path in self._shown}
        frozen = optuna.trial.create_trial(
            state=state,
            values=result,
            params={self._names[path]: self._shown[path].to_param(value) for path, value in shown.items()},
            distributions={self._names[path]: self._shown[path].distribution for path in shown},
            user_attrs=_attributes(trial),
            system_attrs=self._constraints(trial),
            intermediate_values={step: each for step, (each, *others) in self._values[trial.id].items() if not others},
        )
        frozen.datetime_start, frozen.datetime_complete = _local(trial.time_run_started), _local(trial.time_completed)
        return frozen

    def _values_of(self, config: Config) -> Iterator[tuple[str, object]]:
        """Yield the values of a config by path, but for what an exploring scheduler has brought out of the space."""
        for key, value in config.items():
            with contextlib.suppress(SpaceError):
                yield from self._space.values({key: value}).items()


def study_of(created: ExperimentCreated, events: Iterable[Event | Report]) -> optuna.Study:
    """Return an experiment as a study, as it is after these events; see ``_StudyFold``."""
    fold = _StudyFold(created)
    for event in events:
        fold.take(event)
    return fold.study()


def write_journal(study: optuna.Study, name: str, path: Path) -> None:
    """Write a study to a new journal file of Optuna's, under this name.

    Raises:
        ConfigurationError: there is such a file already.
    """
    if path.exists():
        raise ConfigurationError(f"{path} is there already; remove it, or give another name")
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
    with quiet():
        written = optuna.create_study(study_name=name, storage=storage, directions=study.directions)
        written.set_metric_names(study.metric_names or [])
        written.add_trials(study.get_trials(deepcopy=False))


def _local(time: datetime | None) -> datetime | None:
    """Return a time as Optuna has them: this machine's, without a zone."""
    return None if time is None else time.astimezone().replace(tzinfo=None)


def _attributes(trial: Trial) -> dict[str, object]:
    worker = trial.attempts[-1].worker if trial.attempts else ""
    said = {"trial": trial.id, "status": trial.status.name, "reason": trial.reason, "worker": worker}
    return {f"mqtune.{name}": value for name, value in {**said, "attempts": len(trial.attempts)}.items()}


def _shown_space(space: Space) -> dict[str, Shown]:
    """Return what a study shows of a space: what was chosen, but neither constants nor what functions computed."""
    shown = {}
    for path, domain in space.domains.items():
        with contextlib.suppress(SpaceError):
            shown[path] = shown_by_value(domain)
    return shown


def _names(space: Space, shown: Mapping[str, Shown]) -> dict[str, str]:
    """Return the names of parameters: their places in a config, or, where entries of a choice have different ones there, their paths."""
    there: defaultdict[str, list[object]] = defaultdict(list)
    for path, each in shown.items():
        # A choice and one of its entries may be at the same place at once.
        there[space.places[path]].append(path if isinstance(space.domains[path], Entries) else each.distribution)
    same = {place for place, found in there.items() if all(each == found[0] for each in found)}
    return {path: place if (place := space.places[path]) in same else path for path in shown}


# The way back: what a searcher may learn of a study.


def stored_study(storage: str | Path) -> optuna.Study:
    """Return the study of a storage: one with a URL, or a file of SQLite or of Optuna's journal.

    Raises:
        ConfigurationError: it can't be read, or has another number of studies than one.
    """
    shown = redact(str(storage))
    try:
        opened = open_storage(storage)
        names = optuna.study.get_all_study_names(opened)
    except Exception as error:  # SQLAlchemy's, Optuna's, JSON's, and those of the drivers of databases.
        raise ConfigurationError(
            f"{shown} can't be read as a storage of Optuna's: {type(error).__name__}: {error}"
        ) from error
    if not names:
        raise ConfigurationError(f"{shown} holds no study of Optuna's")
    if len(names) > 1:
        raise ConfigurationError(
            f"{shown} has {len(names)} studies: {', '.join(names)}; give one: optuna.load_study(study_name=…, storage=…)"
        )
    return optuna.load_study(study_name=names[0], storage=opened)


def open_storage(storage: str | Path) -> optuna.storages.BaseStorage:
    """Return a storage: one with a URL, or a file of SQLite or of Optuna's journal."""
    if isinstance(storage, str):
        return optuna.storages.get_storage(storage)
    with storage.open("rb") as file:
        is_sqlite = file.read(len(_SQLITE)) == _SQLITE
    if is_sqlite:
        return optuna.storages.get_storage(f"sqlite:///{storage.resolve()}")
    return optuna.storages.JournalStorage(JournalFileBackend(str(storage)))


def goal_of(study: optuna.Study) -> tuple[str, str]:
    """Return a study's metric, empty if it has no name, and its mode.

    Raises:
        ConfigurationError: it has several.
    """
    if len(study.directions) > 1:
        raise ConfigurationError(
            f"study {study.study_name} has {len(study.directions)} objectives; one can be learnt from"
        )
    modes = {direction: mode for mode, direction in DIRECTIONS.items()}
    return (study.metric_names or [""])[0], modes[study.direction]


def ended_trials(study: optuna.Study) -> list[PastTrial]:
    """Return the trials of a study that have ended with a value, pruned ones with their last; their configs are its parameters."""
    found = []
    for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)):
        step = trial.last_step
        if trial.state is TrialState.COMPLETE:
            found.append(PastTrial(trial.params, trial.values[0], 1 if step is None else step))
        elif step is not None:
            found.append(PastTrial(trial.params, trial.intermediate_values[step], step, TrialStatus.EARLY_STOPPED))
    return found


def config_reader(space: Space) -> Callable[[Config], Config]:
    """Return the function that makes a config of parameters, which have the names that a study of such an experiment gives them.

    It raises SpaceError where one is missing, or not in its domain, or the space's constraint refuses the config.
    """
    shown = _shown_space(space)
    names = _names(space, shown)

    def read(params: Config) -> Config:
        values: dict[str, object] = {}
        for path in space.walk(values):
            if (each := shown.get(path)) is not None:
                if names[path] not in params:
                    raise SpaceError(f"there is no parameter {names[path]}")
                values[path] = each.to_value(params[names[path]])
        config = space.config_of(values)
        space.check(config, partial=False)
        return config

    return read
