"""Multi-objective ASHA: its rule computed anew by brute force."""

from __future__ import annotations

import math
from fractions import Fraction

from hypothesis import example, given, settings, strategies as st
from scheduler_table import Table

import mqtune
from mqtune.core.objective import Objective, dominates
from mqtune.core.trial import CONTINUE, Action, Decision, Point

INF, NAN = math.inf, math.nan


def groups_of(points: list[Point]) -> list[list[Point]]:
    """Peel off one front after the other."""
    groups, left = [], sorted(points)
    while left:
        groups.append([one for one in left if not any(dominates(other, one) for other in left)])
        left = [one for one in left if one not in groups[-1]]
    return groups


def places_of(group: list[Point]) -> list[tuple[float, ...]]:
    """Scale each metric by its range."""

    def place(value: float, finite: list[float]) -> float:
        if math.isinf(value):
            return 2 if value > 0 else -1
        # Halves, as a range may be larger than any float.
        return (value / 2 - min(finite) / 2) / ((max(finite) / 2 - min(finite) / 2) or 1)

    columns = list(zip(*group, strict=True))
    finite = [[value for value in column if not math.isinf(value)] for column in columns]
    return [tuple(place(value, finite[at]) for at, value in enumerate(point)) for point in group]


def best_of(points: list[Point], number: int) -> list[Point]:
    """Return the best of the points, by the rule as the class's text has it."""
    best: list[Point] = []
    for group in groups_of(points):
        room = number - len(best)
        if len(group) <= room:
            best += group
            continue
        places = places_of(group)
        chosen = [0][:room]
        while len(chosen) < room:
            gaps = [
                -1
                if at in chosen
                else min(sum((a - b) ** 2 for a, b in zip(place, places[each], strict=True)) for each in chosen)
                for at, place in enumerate(places)
            ]
            chosen.append(gaps.index(max(gaps)))
        return best + [group[each] for each in chosen]
    return best


values = st.sampled_from([-INF, -2.0, 0.0, 0.5, 1.0, 3.0, 7.0, INF])


@given(
    points=st.integers(2, 3).flatmap(lambda size: st.lists(st.tuples(*[values] * size), min_size=1, max_size=25)),
    factor=st.sampled_from([1.5, 2, 3, 4]),
    withdrawn=st.integers(0, 30),
)
@settings(max_examples=2 * settings.default.max_examples)
@example(points=[(-1e308, 1e308), (1e308, -1e308), (0.0, 0.0)], factor=1.5, withdrawn=30)
def test_a_trial_goes_on_if_it_is_among_the_best(points: list[Point], factor: float, withdrawn: int) -> None:
    names = "abc"[: len(points[0])]
    scheduler = mqtune.MOASHA(27, reduction_factor=factor)
    scheduler.check_objective(Objective.of([*names], "min"))
    scheduler.bind("a", "min")
    at, known = Table(scheduler), []
    for number, point in enumerate(points):
        known.append(point)
        best = best_of(known, max(1, math.floor(len(known) / Fraction(str(factor)))))

        decision = at.report(number, 1, **dict(zip(names, point, strict=True)))

        assert decision.action is (Action.CONTINUE if point in best else Action.STOP)
        if number == withdrawn:
            at.abandon(number)
            known.remove(point)


def test_a_scope_counts_for_each_metric() -> None:
    at = Table(mqtune.MOASHA(27, grace_period=3, scope="last-2-avg"))
    at.scheduler.check_objective(Objective.of(["loss", "speed"], ["min", "max"]))
    at.scheduler.bind("loss", "min")
    at.report(0, 1, loss=9, speed=1)
    at.report(0, 2, loss=4, speed=4)
    assert at.report(0, 3, loss=2, speed=2) is CONTINUE
    at.report(1, 2, loss=5, speed=2)
    assert at.report(1, 3, loss=2, speed=2) == Decision(
        Action.STOP, "at iteration 3: last-2-avg of loss=3.5, last-2-avg of speed=2 is not among the best 1 of 2"
    )
