"""Outcome constraints under schedulers: who keeps to them comes before who violates them, and of those who violates them by less."""

from __future__ import annotations

import math
from typing import Any

from scheduler_table import Table

import mqtune
from mqtune.core.objective import Objective
from mqtune.core.trial import CONTINUE, Action
from mqtune.schedulers import Resume, Scheduler

NAN, INF = math.nan, math.inf


def limited(
    scheduler: Scheduler, *constraints: str, metrics: Any = ("loss",), modes: Any = "min", saves: bool = False
) -> Table:
    scheduler.check_objective(Objective.of([*metrics, *(constraints or ("latency <= 10",))], modes))
    scheduler.bind("loss", "min")
    return Table(scheduler, saves=saves)


def order_at_a_rung(*reports: dict[str, Any], constraints: tuple[str, ...] = ()) -> list[int]:
    """Return the places of these reports in the order in which ``PromotionASHA`` promotes their trials."""
    at = limited(mqtune.PromotionASHA(9, reduction_factor=1.01), *constraints)
    for number, metrics in enumerate([*reports, *({"loss": NAN} for _ in reports)]):
        at.report(number, 1, **metrics)
        at.pause(number)
    found = []
    while isinstance(choice := at.choose(can_start=False), Resume) and len(found) < len(reports):
        found.append(int(choice.trial))
        at.stage(choice.trial)
    return found


def test_who_keeps_to_them_comes_first_then_who_violates_them_by_less() -> None:
    reports: list[dict[str, Any]] = [
        {"loss": NAN, "latency": 1},
        {"loss": 0.1, "latency": 30},
        {"loss": 9.0, "latency": 11},
        {"loss": INF, "latency": 10},
        {"loss": 5.0, "latency": 2},
        {"loss": 0.2, "latency": INF},
        {"loss": 4.0, "latency": 9},
    ]

    assert order_at_a_rung(*reports) == [6, 4, 3, 2, 1, 5, 0]


def test_of_several_each_excess_counts_by_its_bound() -> None:
    two = ("latency <= 10", "room >= 2", "drift <= 0")
    reports = [
        {"loss": 1.0, "latency": 15, "room": 3, "drift": 0},
        {"loss": 2.0, "latency": 5, "room": 1.2, "drift": -1},
        {"loss": 3.0, "latency": 13, "room": 1.5, "drift": 0},
        {"loss": 4.0, "latency": 1, "room": 9, "drift": 0.3},
    ]

    assert order_at_a_rung(*reports, constraints=two) == [3, 1, 0, 2]


def test_a_report_that_has_no_number_for_a_constrained_metric_goes_by_the_metric() -> None:
    reports: list[dict[str, Any]] = [
        {"loss": 3.0, "latency": 2},
        {"loss": 1.0},
        {"loss": 2.0, "latency": NAN},
        {"loss": 0.5, "latency": 11},
        {"loss": 0.7, "latency": "fast"},
    ]

    assert order_at_a_rung(*reports) == [4, 1, 2, 0, 3]


def test_moasha_has_who_violates_them_dominated_by_all_that_do_not_and_by_who_violates_them_by_less() -> None:
    at = limited(mqtune.MOASHA(27, reduction_factor=2), metrics=("loss", "speed"), modes=["min", "max"])
    at.report(0, 1, 9, speed=1, latency=10)
    at.report(1, 1, 8, speed=0, latency=10)

    violating = at.report(2, 1, 1, speed=99, latency=11)
    assert violating.reason == "at iteration 1: loss=1, speed=99 (violates latency <= 10) is not among the best 1 of 3"
    # Two of the four keep to it, and the next room is for who violates it least.
    assert at.report(3, 1, 2, speed=50, latency=13).action is Action.STOP
    at.report(4, 1, 7, speed=0, latency=40)
    assert at.report(5, 1, 7, speed=-5, latency=10.5) is CONTINUE


def test_population_based_training_copies_nobody_who_violates_them() -> None:
    at = limited(pbt_of_four(), saves=True)
    at.stage(*"abcd")
    for name, loss, latency in (("a", 1, 11), ("b", 2, 12), ("c", 3, 10)):
        assert at.report(name, 2, loss, latency=latency).source in (None, "c")
    assert at.report("d", 2, 0.5, latency=30).source == "c"

    alone = limited(pbt_of_four(), saves=True)
    alone.stage(*"abcd")
    assert [alone.report(name, 2, 1, latency=20 + at) for at, name in enumerate("abcd")] == [CONTINUE] * 4


def pbt_of_four() -> Scheduler:
    return mqtune.PBT(2, {"lr": mqtune.uniform(0, 1)}, quantile_fraction=0.25)
