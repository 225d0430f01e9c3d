"""Rules that end single trials; each judges a trial by its own reports."""

from __future__ import annotations

import inspect
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from mqtune.core.errors import ConfigurationError, MetricMissing, UserCodeFailed
from mqtune.core.status import TrialStatus
from mqtune.core.text import names_in_words
from mqtune.core.trial import Report, Trial, TrialId
from mqtune.schedulers.stopping.base import (
    ITERATION,
    Scope,
    StopRule,
    at_least,
    finite,
    metric_key,
    number,
    spread,
    standard_deviation,
)

__all__ = ["FunctionRule", "MaximumIteration", "MetricBounds", "MetricMaximum", "TrialPlateau"]

logger = logging.getLogger(__name__)


class MetricBounds(StopRule):
    """Stops a trial when any of these metrics reaches its bound.

    The experiment's own metric in mode "min" reaches its bound from above, when value <= bound. Every other metric, and
    the experiment's own in mode "max", reaches it from below, when value >= bound. NaN reaches no bound, and a flag
    counts as 0 or 1, but not in place of the experiment's own metric. A report without the metric, or with something that
    is no number for it, is passed over; without ``training_iteration`` it counts by its sequence number.

    A metric that the first report lacks is warned about once, with the names that the report has. If the first trial
    that completes ends without any report of any trial having had it, the name is taken for a mistake; for a metric that
    only some trials have, give a function.

    Args:
        bounds: the bound of each metric.

    Raises:
        ConfigurationError: there is no bound, a name is no text, or a bound no finite number.
    """

    scopes = frozenset({Scope.TRIAL})

    def __init__(self, bounds: Mapping[str, float]) -> None:
        if not bounds:
            raise ConfigurationError("stop={} has no bound; give a metric and its bound, or leave stop out")
        for key in bounds:
            if not isinstance(key, str) or not key:
                raise ConfigurationError(f"stop: {key!r} is not a name; give the key of a metric in the reports")
        self._bounds = {
            key: finite("stop", key, int(bound) if isinstance(bound, bool) else bound) for key, bound in bounds.items()
        }
        #: Key, bound, and whether the bound is reached from above.
        self._checks: list[tuple[str, float, bool]] = []
        #: Metrics that no report has had yet.
        self._awaited = set(self._bounds)
        self._is_warned = False

    def bind(self, metric: str, mode: str) -> None:
        super().bind(metric, mode)
        self._checks = [(key, bound, self._is_from_above(key)) for key, bound in self._bounds.items()]

    @property
    def reads(self) -> frozenset[str]:
        """The metrics that have a bound."""
        return frozenset(self._bounds)

    def _is_from_above(self, key: str) -> bool:
        return key == self.metric and self.mode == "min"

    def stops_trial(self, trial: Trial, report: Report) -> str:
        """Return the first bound that is reached, or an empty text.

        Raises:
            ConfigurationError: the rule is not bound.
        """
        if not self._checks:
            raise ConfigurationError("stop: the experiment's metric is not known; call bind(metric, mode) first")
        reason = ""
        for key, bound, is_from_above in self._checks:
            value = number(report, key, self.metric)
            if value is None:
                continue
            if self._awaited:
                self._awaited.discard(key)
            if not reason and (value <= bound if is_from_above else value >= bound):
                reason = f"{key}={value:g} reached {bound:g}"
        if self._awaited and not self._is_warned:
            self._warn(report)
        return reason

    def on_trial_end(self, trial: Trial) -> None:
        """Forget nothing, as nothing is kept.

        Raises:
            MetricMissing: this trial has completed, and no report of any trial ever had one of the metrics.
        """
        by_hand = bool(trial.history) and trial.history[-1].by == "user"
        if self._awaited and trial.status is TrialStatus.COMPLETED and trial.reports and not by_hand:
            raise MetricMissing(
                f"stop: no report has had {_listed(self._awaited)}, and trial {trial.id} is complete; its last report has "
                f"{_listed(trial.last_metrics)}: correct the name, or give a function for what only some trials report"
            )

    def _warn(self, report: Report) -> None:
        self._is_warned = True
        logger.warning(
            "stop: report %d of trial %s lacks %s, which can't stop it; it has %s",
            report.sequence,
            report.trial,
            _listed(self._awaited),
            _listed(report.metrics),
        )

    def describe(self) -> dict[str, Any]:
        """Return the bounds."""
        return {"rule": "metric_bounds", "bounds": dict(self._bounds)}


class MetricMaximum(MetricBounds):
    """Stops a trial when a metric is *maximum* or more, whatever the experiment optimises: a loss that has exploded.

    In all else it is like :class:`MetricBounds`.

    Args:
        metric: its key in the reports.
        maximum: what it may not reach.

    Raises:
        ConfigurationError: *metric* is no name, or *maximum* no finite number.
    """

    def __init__(self, metric: str, maximum: float) -> None:
        super().__init__({metric: maximum})

    def _is_from_above(self, key: str) -> bool:
        return False

    def describe(self) -> dict[str, Any]:
        """Return the metric and its maximum."""
        ((metric, maximum),) = self._bounds.items()
        return {"rule": "metric_maximum", "metric": metric, "maximum": maximum}


class MaximumIteration(StopRule):
    """Stops a trial with the report whose ``training_iteration`` is *iterations* or more.

    A report without that counts by its sequence number.

    Args:
        iterations: how many, at least 1.

    Raises:
        ConfigurationError: it is no such number.
    """

    scopes = frozenset({Scope.TRIAL})

    def __init__(self, iterations: int) -> None:
        self._iterations = at_least("MaximumIteration", "iterations", iterations, 1)

    @property
    def reads(self) -> frozenset[str]:
        """The iteration."""
        return frozenset({ITERATION})

    def stops_trial(self, trial: Trial, report: Report) -> str:
        """Return that the trial has come this far, or an empty text."""
        reached = number(report, ITERATION)
        return f"reached iteration {self._iterations}" if reached is not None and reached >= self._iterations else ""

    def describe(self) -> dict[str, Any]:
        """Return its argument."""
        return {"rule": "maximum_iteration", "iterations": self._iterations}


class TrialPlateau(StopRule):
    """Stops a trial whose metric no longer moves.

    It stops with the first report at which the trial has at least *grace_period* values of the metric, and the last
    *num_results* of them have a standard deviation, as a whole population, of *std* or less. Reports without the metric
    don't count. NaN and infinities count as values, and a window that holds one is no plateau. An attempt that goes on
    from the trial's own checkpoint goes on with its values; one that starts from scratch, or from another trial's
    checkpoint, begins anew.

    Args:
        metric: its key in the reports; by default what the experiment optimises.
        std: the standard deviation, 0 for values that are all the same.
        num_results: how many of the last values are looked at, at least 2.
        grace_period: how many values a trial may have before it can be stopped.

    Raises:
        ConfigurationError: an argument makes no sense.
    """

    scopes = frozenset({Scope.TRIAL})

    def __init__(
        self, metric: str | None = None, *, std: float = 0.01, num_results: int = 4, grace_period: int = 4
    ) -> None:
        self._key = metric_key("TrialPlateau", metric)
        self._std = standard_deviation("TrialPlateau", std)
        self._num_results = at_least("TrialPlateau", "num_results", num_results, 2)
        self._grace_period = at_least("TrialPlateau", "grace_period", grace_period, 0)
        self._windows: dict[TrialId, _Window] = {}

    def bind(self, metric: str, mode: str) -> None:
        super().bind(metric, mode)
        self._key = self._key or metric

    @property
    def reads(self) -> frozenset[str]:
        """The metric."""
        return frozenset({self._key})

    def stops_trial(self, trial: Trial, report: Report) -> str:
        """Return that the metric no longer moves, or an empty text.

        Raises:
            ConfigurationError: the metric is not known because the rule is not bound.
        """
        if not self._key:
            raise ConfigurationError("TrialPlateau: there is no metric to look at; call bind(metric, mode) first")
        value = number(report, self._key, self.metric)
        if value is None:
            return ""
        window = self._windows.get(trial.id)
        if window is None or (window.attempt != report.attempt and not _goes_on(trial)):
            window = self._windows[trial.id] = _Window(self._num_results)
        window.attempt = report.attempt
        window.values.append(float(value))
        window.count += 1
        if window.count < max(self._grace_period, self._num_results):
            return ""
        std = spread(list(window.values))
        return f"{self._key} has a plateau: std {std:.3g} over {self._num_results} reports" if std <= self._std else ""

    def on_trial_end(self, trial: Trial) -> None:
        """Forget the trial's values."""
        self._windows.pop(trial.id, None)

    def describe(self) -> dict[str, Any]:
        """Return its arguments."""
        return {
            "rule": "trial_plateau",
            "metric": self._key,
            "std": self._std,
            "num_results": self._num_results,
            "grace_period": self._grace_period,
        }


class _Window:
    """The last values of one trial, how many there were, and the attempt that the last came from."""

    __slots__ = ("attempt", "count", "values")

    def __init__(self, size: int) -> None:
        self.attempt = 0
        self.count = 0
        self.values: deque[float] = deque(maxlen=size)


class FunctionRule(StopRule):
    """Stops a trial when a function of it and its report returns something true.

    The function is called for each report, again when a driver resumes, and must then give the same answers: it may look
    at nothing but its arguments and what it was called with before, and not at the clock. ``report.metrics`` is the
    dict that was reported.

    Args:
        function: takes a trial and a report.

    Raises:
        ConfigurationError: it can't be called with two arguments, or is a coroutine.
    """

    scopes = frozenset({Scope.TRIAL})

    def __init__(self, function: Callable[[Trial, Report], Any]) -> None:
        self._function = function
        module = getattr(function, "__module__", type(function).__module__)
        self._name = f"{module}:{getattr(function, '__qualname__', type(function).__qualname__)}"
        if inspect.iscoroutinefunction(function):
            raise ConfigurationError(f"stop: {self._name} is a coroutine; give a plain function")
        try:
            inspect.signature(function).bind(None, None)
        except TypeError as error:
            raise ConfigurationError(f"stop: {self._name} must take a trial and a report: {error}") from None
        except ValueError:
            # A builtin may have no signature; the first report shows whether it takes two arguments.
            pass

    def stops_trial(self, trial: Trial, report: Report) -> str:
        """Return that the function says so, or an empty text.

        Raises:
            UserCodeFailed: the function raises an error, which is its cause.
        """
        try:
            return f"{self._name} says so" if self._function(trial, report) else ""
        except Exception as error:
            raise UserCodeFailed(
                f"stop: {self._name} failed on report {report.sequence} of trial {report.trial}: "
                f"{type(error).__name__}: {error}; it is called with the trial and the report, whose metrics are report.metrics"
            ) from error

    def describe(self) -> dict[str, Any]:
        """Return the function's name."""
        return {"rule": "function", "function": self._name}


def _goes_on(trial: Trial) -> bool:
    """Whether a trial's attempt starts from a checkpoint of its own."""
    attempt = trial.attempt
    return bool(attempt.checkpoint) and attempt.source in (None, trial.id)


def _listed(names: Any) -> str:
    return names_in_words(sorted(names)) or "nothing"
