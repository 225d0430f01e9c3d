"""An experiment as a study of Optuna: for its plots and importances, and live for its dashboard."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from mqtune.core.errors import SpaceError
from mqtune.core.events import Event, ExperimentCreated, Reports
from mqtune.core.trial import ITERATION, Config, Report, Trial, TrialId, TrialStatus, is_number
from mqtune.integrations.optuna import DIRECTIONS, quiet
from mqtune.results.experiments import empty_experiment
from mqtune.search.domains import Choice, Domain, Entries, Interval, Multiples, Normal, ReverseInterval
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
#: The bounds of a normal distribution, in standard deviations from its mean: Optuna's have some, and no value lies beyond.
_BOUND_SDS: Final = 40.0


@dataclass(frozen=True, slots=True)
class _Shown:
    """A domain as the study shows it."""

    distribution: BaseDistribution
    to_param: Callable[[Any], Any]


class StudyMirror:
    """A study in memory that follows an experiment's events.

    Nothing ever reads it for the experiment: what is changed in it stays in it.

    What an experiment has and a study doesn't is in user attributes: ``mqtune.trial`` (the id), ``mqtune.status``, ``mqtune.reason``,
    ``mqtune.worker`` and ``mqtune.attempts``. A trial's steps are its ``training_iteration``; the first value of each counts.

    Args:
        created: the experiment's first event.

    Attributes:
        storage: holds the study alone.
        study: the study.
    """

    def __init__(self, created: ExperimentCreated) -> None:
        self._experiment = empty_experiment(created)
        self._space = space_of(created.definition["space"], any_unknown=True)
        self._shown = _shown_space(self._space)
        self._names = _names(self._space, self._shown)
        self._values: defaultdict[TrialId, dict[int, float]] = defaultdict(dict)
        #: The study's trials, by those of the experiment, and what their attributes were last.
        self._ids: dict[TrialId, int] = {}
        self._said: dict[TrialId, dict[str, object]] = {}
        self._changed: dict[TrialId, None] = {}
        self.storage = optuna.storages.InMemoryStorage()
        with quiet():
            self._study_id = self.storage.create_new_study([DIRECTIONS[self._experiment.mode]], created.name)
            self.study = optuna.load_study(study_name=created.name, storage=self.storage)
            self.study.set_metric_names([self._experiment.metric])

    def take(self, event: Event | Report) -> None:
        """Take in an event, or a report; ``write`` brings the study up to it."""
        for report in event if isinstance(event, Reports) else (event,):
            if isinstance(report, Report):
                self._report(report)
            else:
                self._experiment.apply(report)
                if trial := getattr(report, "trial", ""):
                    self._changed[TrialId(trial)] = None

    def _report(self, report: Report) -> None:
        trial = self._experiment.apply_report(report)
        if trial is None:
            return
        value, step = report.metrics.get(self._experiment.metric), report.metrics.get(ITERATION, trial.reports)
        values = self._values[trial.id]
        if is_number(value) and isinstance(step, int) and step not in values:
            values[step] = float(value)
            self._changed[trial.id] = None
            if (id_ := self._ids.get(trial.id)) is not None:
                self.storage.set_trial_intermediate_value(id_, step, float(value))

    def write(self) -> None:
        """Bring the study up to what was taken in."""
        for id_ in self._changed:
            if (trial := self._experiment.trials.get(id_)) is not None:
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
        state, value = self._state(trial)
        if state is not TrialState.WAITING:
            self.storage.set_trial_state_values(id_, state, None if value is None else [value])

    def _state(self, trial: Trial) -> tuple[TrialState, float | None]:
        """Return a trial's state and value; Optuna has no completed trial without one."""
        state, values = _STATES[trial.status], self._values[trial.id]
        if state is TrialState.WAITING and len(trial.attempts) > 1:
            return TrialState.RUNNING, None
        if state is not TrialState.COMPLETE:
            return state, None
        last = values[max(values)] if values else math.nan
        return (TrialState.FAIL, None) if math.isnan(last) else (state, last)

    def _frozen(self, trial: Trial) -> FrozenTrial:
        state, value = self._state(trial)
        shown = {path: value for path, value in self._values_of(trial.config) if path in self._shown}
        frozen = optuna.trial.create_trial(
            state=state,
            value=value,
            params={self._names[path]: self._shown[path].to_param(value) for path, value in shown.items()},
            distributions={self._names[path]: self._shown[path].distribution for path in shown},
            user_attrs=_attributes(trial),
            intermediate_values=self._values[trial.id],
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


def _local(time: datetime | None) -> datetime | None:
    """Return a time as Optuna has them: this machine's, without a zone."""
    return None if time is None else time.astimezone().replace(tzinfo=None)


def _attributes(trial: Trial) -> dict[str, object]:
    worker = trial.attempts[-1].worker if trial.attempts else ""
    said = {"trial": trial.id, "status": trial.status.name, "reason": trial.reason, "worker": worker}
    return {f"mqtune.{name}": value for name, value in {**said, "attempts": len(trial.attempts)}.items()}


def _shown_space(space: Space) -> dict[str, _Shown]:
    """Return what a study shows of a space: what was chosen, but neither constants nor what functions computed."""
    shown = {}
    for path, domain in space.domains.items():
        with contextlib.suppress(SpaceError):
            shown[path] = _as_shown(domain)
    return shown


def _names(space: Space, shown: Mapping[str, _Shown]) -> dict[str, str]:
    """Return the names of parameters: their places in a config, or, where entries of a choice have different ones there, their paths."""
    there: defaultdict[str, list[object]] = defaultdict(list)
    for path, each in shown.items():
        # A choice and one of its entries may be at the same place at once.
        there[space.places[path]].append(path if isinstance(space.domains[path], Entries) else each.distribution)
    same = {place for place, found in there.items() if all(each == found[0] for each in found)}
    return {path: place if (place := space.places[path]) in same else path for path in shown}


def _as_shown(domain: Domain) -> _Shown:
    match domain:
        case ReverseInterval():
            return _Shown(FloatDistribution(domain.low, domain.high), float)
        case Interval():
            return _Shown(FloatDistribution(domain.low, domain.high, log=domain.log), float)
        case Multiples(whole=True):
            low, high = int(domain.value(domain.first)), int(domain.value(domain.last))
            # Optuna's logarithmic integers have no steps.
            return _Shown(IntDistribution(low, high, log=domain.log, step=1 if domain.log else int(domain.q)), int)
        case Multiples():
            return _Shown(
                FloatDistribution(domain.value(domain.first), domain.value(domain.last), log=domain.log), float
            )
        case Normal():
            reach = _BOUND_SDS * domain.sd
            return _Shown(FloatDistribution(domain.mean - reach, domain.mean + reach), float)
        case Entries():
            return _Shown(CategoricalDistribution(domain.names), lambda index: domain.names[index])
        case Choice():
            return _Shown(CategoricalDistribution(list(dict.fromkeys(map(_category, domain.options)))), _category)
        case _:
            raise SpaceError(f"{domain} is a domain that Optuna has nothing like")


def _category(value: object) -> bool | int | float | str | None:
    """Return a value that Optuna can have as a category: another one as text."""
    return value if isinstance(value, bool | int | float | str | None) else repr(value)
