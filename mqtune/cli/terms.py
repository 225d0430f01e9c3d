"""The notation of configs, columns of trials, and times in commands."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

import click

from mqtune.core.errors import ConfigurationError
from mqtune.core.experiment import Experiment
from mqtune.core.text import flatten, names_in_words, put
from mqtune.core.trial import Config, Trial, TrialStatus, is_number

#: Values in Python's spelling, which is not JSON.
_PYTHON: Final[dict[str, object]] = {"True": True, "False": False, "None": None}
#: The name of the best trial, and of the column with each trial's best value.
BEST: Final = "best"
STATUSES: Final = click.Choice([status.value for status in TrialStatus])
#: The column with a trial's id. Trials are sorted by it in the order in which they were created.
BEGUN: Final = "trial"
#: Brackets by their opening ones. Commas within them don't separate parts.
_CLOSED_BY: Final = {"[": "]", "{": "}", "(": ")"}
_HOUR_S: Final = 3_600.0
_UNITS_S: Final = {"h": _HOUR_S, "d": 24 * _HOUR_S, "w": 7 * 24 * _HOUR_S}
_AGO: Final = re.compile(r"(\d{1,6})([hdw])")


def past_time(text: str) -> float:
    """Return the time of a text such as ``30d`` (ago) or a date, in seconds since the epoch.

    Raises:
        click.BadParameter: the text is invalid.
    """
    if (matched := _AGO.fullmatch(text)) is not None:
        return time.time() - int(matched[1]) * _UNITS_S[matched[2]]
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{text!r} is not a time; write 30d, 12h, 4w, or a date such as 2026-11-01") from None


def value_of(text: str) -> object:
    """Return the value that a text has as JSON, or else the text itself."""
    if text in _PYTHON:
        return _PYTHON[text]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def config_of(texts: Iterable[str]) -> Config:
    """Return the config in texts such as ``lr=0.1,layers.width=64``, or in a JSON object.

    Raises:
        click.UsageError: a text is neither.
    """
    config: dict[str, object] = {}
    for text in texts:
        if text.lstrip().startswith("{"):
            config.update(_object(text))
            continue
        for part in _parts(text):
            name, equals, value = part.partition("=")
            if not equals or not name.strip():
                raise click.UsageError(f"{part!r} is not an assignment; write lr=0.1,width=64 or a JSON object")
            try:
                put(config, name.strip(), value_of(value.strip()))
            except ConfigurationError as error:
                raise click.UsageError(str(error)) from None
    return config


def _object(text: str) -> dict[str, object]:
    value = value_of(text)
    if not isinstance(value, dict):
        raise click.UsageError(f"{text!r} is not a JSON object")
    return value


def _parts(text: str) -> list[str]:
    """Split a text at its commas, except within brackets or quotes."""
    parts, opened, is_quoted, is_escaped = [""], "", False, False
    for char in text:
        if is_quoted:
            is_quoted = is_escaped or char != '"'
            is_escaped = char == "\\" and not is_escaped
        elif char == '"':
            is_quoted = True
        elif char in _CLOSED_BY:
            opened += char
        elif opened and char == _CLOSED_BY[opened[-1]]:
            opened = opened[:-1]
        if char == "," and not opened and not is_quoted:
            parts.append("")
        else:
            parts[-1] += char
    if opened or is_quoted:
        raise click.UsageError(
            f"{text!r} has a {'quote' if is_quoted else repr(opened[-1])} that is not closed; close it, or write a "
            "JSON "
            'object, whose texts may have it: \'{"name": "a(,"}\''
        )
    return parts


class _Absent:
    """Stands for a missing value, as None is a valid value."""


ABSENT: Final = _Absent()
#: A trial's own columns. They have precedence over parameters and metrics of the same name.
_OWN: Final[dict[str, Callable[[Trial], object]]] = {
    BEGUN: lambda trial: trial.id,
    "status": lambda trial: trial.status.value,
    "reason": lambda trial: trial.reason,
    "reports": lambda trial: trial.reports,
    "attempts": lambda trial: len(trial.attempts),
    "worker": lambda trial: trial.attempts[-1].worker if trial.attempts else "",
    "ran_s": lambda trial: trial.run_s,
    BEST: lambda trial: trial.best_value if trial.has_metric else ABSENT,
}
OWN_COLUMNS: Final = frozenset(_OWN)
_GROUPS: Final[dict[str, Callable[[Trial], Mapping[str, object]]]] = {
    "config": lambda trial: trial.config,
    "metrics": lambda trial: trial.best_metrics,
    "last": lambda trial: trial.last_metrics,
}


def value_in(trial: Trial, name: str) -> object:
    """Return the value of a trial's column, parameter or metric, or ``ABSENT``.

    Names such as ``config.lr``, ``metrics.loss`` and ``last.loss`` say where the value is from.
    """
    group, _, rest = name.partition(".")
    if rest and group in _GROUPS and (own := _entry(_GROUPS[group](trial), rest)) is not ABSENT:
        return own
    if name in _OWN:
        return _OWN[name](trial)
    own = _entry(trial.config, name)
    return own if own is not ABSENT else _entry(trial.best_metrics, name)


def _entry(values: Mapping[str, object], name: str) -> object:
    value = values.get(name, ABSENT)
    if value is not ABSENT and not isinstance(value, Mapping):
        return value
    return dict(flatten(values)).get(name, ABSENT) if value is not ABSENT or "." in name else ABSENT


def _names_in(trials: Iterable[Trial]) -> dict[str, None]:
    names: dict[str, None] = {}
    for trial in trials:
        names |= dict.fromkeys(name for name, _ in (*flatten(trial.best_metrics), *flatten(trial.config)))
    return {name: None for name in (*names, *_OWN) if "." not in name}


def check_known(name: str, trials: Sequence[Trial], values: Sequence[object]) -> None:
    """Check that any of the trials has a value for a name. *values* has all such values.

    Raises:
        ConfigurationError: there are trials, but no values.
    """
    if trials and not values:
        raise ConfigurationError(f"no trial has {name!r}; trials have {names_in_words(_names_in(trials))}")


def in_order(experiment: Experiment, trials: Iterable[Trial], name: str, *, reverse: bool = False) -> list[Trial]:
    """Return trials sorted by a column, a parameter or a metric.

    Metrics that are maximized are sorted in descending order. Trials without a value come last, even with *reverse*.

    Raises:
        ConfigurationError: no trial has a value of this name.
    """
    if name == BEGUN:
        ranks = {id_: rank for rank, id_ in enumerate(experiment.trials)}
        return sorted(trials, key=lambda trial: ranks[trial.id], reverse=reverse)
    all_trials = list(trials)
    values = [(value_in(trial, name), trial) for trial in all_trials]
    check_known(name, all_trials, [value for value, _ in values if value is not ABSENT])
    objective = experiment.objective
    metric = name.removeprefix("metrics.").removeprefix("last.")
    is_max = name == BEST and experiment.mode == "max"
    if metric in objective.metrics:
        is_max = objective.modes[objective.metrics.index(metric)] == "max"
    valued = [(value, trial) for value, trial in values if value is not ABSENT and not _is_nan(value)]
    ordered = sorted(valued, key=lambda pair: _sort_key(pair[0]), reverse=is_max != reverse)
    by_id = {trial.id: trial for _, trial in ordered}
    return [*by_id.values(), *(trial for trial in all_trials if trial.id not in by_id)]


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _sort_key(value: object) -> tuple[bool, float, str]:
    return (False, value, "") if is_number(value) else (True, 0, str(value))
