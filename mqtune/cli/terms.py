"""The notation of configs, trials and times in commands: assignments such as ``lr=0.1``, conditions such as ``lr<0.1``, and ``30d``."""

from __future__ import annotations

import json
import operator
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import click

from mqtune.core.errors import ConfigurationError
from mqtune.core.experiment import Experiment
from mqtune.core.text import flatten, names_in_words, put
from mqtune.core.trial import Config, Trial, TrialStatus, is_number
from mqtune.results.display import short_value

_OPERATORS: Final[dict[str, Callable[..., bool]]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "==": operator.eq,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_ORDERS: Final = frozenset({"<", "<=", ">", ">="})
_CONDITION: Final = re.compile(r"\s*([^<>=!]+?)\s*(<=|>=|!=|==|=|<|>)\s*(.*?)\s*", re.DOTALL)
_AND: Final = re.compile(r"\s+and(?:\s+|$)")
#: As Python has them, which JSON calls otherwise.
_PYTHON: Final[dict[str, object]] = {"True": True, "False": False, "None": None}
#: The word for the best trial, and the column of each trial's best value.
BEST: Final = "best"
#: The statuses, as options take them.
STATUSES: Final = click.Choice([status.value for status in TrialStatus])
#: The column of a trial's id: sorted by it, trials come in the order in which they were begun.
BEGUN: Final = "trial"
_OPENING: Final = "[{("
_CLOSING: Final = "]})"


_HOUR_S: Final = 3_600.0
_UNITS_S: Final = {"h": _HOUR_S, "d": 24 * _HOUR_S, "w": 7 * 24 * _HOUR_S}
_AGO: Final = re.compile(r"(\d{1,6})([hdw])")


def past_time(text: str) -> float:
    """Return a time in the past, in seconds since the epoch, from a text such as ``30d`` or a date.

    Raises:
        click.BadParameter: it is none.
    """
    if (found := _AGO.fullmatch(text)) is not None:
        return time.time() - int(found[1]) * _UNITS_S[found[2]]
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{text!r} is no time; write 30d, 12h, 4w, or a date such as 2026-11-01") from None


class Condition(NamedTuple):
    """A comparison of something that is known of a trial with a value."""

    name: str
    operator: str
    value: object

    def check(self, values: Sequence[object]) -> None:
        """Check that values like these can be above or below the condition's.

        Raises:
            ConfigurationError: they are numbers, and that is a text.
        """
        if self.operator in _ORDERS and isinstance(self.value, str) and values and all(map(is_number, values)):
            raise ConfigurationError(
                f"'{self.name}{self.operator}{self.value}' compares numbers with a text; give a number, such as "
                f"'{self.name}{self.operator}{short_value(values[0])}'"
            )

    def holds(self, row: Mapping[str, object]) -> bool:
        """Whether it holds for a trial; what a trial has not got fulfils no condition."""
        if self.name not in row:
            return False
        left, right = row[self.name], self.value
        if is_number(left) != is_number(right) or isinstance(left, str) != isinstance(right, str):
            # A choice of "8" is written as 8 too; anything else that differs in kind has no order.
            left, right = str(left), str(right)
            if self.operator not in ("=", "==", "!="):
                return False
        try:
            return bool(_OPERATORS[self.operator](left, right))
        except TypeError:
            return False


def conditions_of(texts: Iterable[str]) -> list[Condition]:
    """Return the conditions in texts such as ``lr<0.1 and width>=64``.

    Raises:
        click.UsageError: a text is no condition.
    """
    return [_condition(part) for text in texts for part in _AND.split(text)]


def _condition(text: str) -> Condition:
    found = _CONDITION.fullmatch(text)
    # A value that begins with an operator is a second one; in quotes it is a text.
    if found is None or not found[3] or found[3][0] in "<>=!":
        raise click.UsageError(
            f"{text!r} is not a condition; write one such as 'lr<0.1', 'optimizer=adam' or 'status!=failed'"
        )
    return Condition(found[1], found[2], value_of(found[3]))


def value_of(text: str) -> object:
    """Return the value that a text stands for: JSON's if it is JSON, else the text itself."""
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
    found = value_of(text)
    if not isinstance(found, dict):
        raise click.UsageError(f"{text!r} is not a JSON object")
    return found


def _parts(text: str) -> list[str]:
    """Split a text at its commas, but those within brackets or quotes."""
    parts, depth, quote = [""], 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char == '"':
            quote = char
        else:
            depth += (char in _OPENING) - (char in _CLOSING)
        if char == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += char
    return parts


# What is known of a trial.


def row_of(trial: Trial) -> dict[str, object]:
    """Return what conditions and sorting may name: a trial's own columns, its config, and its metrics at its best and at last."""
    config, metrics = dict(flatten(trial.config)), dict(flatten(trial.best_metrics))
    named = {"config": config, "metrics": metrics, "last": dict(flatten(trial.last_metrics))}
    return {
        **metrics,
        **config,
        BEGUN: trial.id,
        "status": trial.status.value,
        "reason": trial.reason,
        "reports": trial.reports,
        "attempts": len(trial.attempts),
        "worker": trial.attempts[-1].worker if trial.attempts else "",
        **({"best": trial.best_value} if trial.has_metric else {}),
        **{f"{group}.{name}": value for group, values in named.items() for name, value in values.items()},
    }


def selected(trials: Iterable[Trial], conditions: list[Condition]) -> list[Trial]:
    """Return the trials for which all conditions hold.

    Raises:
        ConfigurationError: a condition is about what no trial has, or compares numbers with a text.
    """
    rows = [(trial, row_of(trial)) for trial in trials]
    for condition in conditions:
        _check_known(condition.name, [row for _, row in rows])
        condition.check([row[condition.name] for _, row in rows if condition.name in row])
    return [trial for trial, row in rows if all(condition.holds(row) for condition in conditions)]


def _check_known(name: str, rows: list[dict[str, object]]) -> None:
    if rows and not any(name in row for row in rows):
        names = dict.fromkeys(known for row in rows for known in row if "." not in known)
        raise ConfigurationError(f"no trial has {name!r}; there are {names_in_words(names)}")


def in_order(experiment: Experiment, trials: Iterable[Trial], name: str, *, reverse: bool = False) -> list[Trial]:
    """Return trials sorted by a column; a metric that is maximized has its highest values first, and who has none comes last."""
    if name == BEGUN:
        begun = {id_: place for place, id_ in enumerate(experiment.trials)}
        return sorted(trials, key=lambda trial: begun[trial.id], reverse=reverse)
    rows = [(trial, row_of(trial)) for trial in trials]
    _check_known(name, [row for _, row in rows])
    objective = experiment.objective
    metric = name.removeprefix("metrics.").removeprefix("last.")
    is_max = name == BEST and experiment.mode == "max"
    if metric in objective.metrics:
        is_max = objective.modes[objective.metrics.index(metric)] == "max"
    with_it = [(row[name], trial) for trial, row in rows if name in row and row[name] == row[name]]
    ordered = sorted(with_it, key=lambda each: _sort_key(each[0]), reverse=is_max != reverse)
    found = {trial.id: trial for _, trial in ordered}
    return [*found.values(), *(trial for trial, _ in rows if trial.id not in found)]


def _sort_key(value: object) -> tuple[bool, float, str]:
    return (False, value, "") if is_number(value) else (True, 0, str(value))
