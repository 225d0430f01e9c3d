"""Brackets of ASHA and promotion ASHA: who is given to which, and that each is halved on its own."""

from __future__ import annotations

import math

from hypothesis import given, settings, strategies as st
from scheduler_table import Table, bound

from mqtune import ASHA, PromotionASHA
from mqtune.core.trial import CONTINUE, Decision, Report, Trial, TrialId, TrialStatus
from mqtune.schedulers import START, Release, Resume, Scheduler


def tell(scheduler: Scheduler, number: int, now: int, loss: float = 1.0) -> Decision:
    """Hand one report over; its sequence number is its time."""
    name = TrialId(str(number))
    trial = Trial(name, {}, TrialStatus.RUNNING)
    return scheduler.on_report(trial, Report(name, 1, now, 0.0, {"training_iteration": now, "loss": loss}))


def given_to(count: int, brackets: int, *, rungs: int = 4, factor: int = 3) -> list[int]:
    """The bracket of each of the first trials, by the rule as the docstring states it."""
    parts = [math.ceil(rungs / (rungs - b) * factor ** (rungs - b - 1)) for b in range(brackets)]
    found: list[int] = []
    for number in range(1, count + 1):
        lacks = [part * number / sum(parts) - found.count(b) for b, part in enumerate(parts)]
        found.append(next(b for b in range(brackets) if lacks[b] >= max(lacks) - 1e-9))
    return found


# Who is given to which


# The rule


@given(
    brackets=st.integers(1, 4),
    reports=st.lists(st.tuples(st.integers(0, 14), st.integers(1, 5), st.integers(0, 9)), max_size=120),
)
@settings(max_examples=80)
def test_each_bracket_decides_as_asha_alone_would(brackets: int, reports: list[tuple[int, int, int]]) -> None:
    """Of trials given to bracket b, an ASHA whose grace period is its first rung."""
    scheduler = bound(ASHA(27, brackets=brackets))
    alone = [bound(ASHA(27, grace_period=3**b)) for b in range(brackets)]
    order: dict[int, int] = {}
    times: dict[int, int] = {}
    sequence = given_to(15, brackets)

    for number, step, loss in reports:
        now = times[number] = times.get(number, 0) + step
        bracket = sequence[order.setdefault(number, len(order))]

        decision = tell(scheduler, number, now, loss)

        assert decision.action is tell(alone[bracket], number, now, loss).action
    assert scheduler.rung_sizes[0] == alone[0].rung_sizes[0]


# Promotion


def test_a_trial_is_promoted_within_its_bracket_and_the_highest_rung_comes_first() -> None:
    # Of 39 trials 27 and 12.
    table = Table(bound(PromotionASHA(27, brackets=2)))
    brackets = given_to(10, 2)
    assert brackets == [0, 1, 0, 0, 1, 0, 0, 0, 1, 0]
    for number, bracket in enumerate(brackets):
        table.stage(number)
        if bracket:
            assert table.report(number, 1, 0) is CONTINUE
        now = 3 if bracket else 1
        assert table.report(number, now, number).reason == f"bracket {bracket}, rung {now}: waits to be promoted"
        table.pause(number)

    assert table.scheduler.rung_sizes == (7, 3, 0, 0)
    assert table.scheduler.choose(can_start=True) == Resume(TrialId("1"), "bracket 1, rung 3: among the best 1 of 3")
    table.stage(1)
    assert table.scheduler.choose(can_start=True) == Resume(TrialId("0"), "bracket 0, rung 1: among the best 2 of 7")
    table.stage(0)
    table.stage(2)
    assert table.scheduler.choose(can_start=True) == START


def test_a_bracket_that_none_comes_to_is_released_while_another_is_under_way() -> None:
    table = Table(bound(PromotionASHA(27, brackets=2)))
    for number in (0, 1):
        table.stage(number)
    table.report(1, 3, 1)
    table.pause(1)

    place = "not among the best 0 of 1, and no other trial comes there"
    assert table.scheduler.choose(can_start=False) == Release(TrialId("1"), f"bracket 1, rung 3: {place}")
