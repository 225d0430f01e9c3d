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
    """The kinds of things that a rule may end."""

    TRIAL = "trial"
    EXPERIMENT = "experiment"


class StopRule(Decider):
    """Decides when a trial, or the whole experiment, ends.

    A trial that a rule stops ends as COMPLETED with the rule's reason, or as EARLY_STOPPED if the rule gives it up.
    When a rule stops the experiment, no further trial starts and running ones end as EARLY_STOPPED.

    A rule changes nothing but itself, forgets ended trials, and belongs to one experiment. Its answers about trials
    depend on the reports alone: the same calls give the same answers, so a resumed driver repeats the calls.

    ``rule | other`` stops when either does, ``rule & other`` when both do, at the same report or time. *other* may also
    be a dict or a function, see :func:`as_rule`.
    """

    role = "rule"
    instead_of_several = "give one that names its metric, or does without"
    scopes: frozenset[Scope] = frozenset(Scope)
    #: Whether it gives up the trial that it stopped last, which then has not completed.
    gives_up: bool = False

    @property
    def reads(self) -> frozenset[str]:
        """The keys of numbers that it reads in reports. Other values there cause a warning."""
        return frozenset()

    def stops_trial(self, trial: Trial, report: Report) -> str:
        """Return why *trial* ends with this report, or an empty text.

        Called once for each accepted report, in the journal's order, also after an answer.
        """
        return ""

    def stops_experiment(self, experiment: Experiment, now: float) -> str:
        """Return why the experiment ends, or an empty text. The cost must not grow with its size.

        Called between events while the experiment runs, never during a replay.

        Args:
            experiment: its present state.
            now: seconds since the epoch (UTC).
        """
        return ""

    def due(self, experiment: Experiment, now: float) -> float:
        """Return the next time after *now* that may end the experiment by itself, or infinity."""
        return math.inf

    def on_abandon(self, trial: Trial) -> None:
        """Learn that *trial* was abandoned: its reports no longer count.

        Called once, before ``on_trial_end``.
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
    """Combines several rules. Each is called every time, so that none misses a report."""

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
    """Stops if any of its rules does. The first of them gives the reason, and ``gives_up``."""

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
    """Stops if all of its rules do at the same report, or time.

    A trial is given up if one of them gives it up.

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
    """Return the number of a report under *key*, or None. A flag counts as 0 or 1.

    Flags don't count for *metrics*, the experiment's.
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
    # Relative to the first value, so that equal values give exactly 0.
    steps = [value - values[0] for value in values]
    mean = sum(steps) / len(steps)
    return math.sqrt(sum((step - mean) * (step - mean) for step in steps) / len(steps))


def as_rule(stop: object) -> StopRule | None:
    """Return the rule for *stop*, or None for None.

    Args:
        stop: a rule; a dict of metric → bound, see :class:`MetricBounds`; or a function of a trial and its report that
            returns whether the trial ends, see :class:`FunctionRule`.

    Raises:
        ConfigurationError: *stop* is anything else, or an invalid dict or function.
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
        f"stop={stop!r} is not a stop rule; give a dict of metric and bound such as {{'training_iteration': 100}}, a function "
        "of a trial and its report, or a rule such as TimeLimit(3600); join several by | (any) or & (all)"
    )


class MetricBounds(StopRule):
    """Stops a trial when any of these metrics reaches its bound.

    An optimised metric in mode "min" reaches its bound when value <= bound, every other metric when value >= bound. NaN
    reaches no bound. A flag counts as 0 or 1, except for optimised metrics. A report without the metric, or without a
    number for it, is skipped. Without ``training_iteration`` it counts by its sequence number.

    If the first report lacks a metric, a warning lists the names that it has. If a trial completes and no report of any
    trial has had the metric, MetricMissing is raised. For a metric that only some trials have, give a function.

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
        #: Key, bound, and whether the bound is reached from above.
        self._checks: list[tuple[str, float, bool]] = []
        self._awaited = set(self._bounds)
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
            if self._awaited:
                self._awaited.discard(key)
            if not reason and (value <= bound if is_from_above else value >= bound):
                reason = f"{key}={value:g} reached {bound:g}"
        if self._awaited and not self._is_warned:
            self._warn(report)
        return reason

    def on_trial_end(self, trial: Trial) -> None:
        """Check the names of the metrics.

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


class FunctionRule(StopRule):
    """Stops a trial when a function of it and its report returns something true.

    A resumed driver calls the function again for each report, and it must give the same answers. So it may depend only
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
        """Return a reason if the function returns something true, or an empty text.

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

    def describe(self) -> Description:
        return {self.role: self.kind, "function": self._name}

    @classmethod
    def from_arguments(cls, arguments: Description) -> Self:
        """Raise ConfigurationError, as only the user's code has the function."""
        raise ConfigurationError(f"the rule is a function of yours, {arguments['function']}, which only your code has")


def _listed(names: Iterable[str]) -> str:
    return names_in_words(sorted(names)) or "nothing"
