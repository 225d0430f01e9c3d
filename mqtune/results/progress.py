"""An experiment's progress in a few values, and the names of its searcher and scheduler."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate
from typing import Final, NamedTuple

from mqtune.core.experiment import Experiment
from mqtune.core.registry import CLASS
from mqtune.core.trial import is_number
from mqtune.results.frames import Row

#: The most values of ``best_so_far``.
_MOST_VALUES: Final = 40

_NONE: Final = "none"
_NAMES: Final = {"optuna": "tpe", "fifo": _NONE, "nobody": _NONE}


def progress_of(experiment: Experiment, definition: Mapping[str, object]) -> Row:
    """Return an experiment's progress as plain values.

    ``ended`` and ``planned`` are numbers of trials, ``updated_at`` is the time of the newest report or status change.
    ``best_so_far`` lists the best value after each trial with a value, in the order in which trials were created. It
    has at most 40 of these values, evenly chosen, and is empty with several metrics.
    """
    return {
        "ended": sum(count for status, count in experiment.counts.items() if status.is_terminal),
        "planned": definition.get("max_trials"),
        "updated_at": updated_at(experiment),
        "best_so_far": _best_so_far(experiment),
    }


class DeciderNames(NamedTuple):
    """The names of an experiment's searcher and scheduler, such as "random", "asha" or "none"."""

    searcher: str
    scheduler: str

    def __str__(self) -> str:
        return self.in_words()

    def in_words(self, why_searcher: str = "") -> str:
        """Return both in words. *why_searcher* is the reason for this searcher, or empty."""
        searches = "no searcher, trials are added" if self.searcher == _NONE else f"searcher {self.searcher}"
        searches += why_searcher and f" ({why_searcher})"
        ends = "no scheduler, each trial runs to its end" if self.scheduler == _NONE else f"scheduler {self.scheduler}"
        return f"{searches}; {ends}"


def deciders_of(definition: Mapping[str, object]) -> DeciderNames:
    """Return the names of the searcher and the scheduler in this definition."""
    return DeciderNames(*(_name_of(definition.get(role), role) for role in DeciderNames._fields))


def _name_of(description: object, role: str) -> str:
    """Return a name such as "tpe", a user's class name, or "repeater of tpe" for a wrapper."""
    if not isinstance(description, Mapping):
        return _NONE
    own, kind = str(description.get(CLASS, "")).rpartition(":")[2], str(description.get(role, _NONE))
    name = own or str(description.get("sampler", "")) or _NAMES.get(kind, kind)
    wrapped = [_name_of(value, role) for value in description.values() if isinstance(value, Mapping) and role in value]
    return f"{name} of {wrapped[0]}" if wrapped else name


def updated_at(experiment: Experiment) -> float:
    """Return the time of the newest report or status change, in seconds since the epoch."""
    trials = list(experiment.trials.values())
    times = (max(trial.last_timestamp, trial.history[-1].at if trial.history else 0.0) for trial in trials)
    return max(times, default=0.0) or experiment.created_at or 0.0


def _best_so_far(experiment: Experiment) -> list[float]:
    values = [
        trial.best_value
        for trial in list(experiment.trials.values())
        if is_number(trial.best_value)
        and math.isfinite(trial.best_value)
        and experiment.is_feasible(trial)
        and not trial.is_abandoned
    ]
    if not values or not experiment.objective.is_single:
        return []
    best = list(accumulate(values, min if experiment.mode == "min" else max))
    step = max(1.0, (len(best) - 1) / (_MOST_VALUES - 1))
    return [best[round(number * step)] for number in range(round((len(best) - 1) / step) + 1)]
