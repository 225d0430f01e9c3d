"""An experiment as a study of Optuna: for its plots and importances, and live for its dashboard."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
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
from mqtune.search.domains import Choice, Domain, Interval, Multiples, Normal, ReverseInterval, domain_of
from mqtune.search.space import SEPARATOR

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

    What an experiment has and a study doesn't is in user attributes: ``mqtune:trial`` (the id), ``mqtune:status``, ``mqtune:reason``,
    ``mqtune:worker`` and ``mqtune:attempts``. A trial's steps are its ``training_iteration``; the first value of each counts.

    Args:
        created: the experiment's first event.

    Attributes:
        storage: holds the study alone.
        study: the study.
    """

    def __init__(self, created: ExperimentCreated) -> None:
        self._experiment = empty_experiment(created)
        self._shown = _shown_space(created.definition["space"])
        self._distributions = {path: each.distribution for path, each in self._shown.items()}
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
        params = self._params(trial.config)
        frozen = optuna.trial.create_trial(
            state=state,
            value=value,
            params=params,
            distributions={path: self._distributions[path] for path in params},
            user_attrs=_attributes(trial),
            intermediate_values=self._values[trial.id],
        )
        frozen.datetime_start, frozen.datetime_complete = _local(trial.time_run_started), _local(trial.time_completed)
        return frozen

    def _params(self, config: Config) -> dict[str, Any]:
        return {
            path: shown.to_param(value)
            for path, shown in self._shown.items()
            if (value := _value_at(config, path)) is not _MISSING
        }


def study_of(created: ExperimentCreated, events: Iterable[Event | Report]) -> optuna.Study:
    """Return an experiment as a study, as it is after these events; see ``StudyMirror``."""
    mirror = StudyMirror(created)
    for event in events:
        mirror.take(event)
    mirror.write()
    return mirror.study


_MISSING: Final = object()


def _value_at(config: Config, path: str) -> object:
    value: object = config
    for name in path.split(SEPARATOR):
        if not isinstance(value, Mapping) or name not in value:
            return _MISSING
        value = value[name]
    return value


def _local(time: datetime | None) -> datetime | None:
    """Return a time as Optuna has them: this machine's, without a zone."""
    return None if time is None else time.astimezone().replace(tzinfo=None)


def _attributes(trial: Trial) -> dict[str, object]:
    worker = trial.attempts[-1].worker if trial.attempts else ""
    said = {"trial": trial.id, "status": trial.status.name, "reason": trial.reason, "worker": worker}
    return {f"mqtune:{name}": value for name, value in {**said, "attempts": len(trial.attempts)}.items()}


def _shown_space(description: Mapping[str, Mapping[str, object]]) -> dict[str, _Shown]:
    """Return what a study shows of a space: what was chosen, but neither constants nor what functions computed."""
    shown = {}
    for path, entry in description.items():
        with contextlib.suppress(SpaceError):
            if "constant" not in entry:
                shown[path] = _as_shown(domain_of(entry))
    return shown


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
        case Choice():
            return _Shown(CategoricalDistribution(list(dict.fromkeys(map(_category, domain.options)))), _category)
        case _:
            raise SpaceError(f"{domain} is a domain that Optuna has nothing like")


def _category(value: object) -> bool | int | float | str | None:
    """Return a value that Optuna can have as a category: another one as text."""
    return value if isinstance(value, bool | int | float | str | None) else repr(value)
