"""HyperBand: brackets and rounds by hand and against an oracle, and games with events in any order."""

from __future__ import annotations

import math
from typing import Any

import pytest
from scheduler_play import Play, scattered
from scheduler_table import Table, bound

from mqtune.core.trial import CONTINUE, Action, Decision, Metrics, TrialId, TrialStatus
from mqtune.schedulers.base import START, Release, Resume, Wait
from mqtune.schedulers.hyperband import HyperBand

NAN = math.nan


def hyperband(mode: str = "min", **arguments: Any) -> Any:
    """One whose brackets are (4, 2, 1), (3, 1) and (3) trials, unless it is said otherwise."""
    return bound(HyperBand(**{"max_t": 4, "reduction_factor": 2, **arguments}), mode)


# Brackets


def rounds(max_t: float, factor: float, **arguments: Any) -> list[list[tuple[float, float]]]:
    found = HyperBand(max_t, reduction_factor=factor, **arguments).brackets
    return [[tuple(round_) for round_ in bracket] for bracket in found]


def test_the_brackets_are_those_of_the_papers_example() -> None:
    assert rounds(81, 3) == [
        [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
        [(34, 3), (11, 9), (3, 27), (1, 81)],
        [(15, 9), (5, 27), (1, 81)],
        [(8, 27), (2, 81)],
        [(5, 81)],
    ]


@pytest.mark.parametrize(
    ("max_t", "factor", "first"),
    [
        (729, 3, [(729, 1), (243, 3), (81, 9), (27, 27), (9, 81), (3, 243), (1, 729)]),
        (49, 7, [(49, 1), (7, 7), (1, 49)]),
        (243, 3, [(243, 1), (81, 3), (27, 9), (9, 27), (3, 81), (1, 243)]),
        (1000, 10, [(1000, 1), (100, 10), (10, 100), (1, 1000)]),
        (125, 5, [(125, 1), (25, 5), (5, 25), (1, 125)]),
        (728, 3, [(243, 728 / 243), (81, 728 / 81), (27, 728 / 27), (9, 728 / 9), (3, 728 / 3), (1, 728)]),
        (1, 3, [(1, 1)]),
        (10, 2.5, [(7, 1.6), (2, 4), (1, 10)]),
    ],
)
def test_the_bracket_with_the_most_trials_is_there_however_logarithms_round(
    max_t: float, factor: float, first: list[tuple[float, float]]
) -> None:
    assert rounds(max_t, factor)[0] == first


def test_with_fewer_brackets_those_that_stop_most_are_left() -> None:
    assert rounds(27, 3, brackets=1) == [[(27, 1), (9, 3), (3, 9), (1, 27)]]
    assert rounds(27, 3, brackets=2) == rounds(27, 3)[:2]
    assert rounds(27, 3, brackets=4) == rounds(27, 3)


def test_a_grace_period_is_the_unit_of_time() -> None:
    assert rounds(0.9, 3, grace_period=0.1) == [[(9, 0.1), (3, 0.3), (1, 0.9)], [(5, 0.3), (1, 0.9)], [(3, 0.9)]]
    assert rounds(5, 3, grace_period=5) == [[(1, 5)]]


def test_a_factor_close_to_one_does_not_hold_up_the_start() -> None:
    scheduler = hyperband(max_t=1000, reduction_factor=1.01)

    Table(scheduler).stage("a")


# The rule, by hand


def test_a_round_is_over_when_all_have_come_and_then_the_best_go_on() -> None:
    table = Table(hyperband())
    table.stage("a", "b", "c", "d")
    table.arrive(1, a=4, b=3, c=2)

    assert table.choose() == START
    table.arrive(1, d=1)

    assert table.choose() == Release(TrialId("b"), "bracket 0: not among the best 2 of 4 at 1")
    table.end("b", TrialStatus.EARLY_STOPPED)
    table.end("a", TrialStatus.EARLY_STOPPED)
    assert table.choose() == Resume(TrialId("d"), "bracket 0: among the best 2 of 4 at 1")
    table.stage("d")
    assert table.choose() == Resume(TrialId("c"), "bracket 0: among the best 2 of 4 at 1")
    table.stage("c")
    assert table.choose() == START


def test_trials_go_to_the_brackets_in_the_order_of_their_staging() -> None:
    table = Table(hyperband())
    table.stage(*"abcdefghijk")

    # a to d are a bracket that begins with time 1, e to g one with 2, h to j one with 4, and k is the first of the next.
    assert [table.report(name, 1, 0).action.name for name in "aehk"] == ["PAUSE", "CONTINUE", "CONTINUE", "PAUSE"]
    assert table.report("e", 2, 0) == Decision(Action.PAUSE, "bracket 1: waits for the others at 2")
    assert table.report("h", 2, 0) is CONTINUE
    assert table.report("h", 4, 0).action is Action.COMPLETE


def test_ties_go_to_who_was_staged_earlier_and_nan_is_worst() -> None:
    table = Table(hyperband())
    table.stage("a", "b", "c", "d")
    table.arrive(1, d=NAN, c=1, b=1, a=1)
    assert table.everything_chosen() == ["Release c", "Release d", "Resume a", "Resume b"]

    table = Table(hyperband("max"))
    table.stage("a", "b", "c", "d")
    table.arrive(1, d=NAN, c=-math.inf, b=NAN, a=NAN)
    assert table.everything_chosen() == ["Release b", "Release d", "Resume c", "Resume a"]


def test_a_trial_that_fails_is_out_and_leaves_no_place_empty() -> None:
    table = Table(hyperband())
    table.stage("a", "b", "c", "d")
    table.arrive(1, a=1, b=2)
    table.end("c")
    table.report("d", 1, 0)
    table.end("d")

    # Two of four go on, and two are left.
    assert table.everything_chosen() == ["Resume a", "Resume b"]
    table.end("a", TrialStatus.ABANDONED)
    table.arrive(2, b=2)
    assert table.everything_chosen() == ["Resume b"]


def test_a_bracket_whose_trials_all_failed_is_over() -> None:
    table = Table(hyperband())
    table.stage("a", "b", "c", "d")
    for name in "abcd":
        table.end(name)

    assert table.choose() == START
    assert isinstance(table.choose(can_start=False), Wait)


def test_a_chosen_trial_that_is_abandoned_before_it_runs_holds_nobody_up() -> None:
    table = Table(hyperband())
    table.stage("a", "b", "c", "d")
    table.arrive(1, a=1, b=2, c=3, d=4)
    for name in "cda":
        table.end(name, TrialStatus.ABANDONED)

    assert table.everything_chosen() == ["Resume b"]
    table.arrive(2, b=1)
    assert table.everything_chosen() == ["Resume b"]


# A bracket that is not full


def test_a_bracket_that_is_not_full_is_closed_as_it_is_when_nothing_new_can_start() -> None:
    table = Table(hyperband())
    table.stage("a", "b", "c")
    table.arrive(1, a=1, b=2)
    assert isinstance(table.choose(can_start=False), Wait)
    table.arrive(1, c=3)

    assert table.choose() == START
    assert table.choose(can_start=False) == Resume(TrialId("a"), "bracket 0: among the best 1 of 3 at 1")
    # Asking has closed nothing; only that the trial was staged does.
    assert table.choose() == START
    assert table.everything_chosen(can_start=False) == ["Resume a", "Release b", "Release c"]


def test_who_comes_after_a_bracket_was_closed_goes_to_the_next() -> None:
    table = Table(hyperband())
    table.stage("a")
    table.arrive(1, a=1)
    assert table.everything_chosen(can_start=False) == ["Resume a"]

    table.stage("b")

    assert table.report("b", 1, 1) is CONTINUE
    assert table.report("b", 2, 1).action is Action.PAUSE


def test_a_trial_alone_runs_to_max_t() -> None:
    table = Table(hyperband())
    table.stage("a")
    table.arrive(1, a=NAN)
    table.everything_chosen(can_start=False)
    table.arrive(2, a=NAN)
    table.everything_chosen(can_start=False)

    assert table.report("a", 4).action is Action.COMPLETE


# Reports that are not like the others


def test_a_report_without_the_metric_gives_no_score_and_the_next_one_does() -> None:
    table = Table(hyperband())
    table.stage("a")

    assert table.report("a", 1) is CONTINUE
    assert table.report("a", 2, 1).action is Action.PAUSE


def test_a_report_that_skips_rounds_counts_in_the_present_one() -> None:
    table = Table(hyperband())
    table.stage("a", "b", "c", "d")
    table.arrive(3, a=1)
    table.arrive(1, b=2, c=3, d=4)
    table.everything_chosen()

    assert table.report("a", 3, 1).action is Action.PAUSE
    assert table.report("b", 7, 2).action is Action.COMPLETE


def test_a_retry_goes_for_the_same_round_and_keeps_the_score_that_it_has() -> None:
    table = Table(hyperband())
    table.stage("a", "b", "c", "d")
    table.stage("a")
    table.report("b", 1, 9)
    table.stage("b")

    assert table.report("b", 1, 0).action is Action.PAUSE
    table.pause("b")
    table.arrive(1, a=1, c=2, d=3)
    assert table.everything_chosen() == ["Release d", "Release b", "Resume a", "Resume c"]


def test_a_resume_without_a_checkpoint_is_looked_at_only_at_the_end_of_its_round() -> None:
    table = Table(hyperband())
    table.stage("a", "b", "c", "d")
    table.arrive(1, a=1, b=2, c=3, d=4)
    table.everything_chosen()

    assert table.report("a", 1, 9) is CONTINUE
    assert table.report("a", 2, 9).action is Action.PAUSE


# By hand


def test_a_trial_that_a_person_pauses_leaves_its_bracket_and_then_runs_to_max_t() -> None:
    table = Table(hyperband())
    table.stage("a", "b", "c", "d")
    table.pause("d")
    table.arrive(1, a=1, b=2, c=3)

    assert table.everything_chosen() == ["Release c", "Resume a", "Resume b"]
    table.stage("d")
    assert table.report("d", 3, 9) is CONTINUE
    assert table.report("d", 4, 9).action is Action.COMPLETE


def test_a_trial_that_a_person_resumes_leaves_its_bracket_and_runs_to_max_t() -> None:
    table = Table(hyperband())
    table.stage("a", "b", "c", "d")
    table.arrive(1, a=1, b=2)
    table.stage("a")
    table.arrive(1, c=3, d=4)
    table.stage("d")

    assert table.everything_chosen() == ["Resume b", "Resume c"]
    assert [table.report(name, 3, 0) for name in "ad"] == [CONTINUE, CONTINUE]


# Games

SIZES = (27, 12, 6, 4)
LEVELS = ((1, 3, 9, 27), (3, 9, 27), (9, 27), (27,))


@pytest.mark.parametrize("slots", [1, 22])
@pytest.mark.parametrize(
    ("trials", "brackets"), [(49, 4), (40, 4), (27, 4), (20, 4), (98 + 30, 4), (27, 1), (20, 1), (60, 1), (90, 2)]
)
def test_who_survives_is_what_the_paper_says(slots: int, trials: int, brackets: int) -> None:
    def score(number: int, now: int) -> int:
        return scattered(number, now, values=10**9)

    def smooth(config: dict[str, Any], now: int) -> Metrics:
        return {"loss": score(config["number"], now)}

    scheduler = hyperband(max_t=27, reduction_factor=3, brackets=brackets)
    play = Play(scheduler, smooth, slots=slots, trials=trials).run()

    expected: dict[str, int] = {}
    numbers, bracket = list(range(trials)), 0
    while numbers:
        size, levels = SIZES[bracket % brackets], LEVELS[bracket % brackets]
        members, numbers = numbers[:size], numbers[size:]
        count = len(members)
        for index, level in enumerate(levels):
            expected |= {f"{number:03d}": level for number in members}
            kept = max(1, math.floor(math.floor(count / 3**index) / 3))
            members = sorted(members, key=lambda number, level=level: score(number, level))[:kept]
        bracket += 1
    assert {name: play.reached(name) for name in play.known} == expected
    finished = {name for name, status in play.statuses.items() if status == "COMPLETED"}
    assert finished == {name for name, level in expected.items() if level == 27}
