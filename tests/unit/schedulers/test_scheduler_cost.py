"""Promotion by cost, by hand and against an oracle."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st
from scheduler_table import Table, bound

from mqtune import PromotionASHA
from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import CONTINUE, Action, TrialId
from mqtune.schedulers import START, Resume


def costly(cost: str = "dollars") -> Table:
    return Table(bound(PromotionASHA(9, cost=cost)))


def arrive(at: Table, number: int, loss: float, dollars: float) -> None:
    assert at.report(number, 1, loss, dollars=dollars).action is Action.PAUSE
    at.pause(number)


def test_of_cheap_trials_more_are_promoted_than_one_in_the_factor() -> None:
    at = costly()
    arrive(at, 0, 1, 1)
    arrive(at, 1, 2, 1)
    assert at.scheduler.choose(can_start=True) == START
    # A third of 6 is 2, the cost of the two best.
    arrive(at, 2, 3, 4)

    assert at.scheduler.choose(can_start=True) == Resume(TrialId("0"), "at iteration 1: among the best 2 of 3")
    at.stage(0)
    assert at.scheduler.choose(can_start=True) == Resume(TrialId("1"), "at iteration 1: among the best 2 of 3")
    at.stage(1)
    assert at.scheduler.choose(can_start=True) == START


def test_a_report_without_a_cost_enters_no_rung_and_the_next_one_does() -> None:
    at = costly()
    arrive(at, 0, 1, 1)
    at.stage(1)

    for now, cost in enumerate([math.nan, math.inf, -1, "1", None, True], start=1):
        assert at.report(1, now, 1, dollars=cost) is CONTINUE
    assert at.report(1, 7, 1, dollars=0).action is Action.PAUSE
    assert at.scheduler.rung_sizes == (1, 1, 0)


def test_a_cost_that_no_report_has_is_a_mistake() -> None:
    at = costly("dolars")
    at.stage(0)
    assert at.report(0, 1, None) is CONTINUE

    with pytest.raises(ConfigurationError, match=r"report 2 of trial 0 has no number .* the cost 'dolars'"):
        at.report(0, 2, 1, dollars=1)


@given(
    trials=st.lists(st.tuples(st.integers(0, 9), st.sampled_from([0, 0.1, 0.3, 1, 2, 7.5])), max_size=40),
    gone=st.lists(st.integers(0, 39), max_size=4),
    factor=st.sampled_from([Fraction(2), Fraction(3), Fraction(5, 2)]),
)
def test_the_best_fit_their_share_of_costs(trials: list[tuple[int, float]], gone: list[int], factor: Fraction) -> None:
    at = Table(bound(PromotionASHA(9, reduction_factor=float(factor), cost="dollars")))
    entered = []
    for number, (score, cost) in enumerate(trials):
        arrive(at, number, score, cost)
        entered.append((score, number, Fraction(str(cost))))
    for index in gone:
        if entered:
            at.abandon(entered.pop(index % len(entered))[1])

    entered.sort()
    limit = sum((cost for *_, cost in entered), Fraction(0)) / factor
    sums = [sum((cost for *_, cost in entered[:k]), Fraction(0)) for k in range(len(entered) + 1)]
    best = max(k for k, spent in enumerate(sums) if spent <= limit)
    assert at.everything_chosen() == [f"Resume {number}" for _, number, _ in entered[:best]]
