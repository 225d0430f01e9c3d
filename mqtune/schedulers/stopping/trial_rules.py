"""Rules that end single trials; each judges a trial by its own reports."""

from __future__ import annotations

import math
from collections import deque
from typing import ClassVar

from mqtune.core import checks
from mqtune.core.errors import ConfigurationError
from mqtune.core.objective import METRIC_KEY, Mode
from mqtune.core.trial import ITERATION, Report, Trial, TrialId
from mqtune.schedulers.stopping.rule import MetricBounds, Scope, StopRule, number, spread


class MetricMaximum(MetricBounds):
    """Stops a trial when a metric is *maximum* or more, or NaN, whatever the experiment optimises: a loss that has exploded.

    In all else it is like :class:`MetricBounds`.

    Args:
        metric: its key in the reports.
        maximum: the lowest value that stops the trial.
    """

    kind = "metric_maximum"

    def __init__(self, metric: str, maximum: float) -> None:
        super().__init__({metric: maximum})
        ((self._metric, self._maximum),) = self._bounds.items()

    def _is_from_above(self, key: str) -> bool:
        return False

    def stops_trial(self, trial: Trial, report: Report) -> str:
        reason = super().stops_trial(trial, report)
        value = number(report, self._metric, self.metrics)
        if value is not None and math.isnan(value):
            return f"{self._metric} is NaN, and its maximum is {self._maximum:g}"
        return reason


class MaximumIteration(StopRule):
    """Stops a trial with the report whose ``training_iteration`` is *iterations* or more.

    A report without that counts by its sequence number.

    Args:
        iterations: how many, at least 1.
    """

    kind = "maximum_iteration"
    scopes = frozenset({Scope.TRIAL})
    takes_several = True

    def __init__(self, iterations: int) -> None:
        self._iterations = checks.whole_number("MaximumIteration", "iterations", iterations, 1)

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({ITERATION})

    def stops_trial(self, trial: Trial, report: Report) -> str:
        reached = number(report, ITERATION)
        return f"reached iteration {self._iterations}" if reached is not None and reached >= self._iterations else ""


class TrialDiverged(StopRule):
    """Gives up a trial with the first report whose metric is NaN or infinite, under any scheduler: it ends as EARLY_STOPPED.

    A report without the metric, or with something that is not a number for it, is skipped. With a bound on one side it is like
    Optuna's ``ThresholdPruner``: ``TrialDiverged() | MetricMaximum("loss", 1e6)``.

    Args:
        metric: its key in the reports; by default each metric that the experiment optimises.
    """

    kind = "trial_diverged"
    scopes = frozenset({Scope.TRIAL})
    takes_several = True
    gives_up = True

    def __init__(self, metric: str | None = None) -> None:
        self._metric = "" if metric is None else checks.name("TrialDiverged", "metric", metric, METRIC_KEY)

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({self._metric} if self._metric else self.metrics)

    def stops_trial(self, trial: Trial, report: Report) -> str:
        for key in [self._metric] if self._metric else self.metrics:
            value = number(report, key, self.metrics)
            if value is not None and not math.isfinite(value):
                return f"{key} has diverged: {value:g}"
        return ""


class TrialPlateau(StopRule):
    """Stops a trial whose metric no longer moves, or no longer improves.

    It stops with the first report at which the trial has at least *grace_period* values of the metric, and the last
    *num_results* of them have a standard deviation, as a whole population, of *std* or less. Reports without the metric
    don't count. NaN and infinities count as values, and a window that holds one is no plateau. An attempt that goes on
    from the trial's own checkpoint goes on with its values; one that starts from scratch, or from another trial's
    checkpoint, starts with none.

    With *min_delta* the values may move: it stops where the best of the last *num_results* is worse than the best of
    those before by more than that. NaN is left out of both, and where all values of one of them are NaN the trial goes
    on. With *grace_period* 0, that is how Optuna's ``PatientPruner`` decides without another pruner, with *num_results* - 1 for its
    *patience*.

    Args:
        metric: its key in the reports; by default what the experiment optimises, if that is one metric.
        std: the standard deviation, 0 for values that are all the same.
        num_results: how many of the last values are looked at, at least 2, or 1 with *min_delta*.
        grace_period: how many values a trial may have before it can be stopped.
        metric_threshold: a trial whose last value is not as good as this goes on in any case.
        min_delta: how much worse than before the last values must be, at least 0, in place of *std*.
        mode: "min" or "max" of the metric, where it is none that the experiment optimises, for *metric_threshold* and
            *min_delta*.
    """

    kind = "trial_plateau"
    scopes = frozenset({Scope.TRIAL})
    later: ClassVar = {"metric_threshold": "", "min_delta": "", "mode": ""}

    def __init__(
        self,
        metric: str | None = None,
        *,
        std: float = 0.01,
        num_results: int = 4,
        grace_period: int = 4,
        metric_threshold: float | None = None,
        min_delta: float | None = None,
        mode: Mode | None = None,
    ) -> None:
        self._metric = "" if metric is None else checks.name("TrialPlateau", "metric", metric, METRIC_KEY)
        self.takes_several = bool(self._metric)
        self._std = checks.number("TrialPlateau", "std", std, least=0)
        least = 2 if min_delta is None else 1
        self._num_results = checks.whole_number("TrialPlateau", "num_results", num_results, least)
        self._grace_period = checks.whole_number("TrialPlateau", "grace_period", grace_period, 0)
        self._metric_threshold = self._min_delta = None
        if metric_threshold is not None:
            self._metric_threshold = checks.number("TrialPlateau", "metric_threshold", metric_threshold)
        if min_delta is not None:
            self._min_delta = checks.number("TrialPlateau", "min_delta", min_delta, least=0)
        self._mode = mode if mode is None else checks.one_of("TrialPlateau", "mode", mode, ("min", "max"))
        #: 1 where lower values are better, -1 where higher ones are.
        self._sign = 1
        self._windows: dict[TrialId, _Window] = {}

    def bind(self, metric: str, mode: str) -> None:
        super().bind(metric, mode)
        self._metric = self._metric or metric
        better = self._mode or (None if self.objective is None else self.objective.mode_of(self._metric))
        if better is None and (self._metric_threshold is not None or self._min_delta is not None):
            raise ConfigurationError(
                f"TrialPlateau: whether a higher {self._metric} is better is not known, as the experiment does not optimise it: give mode='min' "
                "or 'max'"
            )
        self._sign = -1 if better == "max" else 1

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({self._metric})

    def stops_trial(self, trial: Trial, report: Report) -> str:
        if not self._metric:
            raise ConfigurationError("TrialPlateau: there is no metric to look at; call bind(metric, mode) first")
        value = number(report, self._metric, self.metrics)
        if value is None:
            return ""
        window = self._windows.get(trial.id)
        if window is None or (window.attempt != report.attempt and not _goes_on(trial)):
            window = self._windows[trial.id] = _Window(self._num_results)
        window.attempt = report.attempt
        window.add(self._sign * float(value))
        if window.count < max(self._grace_period, self._num_results):
            return ""
        if self._metric_threshold is not None and not window.values[-1] <= self._sign * self._metric_threshold:
            return ""
        return self._has_plateau(window) if self._min_delta is None else self._gets_worse(window, self._min_delta)

    def _has_plateau(self, window: _Window) -> str:
        std = spread(list(window.values))
        return (
            f"{self._metric} has a plateau: std {std:.3g} over {self._num_results} reports" if std <= self._std else ""
        )

    def _gets_worse(self, window: _Window, min_delta: float) -> str:
        now = min((value for value in window.values if not math.isnan(value)), default=math.nan)
        if not window.best_before + min_delta < now:
            return ""
        best, before = self._sign * now, self._sign * window.best_before
        return f"{self._metric} no longer improves: {best:g} is the best of {self._num_results} reports, and {before:g} that before"

    def on_trial_end(self, trial: Trial) -> None:
        self._windows.pop(trial.id, None)


class _Window:
    """The last values of one trial, of which lower is better, how many there were, and the attempt that the last came from."""

    __slots__ = ("attempt", "best_before", "count", "values")

    def __init__(self, size: int) -> None:
        self.attempt = 0
        self.count = 0
        self.values: deque[float] = deque(maxlen=size)
        #: The best of those before these; NaN where all of them are.
        self.best_before = math.nan

    def add(self, value: float) -> None:
        """Add a value, in place of the oldest where there are enough."""
        if len(self.values) == self.values.maxlen:
            oldest = self.values[0]
            if not (math.isnan(oldest) or self.best_before <= oldest):
                self.best_before = oldest
        self.values.append(value)
        self.count += 1


def _goes_on(trial: Trial) -> bool:
    """Return whether a trial's attempt starts from a checkpoint of its own."""
    attempt = trial.attempt
    return bool(attempt.checkpoint) and attempt.source in (None, trial.id)
