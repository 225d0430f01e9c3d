"""Multi-objective ASHA: compares trials by several metrics at each rung, and stops bad ones.

After Schmucker et al., "Multi-objective Asynchronous Successive Halving", arXiv:2106.12639, 2021, section 4, with
non-dominated sorting and an epsilon-net. Other than in the paper, bad trials are stopped at a rung, and not paused.
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
    """Asynchronous successive halving by several metrics.

    **Rungs and brackets** are those of ``ASHA``.

    **The rule.** A trial enters a rung with all metrics of its first report at or after the rung's time. Let n be the
    number of trials that have entered the rung, with this one. The trial continues if it is among the best
    ``max(1, floor(n / reduction_factor))``, else it is stopped. Earlier trials are not judged again. At *max_t* every
    trial completes.

    **The best.** A trial dominates another if it is better in at least one metric and worse in none. Non-dominated
    sorting makes groups: the first has the trials that no other dominates, the second has those that only trials of the
    first dominate, and so on. The best are taken group by group. If a group has more trials than places are left, an
    epsilon-net of the group is taken: trials that are far from each other. Its first trial is the best by the first
    metric. Each next one has the largest distance to its nearest chosen trial (Clarkson, "Nearest-neighbor searching
    and metric space dimensions", 2006). Of equal ones, the better by the first metric is chosen. For distances, each
    metric is scaled by its range in the group, and an infinite value lies one range beyond the others. So a trial that
    dominates all others is never stopped, nor is the best by the first metric.

    - *One metric*: the rule is that of ``ASHA``.
    - *Ties*: a trial with the same values as one of the best continues too.
    - *NaN* is infinitely bad.
    - *Outcome constraints*: a report that violates one is dominated by all reports without a violation, and by reports
      with a smaller one (``Objective.violation``). After Deb et al., "A fast and elitist multiobjective genetic
      algorithm: NSGA-II", IEEE Transactions on Evolutionary Computation 6 (2002), section VI. A missing constrained
      metric violates nothing.
    - *A report without one of the metrics* enters no rung. The next report with all metrics does.
    - All else is as in ``ASHA``.

    **Cost.** A report that reaches no rung costs two dict look-ups. Any other report costs O(n), and O(f²) if a group
    of f trials has too few places. Memory is one point for each trial in each rung.

    Args:
        max_t: the time at which a trial completes.
        grace_period: the time of the lowest rung. No trial stops earlier.
        reduction_factor: one in this many trials of a rung continues. Above 1, usually 3 or 4; fractions are allowed.
        brackets: number of brackets, at most the number of rungs. With 1, most trials are stopped early.
        stop_last_trials: whether a trial is ended as COMPLETED at *max_t*. If false, it runs until it ends by itself or
            by a stop rule.
        scope: which value of each metric counts, as in ``ASHA``.
        time_attr: the reports' key of the time. Its value must never decrease within an attempt.
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
    """A rung whose best trials are found by non-dominated sorting and an epsilon-net.

    Each entry updates the groups instead of sorting again. After Li et al., "Efficient nondomination level update
    method for steady-state evolutionary multiobjective optimization", IEEE Transactions on Cybernetics 47 (2017).
    """

    __slots__ = ("_groups",)

    def __init__(self, name: str, factor: Fraction, *, least: int) -> None:
        super().__init__(name, factor, least=least)
        #: The points by group. A point is dominated by at least one point of each earlier group.
        self._groups: list[list[Point]] = []

    def enter(self, rank: AnyRank) -> None:
        self.entered += 1
        self.arrivals += 1
        self._insert(rank)

    def _insert(self, point: Point) -> None:
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
            self._insert(point)

    def is_among_best(self, rank: AnyRank) -> bool:
        places = self.places
        for group in self._groups:
            if rank in group:
                return len(group) <= places or rank in epsilon_net(group, places)
            places -= len(group)
        return False


def epsilon_net(points: Sequence[Point], size: int) -> list[Point]:
    """Return *size* of the points, or all if there are fewer, that lie far from each other.

    ``MOASHA`` has the rule.
    """
    import numpy as np  # noqa: PLC0415  - no other scheduler needs it

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
    return [in_order[other] for other in chosen]


def _scaled(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return columns scaled so that finite values are from 0 to 1, and infinities -1 or 2."""
    import numpy as np  # noqa: PLC0415  - as above

    for column in columns:
        finite = column[np.isfinite(column)] / 2
        low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
        # Halve the values first: the difference of two large values may be too large for a float.
        column[:] = np.clip((column / 2 - low) / ((high - low) or 1.0), -1, 2)
    return columns
