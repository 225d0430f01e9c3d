"""Brackets of ASHA: each is halved on its own."""

from __future__ import annotations

import math

from hypothesis import given, settings, strategies as st
from scheduler_table import bound

from mqtune import ASHA
from mqtune.core.trial import Decision, Report, Trial, TrialId, TrialStatus
from mqtune.schedulers import Scheduler


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
