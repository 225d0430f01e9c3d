"""Outcome constraints under schedulers: who keeps to them comes before who violates them, and of those who violates them by less."""

from __future__ import annotations

import math
from typing import Any

import pytest
from scheduler_table import Table

import mqtune
from mqtune.core.objective import Objective
from mqtune.core.trial import CONTINUE, Action, Decision, TrialStatus
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


def test_who_keeps_to_them_comes_first_then_who_violates_them_by_less_whatever_the_metric_and_last_who_has_diverged() -> (
    None
):
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


def test_asha_stops_who_violates_them_and_says_so() -> None:
    at = limited(mqtune.ASHA(27), "latency <= 10", "room >= 2")
    at.report("a", 1, 5, latency=5, room=2)

    assert at.report("b", 1, 0.5, latency=12.5, room=1) == Decision(
        Action.STOP, "rung 1: loss=0.5 (violates latency <= 10 and room >= 2) is not among the best 1 of 2"
    )
    assert at.report("c", 1, 4, latency=10, room=2) is CONTINUE
    assert at.report("c", 27, 4, latency=99) == Decision(Action.COMPLETE, "reached max_t=27")


def test_whatever_the_scope_the_report_itself_keeps_to_them() -> None:
    at = limited(mqtune.ASHA(9, grace_period=3, scope="all"))
    at.report("a", 3, 5, latency=5)
    at.report("b", 2, 1, latency=99)

    assert at.report("b", 3, 9, latency=1) is CONTINUE


def test_hyperband_lets_those_go_on_that_keep_to_them() -> None:
    at = limited(mqtune.HyperBand(9, brackets=1))
    for number in range(9):
        at.report(number, 1, number, latency=20 - number)
        at.pause(number)

    assert [name for name in at.everything_chosen() if name.startswith("Resume")] == [
        "Resume 8",
        "Resume 7",
        "Resume 6",
    ]


def test_moasha_has_who_violates_them_dominated_by_all_that_do_not_and_by_who_violates_them_by_less() -> None:
    at = limited(mqtune.MOASHA(27, reduction_factor=2), metrics=("loss", "speed"), modes=["min", "max"])
    at.report(0, 1, 9, speed=1, latency=10)
    at.report(1, 1, 8, speed=0, latency=10)

    violating = at.report(2, 1, 1, speed=99, latency=11)
    assert violating.reason == "rung 1: loss=1, speed=99 (violates latency <= 10) is not among the best 1 of 3"
    # Two of the four keep to it, and the next room is for who violates it least.
    assert at.report(3, 1, 2, speed=50, latency=13).action is Action.STOP
    at.report(4, 1, 7, speed=0, latency=40)
    assert at.report(5, 1, 7, speed=-5, latency=10.5) is CONTINUE


def test_the_median_leaves_out_reports_that_violate_them() -> None:
    at = limited(mqtune.MedianStopping(min_samples=2))
    # The second reports of these two are much better, and violate.
    for name in "ab":
        at.report(name, 1, 5, latency=1)
        assert at.report(name, 2, 0.01, latency=11) is CONTINUE

    assert at.report("c", 2, 4, latency=1) is CONTINUE, "worse than the others' averages if all reports counted"
    stopped = at.report("d", 2, 0.1, latency=11)
    assert stopped.action is Action.STOP
    assert stopped.reason.startswith("the best loss so far, inf, is worse than 5")


def test_where_most_violate_them_the_median_stops_nobody() -> None:
    at = limited(mqtune.MedianStopping(min_samples=2))

    assert [at.report(name, 1, 1, latency=11) for name in "abcd"] == [CONTINUE] * 4


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


def test_a_generation_copies_nobody_who_violates_them() -> None:
    scheduler = mqtune.PBT(2, {"lr": mqtune.uniform(0, 1)}, quantile_fraction=0.5, population_size=4, synchronous=True)
    at = limited(scheduler, saves=True)
    at.stage(*"abcd")
    for name, latency in zip("abcd", (11, 1, 30, 12), strict=True):
        at.report(name, 2, 1, latency=latency)
        at.pause(name)

    chosen = []
    while isinstance(choice := at.choose(can_start=False), Resume):
        chosen.append((choice.trial, choice.source))
        at.stage(choice.trial, config=choice.config, source=choice.source)
    # Trial a is among the best two, and violates.
    assert {source for _, source in chosen} == {None, "b"}


@pytest.mark.parametrize(("latencies", "top"), [((13, 11), 2), ((3, 1), 4)])
def test_pasha_trains_no_longer_because_trials_that_violate_them_change_places(
    latencies: tuple[float, float], top: float
) -> None:
    at = limited(mqtune.PASHA(9, reduction_factor=2))
    shift = min(latencies) - 1
    for name, loss, latency in (("a", 1, 1), ("b", 2, 1.5), ("c", 8, 90), ("d", 9, 91)):
        at.report(name, 1, loss, latency=latency + shift)
        at.pause(name)
    for _ in range(2):
        at.stage(at.resumed().trial)
    at.report("a", 2, 5, latency=latencies[0])
    at.report("b", 2, 2, latency=latencies[1])

    assert at.scheduler.current_max_t == top


def test_a_signed_rank_test_goes_by_the_best_trial_that_keeps_to_them() -> None:
    at = limited(mqtune.WilcoxonStopping(p_threshold=0.5))
    for step in (1, 2):
        at.report("fast", step, 1.0, latency=9)
        at.report("slow", step, 0.1, latency=99)
    at.end("fast", TrialStatus.COMPLETED)
    at.end("slow", TrialStatus.COMPLETED)

    assert at.report("next", 1, 0.5) is CONTINUE
    assert at.report("next", 2, 0.5) is CONTINUE, "it is better than the fast one, and worse than the slow one"
    at.report("worst", 1, 1.5)
    assert at.report("worst", 2, 1.6).action is Action.STOP
