"""What an experiment optimises: one metric or several, within bounds.

It also finds the points that no other point dominates.
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
#: As users spell them: outcome constraints stand among the metrics.
Metric = str | Sequence[str]
Modes = Mode | Sequence[Mode]

#: Where a definition has the outcome constraints, if there are any.
OUTCOME_CONSTRAINTS: Final = "outcome_constraints"
#: What no name of a metric has, so that a text with it is meant as a constraint.
_RELATIONS: Final = ("<=", ">=", "==", " < ", " > ")
_BOUND: Final = re.compile(r"\s*(?P<metric>[^*<>=]*[^*<>=\s])\s*(?P<relation>[<>]=)\s*(?P<bound>[-+.\deE]+)\s*")

#: What to give where a metric is not a name.
METRIC_KEY: Final = "the key of the metric in the reports"


@dataclass(frozen=True, slots=True)
class OutcomeConstraint:
    """A bound on a metric that trials report."""

    metric: str
    relation: Literal["<=", ">="]
    bound: float

    @classmethod
    def of(cls, text: str) -> OutcomeConstraint:
        """Return the constraint that users spell as "latency <= 10".

        Raises:
            ConfigurationError: it is not one metric, "<=" or ">=", and a number.
        """
        found = _BOUND.fullmatch(text)
        if found is not None:
            try:
                bound = float(found["bound"])
            except ValueError:
                bound = math.nan
            if math.isfinite(bound):
                return cls(found["metric"], "<=" if found["relation"] == "<=" else ">=", bound)
        raise ConfigurationError(
            f'metric: {text!r} is not a metric, "<=" or ">=", and a number, such as "latency <= 10"; '
            "report a sum as a metric of its own"
        )

    def __str__(self) -> str:
        return f"{self.metric} {self.relation} {repr(self.bound).removesuffix('.0')}"

    def excess(self, metrics: Metrics) -> float:
        """Return by how much a report violates it, 0 or less where it does not.

        It is NaN where the report has no number for the metric.
        """
        value = metrics.get(self.metric)
        if not is_number(value):
            return math.nan
        return value - self.bound if self.relation == "<=" else self.bound - value

    def relative_excess(self, metrics: Metrics) -> float:
        """Return the excess divided by the bound, so that units don't matter.

        The excess over a bound of 0 is divided by 1.
        """
        return self.excess(metrics) / (abs(self.bound) or 1.0)


@dataclass(frozen=True, slots=True)
class Objective:
    """The metrics that an experiment optimises, each with its mode, and outcome constraints.

    Bounds on what trials report. The one metric is empty where there is none.
    """

    metrics: tuple[str, ...]
    modes: tuple[Mode, ...]
    constraints: tuple[OutcomeConstraint, ...] = ()

    @classmethod
    def of(cls, metric: Metric, mode: Modes) -> Objective:
        """Return what users spell as a metric and its mode, or as a list of each; one mode may stand for all metrics.

        Outcome constraints stand in the list of metrics: ``["loss", "latency <= 10"]``.

        Raises:
            ConfigurationError: names are missing, or there twice, a mode is none, or there is not one for each metric,
                or a constraint is none.
        """
        given = tuple(metric) if isinstance(metric, list | tuple) else (metric,)
        constraints = tuple(OutcomeConstraint.of(each) for each in given if _is_constraint(each))
        metrics = tuple(each for each in given if not _is_constraint(each))
        modes: tuple[Any, ...] = tuple(mode) if isinstance(mode, list | tuple) else (mode,) * len(metrics)
        if constraints and not metrics:
            raise ConfigurationError(
                f"metric={metric!r} has bounds alone; give what is optimised, too: "
                f"metric={['loss', *map(str, constraints)]!r}"
            )
        if len(modes) != len(metrics) or not metrics:
            raise ConfigurationError(f"metric={metric!r}, mode={mode!r}: give one mode for each metric, at least one")
        for name in metrics if len(given) > 1 else ():
            checks.name("", "metric", name, METRIC_KEY)
        for each in modes:
            checks.one_of("", "mode", each, ("min", "max"))
        if len(set(metrics)) < len(metrics):
            raise ConfigurationError(f"metric={metric!r}: a metric is there twice")
        return cls(metrics, modes, constraints)

    @property
    def is_single(self) -> bool:
        """Whether there is at most one metric."""
        return len(self.metrics) == 1

    @property
    def metric(self) -> str | list[str]:
        """The metric, or the list of them, as a definition has it."""
        return self.metrics[0] if self.is_single else list(self.metrics)

    @property
    def kept_constraints(self) -> dict[str, list[str]]:
        """The outcome constraints as a definition has them, which is not at all where there are none."""
        return {OUTCOME_CONSTRAINTS: list(map(str, self.constraints))} if self.constraints else {}

    @property
    def mode(self) -> Mode | list[Mode]:
        """The mode, or the list of them, as a definition has it."""
        return self.modes[0] if self.is_single else list(self.modes)

    def __str__(self) -> str:
        return " and ".join(map(repr, self.metrics))

    def mode_of(self, metric: str) -> Mode | None:
        """Return the mode of a metric; None for one that isn't optimised."""
        return dict(zip(self.metrics, self.modes, strict=True)).get(metric)

    def is_feasible(self, metrics: Metrics) -> bool:
        """Whether a report has all metrics that are constrained, and keeps to the constraints."""
        return all(each.excess(metrics) <= 0 for each in self.constraints)

    def violated(self, metrics: Metrics) -> list[OutcomeConstraint]:
        """Return the constraints that a report violates.

        Constraints on metrics without a number are left out, as these may yet come.
        """
        return [each for each in self.constraints if each.excess(metrics) > 0]

    def violation(self, metrics: Metrics) -> float:
        """Return by how much a report violates constraints: the sum of the excesses, each by its bound.

        It is 0 for one that violates none. After Deb, "An efficient constraint handling method for genetic algorithms",
        2000, section 3, with constraints that are normalised by their bounds, so that their units don't matter. A bound
        of 0 has no size to go by: its excess counts as it is.
        """
        return sum(each.relative_excess(metrics) for each in self.violated(metrics))

    def values(self, metrics: Metrics) -> tuple[float, ...] | None:
        """Return the values of the metrics in a report; None where one of them is missing, or no number."""
        found = [value for name in self.metrics if is_number(value := metrics.get(name))]
        return tuple(found) if len(found) == len(self.metrics) else None

    def point(self, metrics: Metrics) -> Point | None:
        """Return the values in a report such that lower is better; None where one of them is missing, or no number."""
        values = self.values(metrics)
        if values is None:
            return None
        return tuple(value if mode == "min" else -value for value, mode in zip(values, self.modes, strict=True))


def metric_of(definition: Mapping[str, Any]) -> Metric:
    """Return the metric of a definition, or the list of metrics and outcome constraints, as users spell it.

    Raises:
        KeyError: it has none.
    """
    metric, constraints = definition["metric"], definition.get(OUTCOME_CONSTRAINTS, ())
    return [*([metric] if isinstance(metric, str) else metric), *constraints] if constraints else metric


def _is_constraint(given: object) -> bool:
    return isinstance(given, str) and any(relation in given for relation in _RELATIONS)


class GoesByObjective:
    """Something that goes by what an experiment optimises: a scheduler, a searcher or a stop rule."""

    #: Whether it can go by several metrics.
    takes_several: bool = False
    #: What to do where it can't.
    instead_of_several: ClassVar[str] = ""
    #: What the experiment optimises; None before that is known.
    objective: Objective | None = None

    def check_objective(self, objective: Objective) -> None:
        """Learn what the experiment optimises; called when a tuner is made, before ``bind``.

        ``bind`` is told of the first metric alone.

        Raises:
            ConfigurationError: that is several metrics, and ``takes_several`` is not set.
        """
        if not objective.is_single and not self.takes_several:
            raise ConfigurationError(
                f"{type(self).__name__} goes by one metric, and the experiment has {objective}: "
                f"{self.instead_of_several}"
            )
        self.objective = objective


def dominates(point: Point, other: Point) -> bool:
    """Whether *point* is nowhere worse than *other*, and somewhere better."""
    return point != other and all(mine <= theirs for mine, theirs in zip(point, other, strict=True))


_PLANE: Final = 2


class _HasPoint(Protocol):
    @property
    def point(self) -> Point:
        """Where it is; lower is better."""


T = TypeVar("T", bound=_HasPoint)


def pareto_front(things: Iterable[T]) -> list[T]:
    """Return the things whose points no other's point dominates, of equal points all.

    They are sorted by the first metric, the best first.
    """
    found: list[T] = []
    # What dominates a point comes before it in this order.
    for each in sorted(things, key=lambda thing: thing.point):
        # Of two metrics, the last one found has the best second value.
        rivals = found[-1:] if len(each.point) == _PLANE else found
        if not any(dominates(other.point, each.point) for other in rivals):
            found.append(each)
    return found


def has_nan(point: Point) -> bool:
    """Whether a point has a value that is not a number, and so is nowhere."""
    return any(map(math.isnan, point))
