"""Exports an experiment as a study of Optuna."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

from mqtune import Results, Space, TrialStatus
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
    importing,
    space_of,
)

with importing("Optuna", "optuna"):
    import optuna
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import FrozenTrial, TrialState

    from mqtune.integrations.optuna import DIRECTIONS, EXCESSES, quiet
    from mqtune.integrations.optuna_space import Shown, shown_by_value

_STATES: Final = {
    TrialStatus.CANDIDATE: TrialState.WAITING,
    TrialStatus.QUEUED: TrialState.WAITING,
    TrialStatus.RUNNING: TrialState.RUNNING,
    # Optuna has no such state. An attribute has the status.
    TrialStatus.PAUSED: TrialState.RUNNING,
    TrialStatus.COMPLETED: TrialState.COMPLETE,
    TrialStatus.EARLY_STOPPED: TrialState.PRUNED,
    TrialStatus.FAILED: TrialState.FAIL,
    TrialStatus.ABANDONED: TrialState.FAIL,
}


class _StudyFold(Fold):
    """Builds a study from an experiment's events.

    An ended trial has the violation of each outcome constraint at its last report. It is infinite for a missing metric.
    User attributes are ``mqtune.trial`` (the id), ``mqtune.status``, ``mqtune.reason``, ``mqtune.worker`` and
    ``mqtune.attempts``. Steps are ``training_iteration``. The first value of each step counts.
    """

    def __init__(self, created: ExperimentCreated) -> None:
        super().__init__(created)
        self._name = created.name
        self._space = space_of(created.definition["space"], any_unknown=True)
        self._shown = shown_space(self._space)
        self._names = names_of(self._space, self._shown)
        self._values: defaultdict[TrialId, dict[int, tuple[float, ...]]] = defaultdict(dict)

    def on_report(self, report: Report, trial: Trial) -> None:
        numbers = self.experiment.objective.values(report.metrics)
        values, step = self._values[trial.id], report.metrics.get(ITERATION, trial.reports)
        if numbers is not None and isinstance(step, int) and step not in values:
            values[step] = tuple(map(float, numbers))

    def study(self) -> optuna.Study:
        objective = self.experiment.objective
        with quiet():
            study = optuna.create_study(
                study_name=self._name, directions=[DIRECTIONS[mode] for mode in objective.modes]
            )
            study.set_metric_names(list(objective.metrics))
        study.add_trials(map(self._frozen_trial, self.experiment.trials.values()))
        return study

    def _state(self, trial: Trial) -> tuple[TrialState, tuple[float, ...] | None]:
        """Return a trial's state in Optuna, and its values if it is complete."""
        state, values = _STATES[trial.status], self._values[trial.id]
        if state is TrialState.WAITING and len(trial.attempts) > 1:
            return TrialState.RUNNING, None
        if state is not TrialState.COMPLETE:
            return state, None
        last = values[max(values)] if values else (math.nan,)
        return (TrialState.FAIL, None) if has_nan(last) else (state, last)

    def _constraints(self, trial: Trial) -> dict[str, list[float]]:
        """Return an ended trial's constraint violations, as a system attribute."""
        constraints = self.experiment.objective.constraints
        if not constraints or not trial.status.is_terminal:
            return {}
        excesses = (constraint.excess(trial.last_metrics) for constraint in constraints)
        return {EXCESSES: [math.inf if math.isnan(excess) else excess for excess in excesses]}

    def _frozen_trial(self, trial: Trial) -> FrozenTrial:
        state, result = self._state(trial)
        shown = {path: value for path, value in self._values_of(trial.config) if path in self._shown}
        frozen = optuna.trial.create_trial(
            state=state,
            values=result,
            params={self._names[path]: self._shown[path].to_param(value) for path, value in shown.items()},
            distributions={self._names[path]: self._shown[path].distribution for path in shown},
            user_attrs=_user_attributes(trial),
            system_attrs=self._constraints(trial),
            intermediate_values={
                step: value for step, (value, *others) in self._values[trial.id].items() if not others
            },
        )
        frozen.datetime_start, frozen.datetime_complete = _local(trial.time_run_started), _local(trial.time_completed)
        return frozen

    def _values_of(self, config: Config) -> Iterator[tuple[str, object]]:
        """Yield the values of a config by path. Values outside the space are left out."""
        for key, value in config.items():
            with contextlib.suppress(SpaceError):
                yield from self._space.values({key: value}).items()


def study_of(created: ExperimentCreated, events: Iterable[Event | Report]) -> optuna.Study:
    """Build a study from these events; see ``_StudyFold``."""
    fold = _StudyFold(created)
    for event in events:
        fold.take(event)
    return fold.study()


def export(results: Results, path: Path) -> None:
    """Write an experiment as a study to a new journal file of Optuna.

    Raises:
        ConfigurationError: the file exists.
    """
    if path.exists():
        raise ConfigurationError(f"{path} is there already; remove it, or give another name")
    study = results.to_optuna_study()
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
    with quiet():
        written = optuna.create_study(study_name=results.name, storage=storage, directions=study.directions)
        written.set_metric_names(study.metric_names or [])
        written.add_trials(study.get_trials(deepcopy=False))


def _local(time: datetime | None) -> datetime | None:
    """Return a local time without a zone."""
    return None if time is None else time.astimezone().replace(tzinfo=None)


def _user_attributes(trial: Trial) -> dict[str, object]:
    worker = trial.attempts[-1].worker if trial.attempts else ""
    said = {"trial": trial.id, "status": trial.status.name, "reason": trial.reason, "worker": worker}
    return {f"mqtune.{name}": value for name, value in {**said, "attempts": len(trial.attempts)}.items()}


def shown_space(space: Space) -> dict[str, Shown]:
    """Return a space's domains as Optuna has them, by path. Unsupported domains are left out."""
    shown = {}
    for path, domain in space.domains.items():
        with contextlib.suppress(SpaceError):
            shown[path] = shown_by_value(domain)
    return shown


def names_of(space: Space, shown: Mapping[str, Shown]) -> dict[str, str]:
    """Return the name of each parameter in the study, by path: the keys to its value in a config.

    Entries of a choice with the same keys but different distributions are named by their paths instead.
    """
    shown_at: defaultdict[str, list[object]] = defaultdict(list)
    for path, domain in shown.items():
        # A choice and one of its entries may have the same keys.
        shown_at[space.places[path]].append(path if isinstance(space.domains[path], Entries) else domain.distribution)
    same = {place for place, entries in shown_at.items() if all(entry == entries[0] for entry in entries)}
    return {path: place if (place := space.places[path]) in same else path for path in shown}
