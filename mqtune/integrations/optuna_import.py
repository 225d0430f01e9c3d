"""A study of Optuna's as trials that have ended; needs the extra ``optuna``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import optuna
from optuna.trial import FrozenTrial, TrialState

from mqtune import TrialStatus
from mqtune.extend import ITERATION, ConfigurationError, Foreign, ForeignTrial, Metrics
from mqtune.integrations.optuna import DIRECTIONS
from mqtune.integrations.optuna_study import open_storage, stored_study

_STATUSES: Final = {
    TrialState.COMPLETE: TrialStatus.COMPLETED,
    TrialState.PRUNED: TrialStatus.EARLY_STOPPED,
    TrialState.FAIL: TrialStatus.FAILED,
}


def read_storage(storage: str | Path, study: str, metric: str) -> Foreign:
    """Return a study of a storage: a URL, or a file of SQLite or of Optuna's journal.

    Args:
        storage: where it is.
        study: its name; empty where there is one alone.
        metric: what its values are called; by default as the study says, or ``value``.

    Raises:
        ConfigurationError: it can't be read, or there is no such study, or another number of studies than one.
    """
    found = stored_study(storage) if not study else _named(storage, study)
    count = len(found.directions)
    names = found.metric_names or ([metric or "value"] if count == 1 else [f"value_{i}" for i in range(count)])
    modes = {direction: mode for mode, direction in DIRECTIONS.items()}
    goals = [modes[direction] for direction in found.directions]
    trials = [_trial(each, names) for each in found.get_trials(deepcopy=False, states=tuple(_STATUSES))]
    is_single = count == 1
    return Foreign(
        "optuna", found.study_name, names[0] if is_single else names, goals[0] if is_single else goals, trials
    )


def _named(storage: str | Path, study: str) -> optuna.Study:
    try:
        return optuna.load_study(study_name=study, storage=open_storage(storage))
    except KeyError:
        raise ConfigurationError(f"there is no study {study!r} in that storage") from None


def _trial(trial: FrozenTrial, names: list[str]) -> ForeignTrial:
    began = trial.datetime_start.timestamp() if trial.datetime_start else 0.0
    ended = trial.datetime_complete.timestamp() if trial.datetime_complete else began or time.time()
    steps = sorted(trial.intermediate_values.items())
    # When each was reported Optuna doesn't keep: they are spread over the trial's time.
    part_s = (ended - began) / (len(steps) + 1) if began else 0.0
    reports: list[tuple[float, Metrics]] = [
        (began + number * part_s, {names[0]: value, ITERATION: step}) for number, (step, value) in enumerate(steps, 1)
    ]
    if trial.state is TrialState.COMPLETE:
        last = steps[-1][0] if steps else 1
        if not (len(names) == 1 and steps and steps[-1][1] == trial.values[0]):
            reports.append((ended, {**dict(zip(names, trial.values, strict=True)), ITERATION: last}))
    reason = str(trial.system_attrs.get("fail_reason", "")) if trial.state is TrialState.FAIL else ""
    return ForeignTrial(trial.params, reports, _STATUSES[trial.state], reason, began)
