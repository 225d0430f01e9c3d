"""Multi-objective ASHA: stop a trial early when others that came as far beat it by several metrics.

After Schmucker et al., "Multi-objective Asynchronous Successive Halving", arXiv:2106.12639, 2021, section 4, with the selection by
non-dominated sorting and an epsilon-net, in the variant that stops trials at a rung instead of pausing and promoting them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mqtune.core.objective import dominates
from mqtune.core.trial import Point, Report
from mqtune.schedulers.asha import ASHA
from mqtune.schedulers.halving import Rung
from mqtune.schedulers.timed import AnyRank

if TYPE_CHECKING:
    from fractions import Fraction

    import numpy as np
    from numpy.typing import NDArray


class MOASHA(ASHA):
    """Asynchronous successive halving by several metrics: stops trials early, and completes those that reach *max_t*.

    **Rungs and brackets** are those of ``ASHA``.

    **The rule.** A trial enters a rung with the values of all metrics in the first report whose time has reached the rung. Of
    the n trials that have entered, itself included, it continues if it is among the best
    ``max(1, floor(n / reduction_factor))``, else it stops. Trials that entered earlier are not judged again.

    **The best.** Those that no other dominates come first: nowhere worse and somewhere better. Then those that only these
    dominate, and so on: non-dominated sorting. Of the first group that has not room as a whole, those are among the best
    that are chosen one by one for lying far from each other, an epsilon-net: first the one that is best by the first metric, then always
    the one with the largest distance to the nearest one that was chosen (Clarkson, "Nearest-neighbor searching and metric space
    dimensions", 2006). Each metric is scaled by its range in the group, so that no unit counts for more than another; an
    infinite value lies one range beyond the others. Of equal distances the better by the first metric is chosen. So a trial that
    dominates all others never stops, and the best by the first metric never does either.

    - *One metric*: the rule is that of ``ASHA``.
    - *Ties*: a trial with the same values as one of the best continues too.
    - *NaN* is infinitely bad.
    - *Outcome constraints*: a report that violates one is dominated by all that don't, and by those that violate by less
      (``Objective.violation``), whatever its metrics. After Deb et al., "A fast and elitist multiobjective genetic algorithm:
      NSGA-II", IEEE Transactions on Evolutionary Computation 6 (2002), section VI. A constrained metric that the report lacks says nothing.
    - *A report without one of the metrics* enters no rung; the next one that has all does.
    - All else is as in ``ASHA``.

    **Cost.** A report that reaches no rung costs two look-ups; one that does, O(n) in the trials of that rung, and O(f²) in those
    of the group that is cut. Memory is one point for each trial in each rung.

    Args:
        max_t: the time at which a trial completes.
        grace_period: the time of the lowest rung; no trial stops earlier.
        reduction_factor: one in this many continues; above 1, fractions allowed, 3 or 4 as a rule.
        brackets: how many brackets, at most one for each rung; 1 early-stops most.
        stop_last_trials: whether a trial completes at *max_t*; if not, it runs on, undisturbed, until it ends by itself or
            by a stop rule.
        scope: the values that a trial is judged by at a report, of each metric as in ``ASHA``.
        time_attr: the key of the time in the reports, which never goes down within an attempt.
    """

    kind = "moasha"
    takes_several = True

    def _rung(self, name: str, factor: Fraction) -> Rung:
        return FrontRung(name, factor, least=self._least)

    def _rank(self, report: Report) -> AnyRank | None:
        point = None if self.objective is None else self.objective.point(report.metrics)
        if point is None:
            return None
        if violation := self._violation(report):
            return (violation, *(math.inf for _ in point))
        return (0.0, *(math.inf if math.isnan(value) else value for value in point))


class FrontRung(Rung):
    """A rung whose best are found by non-dominated sorting and, in the group that is cut, by an epsilon-net.

    The groups are kept up to date by each entry, after Li et al., "Efficient nondomination level update method for steady-state
    evolutionary multiobjective optimization", IEEE Transactions on Cybernetics 47 (2017).
    """

    __slots__ = ("_groups",)

    def __init__(self, name: str, factor: Fraction, *, least: int) -> None:
        super().__init__(name, factor, least=least)
        #: The points by group; what is in one is dominated by something in each group before it.
        self._groups: list[list[Point]] = []

    def enter(self, rank: AnyRank) -> None:
        self.entered += 1
        self.arrivals += 1
        self._sort_in(rank)

    def _sort_in(self, point: Point) -> None:
        place = bisect_left(self._groups, True, key=lambda group: not any(dominates(one, point) for one in group))
        moved = [point]
        while moved:
            if place == len(self._groups):
                self._groups.append([])
            pushed: list[Point] = []
            stays = list(moved)
            for one in self._groups[place]:
                (pushed if any(dominates(other, one) for other in moved) else stays).append(one)
            self._groups[place], moved = stays, pushed
            place += 1

    def withdraw(self, rank: AnyRank) -> None:
        self.entered -= 1
        points = [point for group in self._groups for point in group]
        points.remove(rank)
        self._groups = []
        for point in points:
            self._sort_in(point)

    def is_among_best(self, rank: AnyRank) -> bool:
        room = self.places
        for group in self._groups:
            if rank in group:
                return len(group) <= room or rank in epsilon_net(group, room)
            room -= len(group)
        return False


def epsilon_net(points: Sequence[Point], size: int) -> list[Point]:
    """Return *size* of the points, as many as there are at most, that lie far from each other; see ``MOASHA``."""
    import numpy as np  # noqa: PLC0415 - nobody else who makes a scheduler needs it

    in_order = sorted(points)
    columns = _scaled(np.array(in_order, dtype=float).T.copy())
    nearest = np.full(len(in_order), np.inf)
    chosen: list[int] = []
    while len(chosen) < min(size, len(in_order)):
        last = int(nearest.argmax())
        chosen.append(last)
        apart = [column - column[last] for column in columns]
        np.minimum(nearest, sum(gaps * gaps for gaps in apart), out=nearest)
        nearest[last] = -1
    return [in_order[each] for each in chosen]


def _scaled(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return columns such that their finite values go from 0 to 1, and infinities are one range off."""
    import numpy as np  # noqa: PLC0415 - as above

    for column in columns:
        finite = column[np.isfinite(column)] / 2
        low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
        # Halves, as the difference of two values may be too large for a float.
        column[:] = np.clip((column / 2 - low) / ((high - low) or 1.0), -1, 2)
    return columns
