"""An experiment as a study of Optuna: for its plots and importances, and live for its dashboard."""

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

from mqtune.core.errors import ConfigurationError, SpaceError
from mqtune.core.events import Event, ExperimentCreated, Reports
from mqtune.core.objective import has_nan
from mqtune.core.trial import ITERATION, Config, Report, Trial, TrialId, TrialStatus
from mqtune.integrations.optuna import DIRECTIONS, EXCESSES, quiet
from mqtune.integrations.optuna_private import storage_of
from mqtune.integrations.optuna_space import Shown, shown_by_value
from mqtune.journal.connection import redact
from mqtune.results.followed import Fold
from mqtune.search.base import PastTrial
from mqtune.search.kinds import Entries
from mqtune.search.space import Space, space_of

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


class StudyMirror(Fold):
    """A study in memory that follows an experiment's events.

    Nothing ever reads it for the experiment: what is changed in it stays in it.

    A trial that has ended has by how much its last report violates each outcome constraint, infinity where it lacks the metric.
    What an experiment has and a study doesn't is in user attributes: ``mqtune.trial`` (the id), ``mqtune.status``, ``mqtune.reason``,
    ``mqtune.worker`` and ``mqtune.attempts``. A trial's steps are its ``training_iteration``; the first value of each counts.

    Args:
        created: the experiment's first event.

    Attributes:
        storage: holds the study alone.
        study: the study.
    """

    def __init__(self, created: ExperimentCreated) -> None:
        super().__init__(created)
        self._space = space_of(created.definition["space"], any_unknown=True)
        self._shown = _shown_space(self._space)
        self._names = _names(self._space, self._shown)
        #: The values of each trial by step, one of each metric.
        self._values: defaultdict[TrialId, dict[int, tuple[float, ...]]] = defaultdict(dict)
        #: The study's trials, by those of the experiment, and what their attributes were last.
        self._ids: dict[TrialId, int] = {}
        self._said: dict[TrialId, dict[str, object]] = {}
        self._changed: dict[TrialId, None] = {}
        self.storage = optuna.storages.InMemoryStorage()
        objective = self.experiment.objective
        with quiet():
            self._study_id = self.storage.create_new_study([DIRECTIONS[mode] for mode in objective.modes], created.name)
            self.study = optuna.load_study(study_name=created.name, storage=self.storage)
            self.study.set_metric_names(list(objective.metrics))

    def take(self, event: Event | Report) -> None:
        """Take in an event, or reports; ``write`` brings the study up to it."""
        super().take(event)
        if not isinstance(event, Report | Reports) and (trial := getattr(event, "trial", "")):
            self._changed[TrialId(trial)] = None

    def on_report(self, report: Report, trial: Trial) -> None:
        found = self.experiment.objective.values(report.metrics)
        values, step = self._values[trial.id], report.metrics.get(ITERATION, trial.reports)
        if found is not None and isinstance(step, int) and step not in values:
            values[step] = tuple(map(float, found))
            self._changed[trial.id] = None
            if len(found) == 1 and (id_ := self._ids.get(trial.id)) is not None:
                self.storage.set_trial_intermediate_value(id_, step, float(found[0]))

    def write(self) -> None:
        """Bring the study up to what was taken in."""
        for id_ in self._changed:
            if (trial := self.experiment.trials.get(id_)) is not None:
                self._write(trial)
        self._changed.clear()

    def _write(self, trial: Trial) -> None:
        id_ = self._ids.get(trial.id)
        if id_ is None:
            self._ids[trial.id] = self.storage.create_new_trial(self._study_id, self._frozen(trial))
            self._said[trial.id] = _attributes(trial)
            return
        if self.storage.get_trial(id_).state.is_finished():
            # Notes of people, at most; a study's trial never changes once it has ended.
            return
        for key, value in _attributes(trial).items():
            if self._said[trial.id].get(key) != value:
                self._said[trial.id][key] = value
                self.storage.set_trial_user_attr(id_, key, value)
        state, result = self._state(trial)
        for key, excesses in self._constraints(trial).items():
            self.storage.set_trial_system_attr(id_, key, excesses)
        if state is not TrialState.WAITING:
            self.storage.set_trial_state_values(id_, state, result)

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
    """Return an experiment as a study, as it is after these events; see ``StudyMirror``."""
    mirror = StudyMirror(created)
    for event in events:
        mirror.take(event)
    mirror.write()
    return mirror.study


def write_journal(study: optuna.Study, name: str, path: Path) -> None:
    """Write a study to a new journal file of Optuna's, under this name.

    Raises:
        ConfigurationError: there is such a file already.
    """
    if path.exists():
        raise ConfigurationError(f"{path} is there already; remove it, or give another name")
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
    with quiet():
        optuna.copy_study(
            from_study_name=study.study_name, from_storage=storage_of(study), to_storage=storage, to_study_name=name
        )


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
