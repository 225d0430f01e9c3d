"""Figures about an experiment, for the head and the tiles of the live page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from mqtune.cli.ui.feed import Feed
from mqtune.core.text import printable
from mqtune.core.trial import Trial, TrialStatus, is_number
from mqtune.results.frames import Row
from mqtune.results.plots.data import time_attr_of, time_label_of
from mqtune.results.progress import deciders_of, updated_at
from mqtune.results.results import Results

#: Earlier times, in seconds since the epoch, are the virtual times of a simulation.
_VIRTUAL_BEFORE: Final = 978_307_200.0
#: With fewer ended trials, their rate says little.
_ENDED_ENOUGH: Final = 10
#: The rate is that of the last part of the run. This is the part's share of the run's time.
_RECENT: Final = 0.25
_MINUTE_S: Final = 60.0
_ERROR_CHARS: Final = 60
#: Names of searchers and schedulers that are abbreviations.
_UPPER: Final = frozenset({"asha", "bohb", "moasha", "pasha", "pb2", "pbt", "tpe"})


def about(feed: Feed) -> Row:
    """Return an experiment's modes, searcher, scheduler and limits, for the page's head."""
    definition, objective = feed.results.definition, feed.experiment.objective
    deciders = deciders_of(definition)
    return {
        "modes": list(objective.modes),
        "searcher": "" if deciders.searcher == "none" else _titled(deciders.searcher),
        "scheduler": "" if deciders.scheduler == "none" else _titled(deciders.scheduler),
        "range": _range_of(definition.get("scheduler"), time_label_of(feed.results)),
        "unit": time_label_of(feed.results),
        "limits": dict(feed.limits),
        "is_virtual": (feed.experiment.created_at or math.inf) < _VIRTUAL_BEFORE,
    }


def _titled(name: str) -> str:
    return " ".join(word.upper() if word.lower() in _UPPER else printable(word) for word in name.split())


def _range_of(scheduler: object, unit: str) -> str:
    """Return a scheduler's parameters in words, such as ``η 3, epochs 1 → 27``."""
    if not isinstance(scheduler, Mapping):
        return ""
    eta, first, last = (scheduler.get(key) for key in ("reduction_factor", "grace_period", "max_t"))
    parts = [f"η {eta:g}"] if isinstance(eta, int | float) else []
    if isinstance(last, int | float):
        begin = f"{first:g} → " if isinstance(first, int | float) else "up to "
        parts.append(f"{unit}s {begin}{last:g}")
    return ", ".join(parts)


class _BestReport(NamedTuple):
    """When the best value was reported: in seconds since the epoch, and in the scheduler's time."""

    at: float
    time: float


def facts(feed: Feed) -> Row:
    """Return figures about an experiment: the time of the best value, speed, savings and errors.

    The cost grows with the number of trials.
    """
    return feed.unlocked(lambda results: _facts(results, _best_report(feed, results)))


def _best_report(feed: Feed, results: Results) -> _BestReport | None:
    best = results.experiment.best
    curve = None if best is None else feed.curves_of_best().get(results.experiment.metric)
    if best is None or curve is None:
        return None
    index = next((index for index, value in enumerate(curve.value) if value == best.best_value), None)
    return None if index is None else _BestReport(curve.at[index], curve.time[index])


def _facts(results: Results, best: _BestReport | None) -> Row:
    experiment = results.experiment
    trials = list(experiment.trials.values())
    ends = sorted(trial.history[-1].at for trial in trials if trial.status.is_terminal and trial.history)
    newest = updated_at(experiment)
    rate = _rate(experiment.created_at or newest, newest, ends)
    errors = Counter(_error(trial) for trial in trials if trial.status is TrialStatus.FAILED)
    budget = results.budget
    common = errors.most_common(1)
    return {
        "newest_at": newest,
        "found_at": None if best is None else best.at,
        "since": 0 if best is None else sum(end > best.at for end in ends),
        "per_minute": rate,
        "used": budget.used,
        "saved": budget.saved,
        "error": common[0][0] if common else "",
        "error_count": common[0][1] if common else 0,
        "time_limit_at": _time_limit_at(results),
    }


def _time_limit_at(results: Results) -> float | None:
    """Return when the stop rules' first limit of wall time is over, since the epoch; None without one."""
    created_at, rules = results.experiment.created_at, [results.definition.get("stop")]
    limits = []
    for rule in rules:
        if not isinstance(rule, Mapping):
            continue
        if isinstance(inner := rule.get("rules"), list) and rule.get("rule") == "any":
            rules += inner
        if (rule.get("rule"), rule.get("count", "wall_time")) == ("time_limit", "wall_time") and is_number(
            rule.get("seconds")
        ):
            limits.append(float(rule["seconds"]))
    return created_at + min(limits) if limits and created_at is not None else None


def time_of_best(feed: Feed) -> float | None:
    """Return the scheduler's time of the report with the best value, or None."""
    best = feed.experiment.best
    time = None if best is None else best.best_metrics.get(time_attr_of(feed.results))
    return float(time) if isinstance(time, int | float) and math.isfinite(time) else None


def _rate(began: float, newest: float, ends: list[float]) -> float | None:
    """Return how many trials ended per minute in the last part of the run, or None for too few."""
    span = (newest - began) * _RECENT
    if len(ends) < _ENDED_ENOUGH or span <= 0:
        return None
    recent = sum(end >= newest - span for end in ends)
    return recent / span * _MINUTE_S if recent else None


def _error(trial: Trial) -> str:
    """Return a failed trial's error in a few words."""
    line = printable(trial.reason).strip().partition("\n")[0] or "no reason given"
    return line if len(line) <= _ERROR_CHARS else f"{line[: _ERROR_CHARS - 1]}…"
