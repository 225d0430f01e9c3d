"""Trials of a searcher, as a driver would tell of them."""

from __future__ import annotations

from typing import Any

import mqtune
from mqtune.core.trial import Attempt, Config, Report, Trial, TrialId, TrialStatus

#: A space with a domain of each kind.
DOMAINS: dict[str, Any] = {
    "lr": mqtune.loguniform(1e-4, 1e-1),
    "x": mqtune.uniform(-1, 1),
    "net": {"width": mqtune.lograndint(8, 512), "act": mqtune.choice(["relu", None, [1, 2], {"a": 1}])},
    "q": mqtune.quniform(0.25, 1, 0.1),
    "momentum": mqtune.reverseloguniform(0.9, 0.999),
    "noise": mqtune.normal(0, 1),
    "bias": mqtune.qrandn(0, 1, 0.25),
    "buffer": mqtune.qlograndint(8, 512, 8),
    "size": mqtune.ordinal([16, 32, 64]),
    "half": mqtune.sample_from(lambda config: config["x"] / 2),
    "fixed": "always",
}


def train(config: Config) -> None:
    """Stand for a trainable: the simulated backend doesn't call it."""


class Story:
    """Begins trials of a bound searcher, one after the other. A report that is one number is of a metric."""

    def __init__(self, searcher: Any, metric: str = "loss") -> None:
        self.searcher = searcher
        self.number = 0
        self._metric = metric

    def begin(self, config: Config | None = None, replays: Config | None = None) -> Trial:
        """Stage a trial: with a config that a user adds, with the journal's, or with what is suggested."""
        self.number += 1
        id_ = TrialId(f"{self.number:04d}")
        if config is not None:
            self.searcher.adopt(id_, config)
        elif replays is not None:
            config = self.searcher.replay(id_, replays)
        else:
            config = self.searcher.suggest(id_)
        assert isinstance(config, dict)
        trial = Trial(id_, config, TrialStatus.QUEUED, [Attempt(1, 0.0, config)])
        self.searcher.on_queue(trial)
        return trial

    def report(self, trial: Trial, *values: object) -> Trial:
        """Have a trial report these, numbers or metrics, one after the other."""
        for value in values:
            trial.reports += 1
            told = value if isinstance(value, dict) else {self._metric: value, "speed": value}
            trial.last_metrics = {"training_iteration": trial.reports, **told}
            self.searcher.on_report(trial, Report(trial.id, 1, trial.reports, 0.0, trial.last_metrics))
        return trial

    def end(self, trial: Trial, status: TrialStatus = TrialStatus.COMPLETED) -> Trial:
        """End or pause a trial."""
        trial.status = status
        if status is TrialStatus.PAUSED:
            self.searcher.on_trial_pause(trial)
            return trial
        if status is TrialStatus.ABANDONED:
            self.searcher.on_abandon(trial)
        self.searcher.on_trial_end(trial)
        return trial
