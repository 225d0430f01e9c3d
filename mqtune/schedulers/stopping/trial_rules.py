"""Rules that end single trials, by their own reports."""

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
    """Stops a trial when a metric, such as a loss, is *maximum* or more, or NaN.

    The metric's mode doesn't matter. All else is as in :class:`MetricBounds`.

    Args:
        metric: the metric's key in the reports.
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
    """Stops a trial at the first report whose ``training_iteration`` is *iterations* or more.

    For a report without ``training_iteration``, its sequence number counts.

    Args:
        iterations: the last iteration, at least 1.
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
    """Ends a trial as EARLY_STOPPED at its first NaN or infinite metric.

    A report without a number for the metric is skipped. To stop also at a bound, as Optuna's ``ThresholdPruner`` does,
    use ``TrialDiverged() | MetricMaximum("loss", 1e6)``.

    Args:
        metric: the metric's key in the reports. By default every metric that the experiment optimises.
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
    """Stops a trial whose metric no longer changes, or has got worse.

    The trial is stopped when it has at least *grace_period* values of the metric, and the population standard deviation
    of the last *num_results* values is *std* or less. Reports without the metric don't count. NaN and infinities count
    as values, but with one of them among the last values the trial continues. An attempt that starts from the trial's
    own checkpoint keeps the earlier values. An attempt from scratch, or from another trial's checkpoint, begins without
    values.

    With *min_delta* the trial is stopped only if the metric has got worse. All of its last *num_results* values must be
    worse than the best of all values before them, by more than *min_delta*. NaN is ignored. If all last or all earlier
    values are NaN, the trial continues. With *grace_period* 0, this decides like Optuna's ``PatientPruner`` without a
    wrapped pruner, whose *patience* is *num_results* - 1.

    Args:
        metric: the metric's key in the reports. By default the experiment's metric, if it has only one.
        std: largest standard deviation of a plateau. 0 means equal values.
        num_results: number of last values to compare, at least 2, or 1 with *min_delta*.
        grace_period: number of values that a trial must have before it can be stopped.
        metric_threshold: a trial whose last value is worse than this continues in any case.
        min_delta: stop trials whose last values are worse by more than this, instead of trials with a low *std*. At
            least 0.
        mode: "min" or "max". With *metric_threshold* or *min_delta* it is needed for a metric that the experiment does
            not optimise.
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
        #: 1 if lower values are better, -1 if higher ones are.
        self._sign = 1
        self._windows: dict[TrialId, _Window] = {}

    def bind(self, metric: str, mode: str) -> None:
        super().bind(metric, mode)
        self._metric = self._metric or metric
        better = self._mode or (None if self.objective is None else self.objective.mode_of(self._metric))
        if better is None and (self._metric_threshold is not None or self._min_delta is not None):
            raise ConfigurationError(
                f"TrialPlateau: whether a higher {self._metric} is better is not known, as the experiment does not "
                "optimise it: give mode='min' or 'max'"
            )
        self._sign = -1 if better == "max" else 1

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({self._metric})

    def stops_trial(self, trial: Trial, report: Report) -> str:
        if not self._metric:
            raise ConfigurationError("TrialPlateau: the metric is not known; call bind(metric, mode) first")
        value = number(report, self._metric, self.metrics)
        if value is None:
            return ""
        window = self._windows.get(trial.id)
        if window is None or (window.attempt != report.attempt and not _continues_own_checkpoint(trial)):
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
        return (
            f"{self._metric} got worse: {best:g} is the best of the last {self._num_results} values, and {before:g} of "
            "those before"
        )

    def on_trial_end(self, trial: Trial) -> None:
        self._windows.pop(trial.id, None)


class _Window:
    """The last values of a trial's metric. Lower is better."""

    __slots__ = ("attempt", "best_before", "count", "values")

    def __init__(self, size: int) -> None:
        self.attempt = 0
        self.count = 0
        self.values: deque[float] = deque(maxlen=size)
        #: The best of the values before the window. NaN if there are no others than NaN.
        self.best_before = math.nan

    def add(self, value: float) -> None:
        if len(self.values) == self.values.maxlen:
            oldest = self.values[0]
            if not (math.isnan(oldest) or self.best_before <= oldest):
                self.best_before = oldest
        self.values.append(value)
        self.count += 1


def _continues_own_checkpoint(trial: Trial) -> bool:
    attempt = trial.attempt
    return bool(attempt.checkpoint) and attempt.source in (None, trial.id)
