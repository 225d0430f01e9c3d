"""The live page's table of trials: its columns, filter, order and rows."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from mqtune.cli.conditions import filter_of, selected
from mqtune.cli.terms import BEST, in_order
from mqtune.cli.ui.feed import Feed
from mqtune.core.experiment import Experiment
from mqtune.core.text import flatten, printable
from mqtune.core.trial import ITERATION, TIME_THIS_ITER, TIME_TOTAL, Trial, TrialId, is_number
from mqtune.results.display import ranked, short_value
from mqtune.results.frames import Row, trial_rows
from mqtune.results.plots.data import time_attr_of, time_label_of
from mqtune.results.results import Results, csv_text

#: The keys that mqtune itself adds to reports. They are hidden by default.
BOOKKEEPING: Final = frozenset(
    {ITERATION, TIME_THIS_ITER, TIME_TOTAL, "iterations_since_restore", "time_since_restore_s"}
)
#: The most rows and columns in one response.
MOST_ROWS: Final = 1_000
_MOST_COLUMNS: Final = 200
#: The most parameters, and the most metrics that are not optimised, that are shown by default.
_PARAMETERS, _METRICS = 12, 4
#: The points of a trial's small curve.
_SPARK: Final = 24
#: Integers from here on would lose digits in a browser, and are sent as texts.
_MOST_NUMBER: Final = 2**53
#: The column with the scheduler's time of a trial's best report, and the column with its small curve.
_AT, CURVE = "at", "curve"


def chosen(experiment: Experiment, where: str) -> list[Trial]:
    """Return the trials that meet a filter, the best first.

    Raises:
        click.UsageError: the filter is not a condition.
        ConfigurationError: no trial has a value of a name in the filter.
    """
    return selected(ranked(experiment), filter_of(where) if where else None)


def ordered(feed: Feed, where: str, sort: str, *, reverse: bool) -> Row:
    """Return the ids of the filtered trials in order, their numbers by status, and all columns.

    *sort* is a column's key. If it is empty, the best trials come first.

    Raises:
        as ``chosen``.
    """

    def made(results: Results) -> Row:
        experiment = results.experiment
        trials = chosen(experiment, where)
        if sort:
            trials = in_order(experiment, trials, sort, reverse=reverse)
        return {
            "ids": [trial.id for trial in trials],
            "counts": dict(Counter(trial.status.value for trial in trials)),
            "columns": columns_of(experiment, time_attr_of(results), time_label_of(results)),
        }

    return feed.unlocked(made)


def rows_of(feed: Feed, ids: Iterable[str]) -> list[Row]:
    """Return the present rows of these trials. Missing trials are left out."""
    with feed.lock:
        trials = feed.experiment.trials
        return rows_for(feed, [trials[TrialId(id_)] for id_ in ids if id_ in trials])


def statuses_of(feed: Feed, ids: Iterable[str]) -> list[str]:
    """Return the statuses of these trials. After an overwrite, missing ones have empty texts."""
    with feed.lock:
        trials = feed.experiment.trials
        return [trials[TrialId(id_)].status.value if id_ in trials else "" for id_ in ids]


def rows_for(feed: Feed, trials: Sequence[Trial]) -> list[Row]:
    """Return a row for each trial: its cells by the columns' keys, as numbers or texts.

    The caller must hold the feed's lock.
    """
    experiment, time_attr = feed.experiment, time_attr_of(feed.results)
    front = {trial.id for trial in experiment.pareto_front}
    rows = []
    for trial in trials:
        row = _row(experiment, trial, time_attr, is_on_front=trial.id in front)
        curve = feed.curve_of(trial.id)
        rows.append({**row, "curve": [] if curve is None else _spark(curve.value)})
    return rows


def _spark(values: Sequence[float]) -> list[float | None]:
    """Return a few evenly chosen values of a curve, for a small picture. None stands for NaN."""
    last, points = len(values) - 1, min(len(values), _SPARK)
    kept = (values[place * last // max(1, points - 1)] for place in range(points))
    return [None if math.isnan(value) else _rounded(value) for value in kept]


def _row(experiment: Experiment, trial: Trial, time_attr: str, *, is_on_front: bool) -> Row:
    attempt = trial.attempts[-1] if trial.attempts else None
    ran_s = trial.run_s
    if attempt is not None and attempt.started_at is not None and attempt.ended_at is None:
        ran_s += max(0.0, time.time() - attempt.started_at)
    reached = trial.last_metrics.get(time_attr, trial.last_metrics.get(ITERATION))
    cells = {
        "reports": _cell(reached if is_number(reached) else attempt.reports if attempt is not None else 0),
        BEST: _cell(trial.best_value) if trial.has_metric else "",
        _AT: _cell(trial.best_metrics.get(time_attr, "")),
        f"last.{experiment.metric}": _cell(trial.last_metrics.get(experiment.metric, "")),
        "front": "yes" if is_on_front else "",
        "feasible": "no" if trial.best_metrics and not experiment.is_feasible(trial) else "",
        "ran_s": _rounded(ran_s) if attempt is not None and attempt.started_at is not None else "",
        "worker": printable(attempt.worker) if attempt is not None else "",
        "attempts": len(trial.attempts),
        "tags": printable(", ".join(trial.labels.tags)),
        "notes": printable(trial.labels.notes),
        "reason": printable(trial.reason),
        **{f"config.{name}": _cell(value) for name, value in flatten(trial.config)},
        **{f"metrics.{name}": _cell(value) for name, value in flatten(trial.best_metrics)},
    }
    return {
        "id": trial.id,
        "status": trial.status.value,
        "cells": {key: cell for key, cell in cells.items() if cell != ""},
    }


def _cell(value: object) -> object:
    """Return a cell's value as a number, which the page formats, or as a short text."""
    if is_number(value) and math.isfinite(value) and abs(value) < _MOST_NUMBER:
        return _rounded(value) if isinstance(value, float) else value
    return short_value(value)


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def columns_of(experiment: Experiment, time_attr: str, unit: str) -> list[Row]:
    """Return the columns of the table: key, title, kind, and whether each is shown by default."""
    trials, objective = list(experiment.trials.values()), experiment.objective
    parameters = list(dict.fromkeys(name for trial in trials for name, _ in flatten(trial.config)))
    metrics = dict.fromkeys(name for trial in trials for name, _ in flatten(trial.best_metrics))
    others = [name for name in metrics if name not in objective.metrics]
    first = [name for name in others if name not in BOOKKEEPING and name != time_attr][:_METRICS]
    values = (
        [
            _column(BEST, objective.metrics[0], "metric"),
            _column(_AT, f"at {unit}", "metric", is_shown=False, sorts=False),
            _column(f"last.{experiment.metric}", f"last {experiment.metric}", "metric", is_shown=False),
        ]
        if objective.is_single
        else [
            *(_column(f"metrics.{name}", name, "metric") for name in objective.metrics),
            _column("front", "front", "metric", sorts=False),
        ]
    )
    if objective.constraints:
        values.append(_column("feasible", "feasible", "metric", sorts=False))
    has_tags = any(trial.labels.tags for trial in trials)
    has_notes = any(trial.labels.notes for trial in trials)
    columns = [
        _column("reports", unit),
        _column(CURVE, "curve", is_shown=objective.is_single, sorts=False),
        *values,
        *(_column(f"metrics.{name}", name, "metric", is_shown=name in first) for name in others),
        *(
            _column(f"config.{name}", name, "parameter", is_shown=index < _PARAMETERS)
            for index, name in enumerate(parameters)
        ),
        _column("ran_s", "duration"),
        _column("worker", "worker"),
        _column("tags", "tags", is_shown=has_tags, sorts=False),
        _column("notes", "notes", is_shown=has_notes, sorts=False),
        _column("attempts", "attempts", is_shown=False),
        _column("reason", "reason", is_shown=False),
    ]
    return columns[:_MOST_COLUMNS]


def _column(key: str, title: str, kind: str = "", *, is_shown: bool = True, sorts: bool = True) -> Row:
    return {"key": key, "title": printable(title), "kind": kind, "shown": is_shown, "sorts": sorts}


def exported(feed: Feed, ids: Sequence[str]) -> Row:
    """Return the name and content of a CSV file with these trials, as from ``mqtune export``."""

    def made(results: Results) -> Row:
        rows = {str(row["trial"]): row for row in trial_rows(results.experiment)}
        return {
            "file": f"{results.experiment.name}.csv",
            "text": csv_text([rows[id_] for id_ in ids if id_ in rows]),
        }

    # With the lock, the export would delay the experiment's changes on all pages.
    return feed.unlocked(made)
