"""How far an experiment has come: for a list that shows many of them, in a few values each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate
from typing import Final

from mqtune.core.experiment import Experiment
from mqtune.core.trial import is_number
from mqtune.results.frames import Row

#: The most values of the line that a list draws: its picture is some 100 pixels wide.
_MOST: Final = 40


def progress_of(experiment: Experiment, definition: Mapping[str, object]) -> Row:
    """Return how many trials have ended and are planned, the time of the newest event, and the best value so far.

    ``best_so_far`` has the best value after each trial, in the order in which trials began; of many trials some. It is
    empty where the experiment has no single metric.
    """
    return {
        "ended": sum(count for status, count in experiment.counts.items() if status.is_terminal),
        "planned": definition.get("max_trials"),
        "updated_at": updated_at(experiment),
        "best_so_far": _best_so_far(experiment),
    }


def updated_at(experiment: Experiment) -> float:
    """Return the time of the newest report, or change of a trial, in seconds since the epoch."""
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
    step = max(1.0, (len(best) - 1) / (_MOST - 1))
    return [best[round(place * step)] for place in range(round((len(best) - 1) / step) + 1)]
