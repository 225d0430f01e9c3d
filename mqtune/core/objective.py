"""The objective of an experiment: one or several metrics, with outcome constraints.

It also computes the Pareto front.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, Protocol, TypeVar

from mqtune.core import checks
from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import Metrics, Point, is_number

Mode = Literal["min", "max"]
#: The user's spelling. Outcome constraints are elements of the list.
Metric = str | Sequence[str]
Modes = Mode | Sequence[Mode]

#: Key of the outcome constraints in a definition. It may be missing.
OUTCOME_CONSTRAINTS: Final = "outcome_constraints"
#: Texts that mark a constraint. Metric names contain none of them.
_RELATIONS: Final = ("<=", ">=", "==", " < ", " > ")
_BOUND: Final = re.compile(r"\s*(?P<metric>[^*<>=]*[^*<>=\s])\s*(?P<relation>[<>]=)\s*(?P<bound>[-+.\deE]+)\s*")

#: Hint for an invalid metric.
METRIC_KEY: Final = "the key of the metric in the reports"


@dataclass(frozen=True, slots=True)
class OutcomeConstraint:
    """A bound on a metric of the reports."""

    metric: str
    relation: Literal["<=", ">="]
    bound: float

    @classmethod
    def of(cls, text: str) -> OutcomeConstraint:
        """Parse a constraint such as "latency <= 10".

        Raises:
            ConfigurationError: the text is not a metric, "<=" or ">=", and a number.
        """
        matched = _BOUND.fullmatch(text)
        if matched is not None:
            try:
                bound = float(matched["bound"])
            except ValueError:
                bound = math.nan
            if math.isfinite(bound):
                return cls(matched["metric"], "<=" if matched["relation"] == "<=" else ">=", bound)
        raise ConfigurationError(
            f'metric: {text!r} is not a metric, "<=" or ">=", and a number, such as "latency <= 10"; '
            "report a sum as a metric of its own"
        )

    def __str__(self) -> str:
        return f"{self.metric} {self.relation} {repr(self.bound).removesuffix('.0')}"

    def excess(self, metrics: Metrics) -> float:
        """Return by how much a report exceeds the bound. 0 or less means no violation.

        It is NaN if the report has no number for the metric.
        """
        value = metrics.get(self.metric)
        if not is_number(value):
            return math.nan
        return value - self.bound if self.relation == "<=" else self.bound - value

    def relative_excess(self, metrics: Metrics) -> float:
        """Return the excess divided by the absolute bound, so that units don't matter.

        The excess over a bound of 0 is not divided.
        """
        return self.excess(metrics) / (abs(self.bound) or 1.0)


@dataclass(frozen=True, slots=True)
class Objective:
    """The optimised metrics with their modes, and the outcome constraints.

    A single metric may be the empty text.
    """

    metrics: tuple[str, ...]
    modes: tuple[Mode, ...]
    constraints: tuple[OutcomeConstraint, ...] = ()

    @classmethod
    def of(cls, metric: Metric, mode: Modes) -> Objective:
        """Make an objective from the user's arguments. One mode may stand for all metrics.

        Outcome constraints are elements of the list of metrics: ``["loss", "latency <= 10"]``.

        Raises:
            ConfigurationError: a name is missing or repeated, a mode or constraint is invalid, or the numbers of modes
                and metrics differ.
        """
        given = tuple(metric) if isinstance(metric, list | tuple) else (metric,)
        constraints = tuple(OutcomeConstraint.of(metric) for metric in given if _is_constraint(metric))
        metrics = tuple(metric for metric in given if not _is_constraint(metric))
        modes: tuple[Any, ...] = tuple(mode) if isinstance(mode, list | tuple) else (mode,) * len(metrics)
        if constraints and not metrics:
            raise ConfigurationError(
                f"metric={metric!r} has only constraints; give the metric to optimise, too: "
                f"metric={['loss', *map(str, constraints)]!r}"
            )
        if len(modes) != len(metrics) or not metrics:
            raise ConfigurationError(f"metric={metric!r}, mode={mode!r}: give one mode for each metric, at least one")
        for name in metrics if len(given) > 1 else ():
            checks.name("", "metric", name, METRIC_KEY)
        for given_mode in modes:
            checks.one_of("", "mode", given_mode, ("min", "max"))
        if len(set(metrics)) < len(metrics):
            raise ConfigurationError(f"metric={metric!r}: a metric is given twice")
        return cls(metrics, modes, constraints)

    @property
    def is_single(self) -> bool:
        """Whether there is exactly one metric."""
        return len(self.metrics) == 1

    @property
    def metric(self) -> str | list[str]:
        """The metric, or the list of metrics, in a definition's form."""
        return self.metrics[0] if self.is_single else list(self.metrics)

    @property
    def kept_constraints(self) -> dict[str, list[str]]:
        """The outcome constraints in a definition's form. Without constraints the key is left out."""
        return {OUTCOME_CONSTRAINTS: list(map(str, self.constraints))} if self.constraints else {}

    @property
    def mode(self) -> Mode | list[Mode]:
        """The mode, or the list of modes, in a definition's form."""
        return self.modes[0] if self.is_single else list(self.modes)

    def __str__(self) -> str:
        return " and ".join(map(repr, self.metrics))

    def mode_of(self, metric: str) -> Mode | None:
        """Return the mode of a metric, or None if it isn't optimised."""
        return dict(zip(self.metrics, self.modes, strict=True)).get(metric)

    def is_feasible(self, metrics: Metrics) -> bool:
        """Whether a report has all constrained metrics and violates no constraint."""
        return not self.constraints or all(constraint.excess(metrics) <= 0 for constraint in self.constraints)

    def violated(self, metrics: Metrics) -> list[OutcomeConstraint]:
        """Return the constraints that a report violates.

        Constraints on metrics without a number are left out: a later report may have one.
        """
        return [constraint for constraint in self.constraints if constraint.excess(metrics) > 0]

    def violation(self, metrics: Metrics) -> float:
        """Return the sum of a report's violations, each divided by its bound. 0 if feasible.

        After Deb, "An efficient constraint handling method for genetic algorithms", 2000, section 3, with constraints
        normalised by their bounds. The excess over a bound of 0 is not divided.
        """
        return sum(constraint.relative_excess(metrics) for constraint in self.violated(metrics))

    def values(self, metrics: Metrics) -> tuple[float, ...] | None:
        """Return the values of the metrics in a report. None if one is missing or not a number."""
        numbers = [value for name in self.metrics if is_number(value := metrics.get(name))]
        return tuple(numbers) if len(numbers) == len(self.metrics) else None

    def point(self, metrics: Metrics) -> Point | None:
        """Return the metrics' values with signs so that lower is better. None if one is missing."""
        values = self.values(metrics)
        if values is None:
            return None
        return tuple(value if mode == "min" else -value for value, mode in zip(values, self.modes, strict=True))


def metric_of(definition: Mapping[str, Any]) -> Metric:
    """Return a definition's metrics and outcome constraints in the user's spelling.

    Raises:
        KeyError: the definition has no metric.
    """
    metric, constraints = definition["metric"], definition.get(OUTCOME_CONSTRAINTS, ())
    return [*([metric] if isinstance(metric, str) else metric), *constraints] if constraints else metric


def _is_constraint(given: object) -> bool:
    return isinstance(given, str) and any(relation in given for relation in _RELATIONS)


class GoesByObjective:
    """Base of schedulers, searchers and stop rules. It checks and stores the objective."""

    #: Whether it supports several metrics.
    takes_several: bool = False
    #: Hint for users if it supports one metric only.
    instead_of_several: ClassVar[str] = ""
    #: The experiment's objective. None until ``check_objective``.
    objective: Objective | None = None

    def check_objective(self, objective: Objective) -> None:
        """Check that the experiment's objective is supported, and keep it in ``objective``.

        The tuner calls it before ``bind``, which gets only the first metric.

        Raises:
            ConfigurationError: there are several metrics, and ``takes_several`` is not set.
        """
        if not objective.is_single and not self.takes_several:
            raise ConfigurationError(
                f"{type(self).__name__} supports one metric, and the experiment has {objective}: "
                f"{self.instead_of_several}"
            )
        self.objective = objective


def dominates(point: Point, other: Point) -> bool:
    """Whether *point* is not worse than *other* in any metric, and better in at least one."""
    return point != other and all(mine <= theirs for mine, theirs in zip(point, other, strict=True))


_PLANE: Final = 2


class _HasPoint(Protocol):
    @property
    def point(self) -> Point:
        """The values of the metrics. Lower is better."""


T = TypeVar("T", bound=_HasPoint)


def pareto_front(things: Iterable[T]) -> list[T]:
    """Return the things whose points are not dominated. Equal points are all kept.

    They are sorted by the first metric, the best first.
    """
    front: list[T] = []
    # In this order, a point comes after all points that dominate it.
    for candidate in sorted(things, key=lambda thing: thing.point):
        # With two metrics, the last point of the front has the best second value.
        rivals = front[-1:] if len(candidate.point) == _PLANE else front
        if not any(dominates(other.point, candidate.point) for other in rivals):
            front.append(candidate)
    return front


def has_nan(point: Point) -> bool:
    """Whether a point has a NaN, and so can't be compared."""
    return any(map(math.isnan, point))
