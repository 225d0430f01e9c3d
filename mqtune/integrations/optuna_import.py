"""Imports a study of Optuna as ended trials."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from mqtune import Space, TrialStatus
from mqtune.extend import (
    ITERATION,
    Config,
    ConfigurationError,
    Foreign,
    ForeignTrial,
    Metrics,
    SpaceError,
    importing,
    redact,
)
from mqtune.search import PastTrial

with importing("Optuna", "optuna"):
    import optuna
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import FrozenTrial, TrialState

    from mqtune.integrations.optuna import DIRECTIONS
    from mqtune.integrations.optuna_study import names_of, shown_space

_SQLITE: Final = b"SQLite format 3\0"
_STATUSES: Final = {
    TrialState.COMPLETE: TrialStatus.COMPLETED,
    TrialState.PRUNED: TrialStatus.EARLY_STOPPED,
    TrialState.FAIL: TrialStatus.FAILED,
}


def recognizes(source: str) -> bool:
    """Return whether a source may be a storage of Optuna: a URL, or a file other than CSV."""
    return "://" in source or (Path(source).is_file() and Path(source).suffix != ".csv")


def read(source: str, metric: str, mode: str, study: str) -> Foreign:  # noqa: ARG001 - importers are called alike
    """Return a study from a storage: a URL, or a file of SQLite or Optuna's journal.

    Args:
        source: the storage.
        metric: the name of the study's values, if the study has no name for them; by default "value".
        mode: ignored; studies have directions.
        study: the study's name; empty for the only one.

    Raises:
        ConfigurationError: the storage is unreadable, the study is missing, or its name is needed.
    """
    storage = source if "://" in source else Path(source)
    chosen = stored_study(storage) if not study else _load_named(storage, study)
    count = len(chosen.directions)
    names = chosen.metric_names or ([metric or "value"] if count == 1 else [f"value_{i}" for i in range(count)])
    modes = {direction: mode for mode, direction in DIRECTIONS.items()}
    goals = [modes[direction] for direction in chosen.directions]
    trials = [_foreign_trial(frozen, names) for frozen in chosen.get_trials(deepcopy=False, states=tuple(_STATUSES))]
    is_single = count == 1
    return Foreign(
        "optuna", chosen.study_name, names[0] if is_single else names, goals[0] if is_single else goals, trials
    )


def _load_named(storage: str | Path, study: str) -> optuna.Study:
    try:
        return optuna.load_study(study_name=study, storage=open_storage(storage))
    except KeyError:
        raise ConfigurationError(f"there is no study {study!r} in that storage") from None


def _foreign_trial(trial: FrozenTrial, names: list[str]) -> ForeignTrial:
    began = trial.datetime_start.timestamp() if trial.datetime_start else 0.0
    ended = trial.datetime_complete.timestamp() if trial.datetime_complete else began or time.time()
    steps = sorted(trial.intermediate_values.items())
    # Optuna records no report times, so they are spread evenly.
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


def stored_study(storage: str | Path) -> optuna.Study:
    """Return a storage's only study.

    Raises:
        ConfigurationError: it is unreadable, or does not have exactly one study.
    """
    shown = redact(str(storage))
    try:
        opened = open_storage(storage)
        names = optuna.study.get_all_study_names(opened)
    except Exception as error:  # SQLAlchemy's, Optuna's, JSON's, and those of the drivers of databases.
        raise ConfigurationError(
            f"{shown} can't be read as a storage of Optuna: {type(error).__name__}: {error}"
        ) from error
    if not names:
        raise ConfigurationError(f"{shown} has no study of Optuna")
    if len(names) > 1:
        raise ConfigurationError(
            f"{shown} has {len(names)} studies: {', '.join(names)}; give one: optuna.load_study(study_name=…, "
            "storage=…)"
        )
    return optuna.load_study(study_name=names[0], storage=opened)


def open_storage(storage: str | Path) -> optuna.storages.BaseStorage:
    """Open a storage: a URL, or a file of SQLite or Optuna's journal."""
    if isinstance(storage, str):
        return optuna.storages.get_storage(storage)
    with storage.open("rb") as file:
        is_sqlite = file.read(len(_SQLITE)) == _SQLITE
    if is_sqlite:
        return optuna.storages.get_storage(f"sqlite:///{storage.resolve()}")
    return optuna.storages.JournalStorage(JournalFileBackend(str(storage)))


def goal_of(study: optuna.Study) -> tuple[str, str]:
    """Return the name of a study's metric, empty if it has no name, and its mode.

    Raises:
        ConfigurationError: it has several objectives.
    """
    if len(study.directions) > 1:
        raise ConfigurationError(
            f"study {study.study_name} has {len(study.directions)} objectives; mqtune can learn only from a study with "
            "one"
        )
    modes = {direction: mode for mode, direction in DIRECTIONS.items()}
    return (study.metric_names or [""])[0], modes[study.direction]


def ended_trials(study: optuna.Study) -> list[PastTrial]:
    """Return completed trials with their values, and pruned ones with their last values."""
    past = []
    for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)):
        step = trial.last_step
        if trial.state is TrialState.COMPLETE:
            past.append(PastTrial(trial.params, trial.values[0], 1 if step is None else step))
        elif step is not None:
            past.append(PastTrial(trial.params, trial.intermediate_values[step], step, TrialStatus.EARLY_STOPPED))
    return past


def config_reader(space: Space) -> Callable[[Config], Config]:
    """Return a function that converts a study's parameters to a config.

    It raises SpaceError for missing or invalid parameters, and for a violated constraint of the space.
    """
    shown = shown_space(space)
    names = names_of(space, shown)

    def read(params: Config) -> Config:
        values: dict[str, object] = {}
        for path in space.walk(values):
            if (domain := shown.get(path)) is not None:
                if names[path] not in params:
                    raise SpaceError(f"there is no parameter {names[path]}")
                values[path] = domain.to_value(params[names[path]])
        config = space.config_of(values)
        space.check(config, partial=False)
        return config

    return read
