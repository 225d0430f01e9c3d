"""The interface of stop rules, their combinations, and rules from dicts and functions."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Container, Iterable, Mapping
from enum import Enum
from numbers import Integral, Real
from typing import Self

from mqtune.core import checks
from mqtune.core.calls import signature_of
from mqtune.core.errors import ConfigurationError, MetricMissing, UserCodeFailed
from mqtune.core.experiment import Experiment
from mqtune.core.objective import Objective
from mqtune.core.registry import Description, described
from mqtune.core.text import names_in_words
from mqtune.core.trial import ITERATION, Report, Trial, TrialStatus
from mqtune.schedulers.base import Decider

logger = logging.getLogger(__name__)


class Scope(Enum):
    """The things that a rule may end: single trials, or the experiment."""

    TRIAL = "trial"
    EXPERIMENT = "experiment"


class StopRule(Decider):
    """Decides when a trial, or the whole experiment, ends.

    A stopped trial ends as COMPLETED, or as EARLY_STOPPED if the rule ``gives_up``. When a rule stops the experiment,
    no further trial starts, and running trials end as EARLY_STOPPED.

    A rule belongs to one experiment, and has no effect except by its return values. Its answers about trials may depend
    only on the reports: the same calls give the same answers, because a resumed driver repeats the calls to restore the
    state. A rule should forget ended trials.

    ``rule | other`` stops when one of the two does. ``rule & other`` stops when both do at the same report or time.
    *other* may also be a dict or a function, see :func:`as_rule`.
    """

    role = "rule"
    instead_of_several = "give one that names its metric, or does without"
    scopes: frozenset[Scope] = frozenset(Scope)
    #: Whether the trial that the rule stopped last ends as EARLY_STOPPED instead of COMPLETED.
    gives_up: bool = False

    @property
    def reads(self) -> frozenset[str]:
        """The reports' keys that the rule reads.

        A value there that is not a number causes a warning.
        """
        return frozenset()

    def stops_trial(self, trial: Trial, report: Report) -> str:
        """Return the reason if *trial* ends with this report, or else an empty text.

        The driver calls this once for each report that is not late, in the journal's order, even if the rule has
        stopped the trial before.
        """
        return ""

    def stops_experiment(self, experiment: Experiment, now: float) -> str:
        """Return the reason if the experiment ends now, or else an empty text.

        The driver calls this often while the experiment runs, but not in a replay. Its time must not grow with the
        number of trials.

        Args:
            experiment: the experiment's current state.
            now: seconds since the epoch (UTC).
        """
        return ""

    def due(self, experiment: Experiment, now: float) -> float:
        """Return the next time after *now* at which the rule may stop the experiment by itself.

        Infinity means that only an event can change the rule's answer.
        """
        return math.inf

    def on_abandon(self, trial: Trial) -> None:
        """Note that *trial* was abandoned: from now on its reports must not count.

        The driver calls this once, before ``on_trial_end``.
        """

    def on_trial_end(self, trial: Trial) -> None:
        """Note that *trial* has reached a terminal status."""

    def __or__(self, other: object) -> StopRule:
        return AnyRule(self, other)

    def __ror__(self, other: object) -> StopRule:
        return AnyRule(other, self)

    def __and__(self, other: object) -> StopRule:
        return AllRule(self, other)

    def __rand__(self, other: object) -> StopRule:
        return AllRule(other, self)


class _Combined(StopRule):
    """Combines several rules. Every rule gets every call, so that none misses a report."""

    takes_several = True

    def __init__(self, *rules: object) -> None:
        if not rules:
            raise ConfigurationError(f"{type(self).__name__}() has no rule; give at least one")
        self._rules: list[StopRule] = []
        for inner in rules:
            rule = as_rule(inner)
            if rule is None:
                raise ConfigurationError(f"{type(self).__name__}: None is not a stop rule; leave it out")
            self._rules.append(rule)

    def check_objective(self, objective: Objective) -> None:
        super().check_objective(objective)
        for rule in self._rules:
            rule.check_objective(objective)

    def bind(self, metric: str, mode: str) -> None:
        super().bind(metric, mode)
        for rule in self._rules:
            rule.bind(metric, mode)

    @property
    def reads(self) -> frozenset[str]:
        return frozenset[str]().union(*(rule.reads for rule in self._rules))

    def due(self, experiment: Experiment, now: float) -> float:
        return min(rule.due(experiment, now) for rule in self._rules)

    def on_abandon(self, trial: Trial) -> None:
        for rule in self._rules:
            rule.on_abandon(trial)

    def on_trial_end(self, trial: Trial) -> None:
        for rule in self._rules:
            rule.on_trial_end(trial)

    def describe(self) -> Description:
        return {self.role: self.kind, "rules": [described(rule) for rule in self._rules]}

    @classmethod
    def from_arguments(cls, arguments: Description) -> Self:
        return cls(*map(StopRule.rebuild, arguments["rules"]))


class AnyRule(_Combined):
    """Stops if any of its rules does.

    The first stopping rule gives the reason, and ``gives_up``.
    """

    kind = "any"

    def __init__(self, *rules: object) -> None:
        super().__init__(*rules)
        self.scopes = frozenset().union(*(rule.scopes for rule in self._rules))

    def stops_trial(self, trial: Trial, report: Report) -> str:
        reasons = [rule.stops_trial(trial, report) for rule in self._rules]
        for rule, reason in zip(self._rules, reasons, strict=True):
            if reason:
                self.gives_up = rule.gives_up
                return reason
        return ""

    def stops_experiment(self, experiment: Experiment, now: float) -> str:
        return next(filter(None, [rule.stops_experiment(experiment, now) for rule in self._rules]), "")


class AllRule(_Combined):
    """Stops if all of its rules do at the same report or time.

    ``gives_up`` is true if it is for one of them.

    Raises:
        ConfigurationError: no scope is common to all rules, so they can never stop anything together.
    """

    kind = "all"

    def __init__(self, *rules: object) -> None:
        super().__init__(*rules)
        self.scopes = frozenset(Scope).intersection(*(rule.scopes for rule in self._rules))
        if not self.scopes:
            kinds = ", ".join(
                f"{type(rule).__name__} ends {' and '.join(sorted(f'the {s.value}' for s in rule.scopes))}"
                for rule in self._rules
            )
            raise ConfigurationError(f"rules joined by & can never stop anything together: {kinds}; join them by |")

    def stops_trial(self, trial: Trial, report: Report) -> str:
        reasons = [rule.stops_trial(trial, report) for rule in self._rules]
        self.gives_up = any(rule.gives_up for rule in self._rules)
        return " and ".join(reasons) if all(reasons) else ""

    def stops_experiment(self, experiment: Experiment, now: float) -> str:
        reasons = [rule.stops_experiment(experiment, now) for rule in self._rules]
        return " and ".join(reasons) if all(reasons) else ""


def number(report: Report, key: str, metrics: Container[str] = ()) -> float | None:
    """Return the number of a report under *key*, or None. A bool counts as 0 or 1.

    For keys in *metrics*, the experiment's metrics, a bool is not a number.
    """
    value = report.metrics.get(key)
    if value.__class__ is float:
        return value
    if value is None and key == ITERATION:
        return report.sequence
    if not isinstance(value, Real) or (isinstance(value, bool) and key in metrics):
        return None
    return int(value) if isinstance(value, Integral) else float(value)


def spread(values: list[float]) -> float:
    """Return the population standard deviation of *values*, or NaN if one is not finite."""
    # Subtract the first value, so that equal values give exactly 0.
    steps = [value - values[0] for value in values]
    mean = sum(steps) / len(steps)
    return math.sqrt(sum((step - mean) * (step - mean) for step in steps) / len(steps))


def as_rule(stop: object) -> StopRule | None:
    """Return the stop rule for a tuner's argument *stop*, or None if that is None.

    Args:
        stop: a rule; or a dict of metrics and bounds, see :class:`MetricBounds`; or a function that takes a trial and
            its report and returns whether the trial ends, see :class:`FunctionRule`.

    Raises:
        ConfigurationError: *stop* is anything else, or the dict or function is invalid.
    """
    if stop is None or isinstance(stop, StopRule):
        return stop
    if isinstance(stop, type):
        raise ConfigurationError(f"stop={stop.__name__} is a class; give one of its kind: stop={stop.__name__}(…)")
    if isinstance(stop, Mapping):
        return MetricBounds(stop)
    if callable(stop):
        return FunctionRule(stop)
    raise ConfigurationError(
        f"stop={stop!r} is not a stop rule; give a dict of metric and bound such as {{'training_iteration': 100}}, a "
        "function of a trial and its report, or a rule such as TimeLimit(3600); join several by | (any) or & (all)"
    )


class MetricBounds(StopRule):
    """Stops a trial when any of these metrics reaches its bound.

    A metric that the experiment minimises reaches its bound with a value <= bound, every other metric with a value >=
    bound. NaN reaches no bound. A bool counts as 0 or 1, except for optimised metrics. A report without a number for
    the metric is skipped. For a report without ``training_iteration``, its sequence number counts.

    If the first report lacks a metric, a warning lists the report's keys. If a trial completes, and no report of any
    trial has had the metric, MetricMissing is raised. For a metric that only some trials report, use a function.

    Args:
        bounds: the bound of each metric.
    """

    kind = "metric_bounds"
    scopes = frozenset({Scope.TRIAL})
    takes_several = True

    def __init__(self, bounds: Mapping[str, float]) -> None:
        if not bounds:
            raise ConfigurationError("stop={} has no bound; give a metric and its bound, or leave stop out")
        for key in bounds:
            if not isinstance(key, str) or not key:
                raise ConfigurationError(f"stop: {key!r} is not a name; give the key of a metric in the reports")
        self._bounds = {
            key: checks.number("stop", key, int(bound) if isinstance(bound, bool) else bound)
            for key, bound in bounds.items()
        }
        #: For each metric its key, its bound, and whether lower values reach the bound.
        self._checks: list[tuple[str, float, bool]] = []
        #: Metrics that no report has had yet.
        self._unseen = set(self._bounds)
        self._is_warned = False

    def bind(self, metric: str, mode: str) -> None:
        super().bind(metric, mode)
        self._checks = [(key, bound, self._is_from_above(key)) for key, bound in self._bounds.items()]

    @property
    def reads(self) -> frozenset[str]:
        return frozenset(self._bounds)

    def _is_from_above(self, key: str) -> bool:
        return self.objective is not None and self.objective.mode_of(key) == "min"

    def stops_trial(self, trial: Trial, report: Report) -> str:
        if not self._checks:
            raise ConfigurationError("stop: the experiment's metric is not known; call bind(metric, mode) first")
        reason = ""
        for key, bound, is_from_above in self._checks:
            value = number(report, key, self.metrics)
            if value is None:
                continue
            if self._unseen:
                self._unseen.discard(key)
            if not reason and (value <= bound if is_from_above else value >= bound):
                reason = f"{key}={value:g} reached {bound:g}"
        if self._unseen and not self._is_warned:
            self._warn(report)
        return reason

    def on_trial_end(self, trial: Trial) -> None:
        """Check that reports have had all metrics.

        Raises:
            MetricMissing: this trial has completed, and no report of any trial has had one of the metrics.
        """
        by_hand = bool(trial.history) and trial.history[-1].by == "user"
        if self._unseen and trial.status is TrialStatus.COMPLETED and trial.reports and not by_hand:
            raise MetricMissing(
                f"stop: no report has had {_listed(self._unseen)}, and trial {trial.id} is complete; its last report "
                "has "
                f"{_listed(trial.last_metrics)}: correct the name, or give a function for what only some trials report"
            )

    def _warn(self, report: Report) -> None:
        self._is_warned = True
        logger.warning(
            "stop: report %d of trial %s lacks %s, which can't stop it; it has %s",
            report.sequence,
            report.trial,
            _listed(self._unseen),
            _listed(report.metrics),
        )


class FunctionRule(StopRule):
    """Stops a trial when a user's function returns a true value for one of its reports.

    A resumed driver calls the function again for each report, and it must return the same values. So it may depend only
    on its arguments and earlier calls, and not on the clock. ``report.metrics`` is the reported dict.

    Args:
        function: takes a trial and a report.
    """

    kind = "function"
    scopes = frozenset({Scope.TRIAL})
    takes_several = True

    def __init__(self, function: Callable[[Trial, Report], object]) -> None:
        self._function = function
        module = getattr(function, "__module__", type(function).__module__)
        self._name = f"{module}:{getattr(function, '__qualname__', type(function).__qualname__)}"
        if inspect.iscoroutinefunction(function):
            raise ConfigurationError(f"stop: {self._name} is a coroutine; give a plain function")
        try:
            signature_of(function).bind(None, None)
        except TypeError as error:
            raise ConfigurationError(f"stop: {self._name} must take a trial and a report: {error}") from None
        except ValueError:
            # A builtin may have no signature. The first report shows whether it takes two arguments.
            pass

    def stops_trial(self, trial: Trial, report: Report) -> str:
        """Return a reason if the function returns a true value, or else an empty text.

        Raises:
            UserCodeFailed: the function has raised an error, which is the cause of this one.
        """
        try:
            return f"{self._name} says so" if self._function(trial, report) else ""
        except Exception as error:
            raise UserCodeFailed(
                f"stop: {self._name} failed on report {report.sequence} of trial {report.trial}: "
                f"{type(error).__name__}: {error}; it is called with the trial and the report, whose metrics are "
                "report.metrics"
            ) from error

    def describe(self) -> Description:
        return {self.role: self.kind, "function": self._name}

    @classmethod
    def from_arguments(cls, arguments: Description) -> Self:
        """Raise ConfigurationError, because only the user's code has the function."""
        raise ConfigurationError(f"the rule is a function of yours, {arguments['function']}, which only your code has")


def _listed(names: Iterable[str]) -> str:
    return names_in_words(sorted(names)) or "nothing"
