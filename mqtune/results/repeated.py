"""The configs of a ``Repeater``, with the mean values of their repetitions."""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Mapping
from typing import NamedTuple

from mqtune.core.experiment import Experiment
from mqtune.core.trial import Config, Trial, TrialId, TrialStatus
from mqtune.search.base import fingerprint
from mqtune.search.space import SEPARATOR


class Repeated(NamedTuple):
    """A config of a ``Repeater``, and its repetitions.

    Attributes:
        config: the config without the entry by which its repetitions differ.
        trials: its repetitions.
        values: the last value of the metric of each completed trial. Without values the mean is NaN, and with fewer
            than two the standard deviation.
    """

    config: Config
    trials: tuple[Trial, ...]
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values) if self.values else math.nan

    @property
    def std(self) -> float:
        """The sample standard deviation."""
        is_known = len(self.values) > 1 and all(map(math.isfinite, self.values))
        return statistics.stdev(self.values) if is_known else math.nan


def repeated_configs(experiment: Experiment, over: str, last_values: Mapping[TrialId, float]) -> list[Repeated]:
    """Return each config with all its trials, the best mean first.

    Then follow configs with a completed trial that violates an outcome constraint. Configs with fewer values than
    others come last.

    Args:
        over: the path of the config's entry by which repetitions differ, such as ``seed``.
        last_values: the metric's last value of each trial that has one.
    """
    groups: dict[str, tuple[Config, list[Trial]]] = {}
    for trial in experiment.trials.values():
        config = _without(trial.config, over)
        groups.setdefault(fingerprint(config), (config, []))[1].append(trial)
    configs = []
    for config, trials in groups.values():
        values = [last_values[trial.id] for trial in trials if _is_completed(trial) and trial.id in last_values]
        configs.append(Repeated(config, tuple(trials), tuple(values)))
    most = max((len(repeated.values) for repeated in configs), default=0)
    sign = 1 if experiment.mode == "min" else -1

    def order(repeated: Repeated) -> tuple[bool, bool, bool, float]:
        is_feasible = all(map(experiment.is_feasible, filter(_is_completed, repeated.trials)))
        return len(repeated.values) < most, not is_feasible, math.isnan(repeated.mean), sign * repeated.mean

    return sorted(configs, key=order)


def _is_completed(trial: Trial) -> bool:
    return trial.status is TrialStatus.COMPLETED


def _without(config: Config, path: str) -> Config:
    rest = inner = copy.deepcopy(config)
    *folders, name = path.split(SEPARATOR)
    for folder in folders:
        inner = inner[folder]
    inner.pop(name, None)
    return rest
