"""Brackets of ASHA: each is halved on its own."""

from __future__ import annotations

import math

from hypothesis import given, strategies as st
from scheduler_table import Table, bound

from mqtune import ASHA


def given_to(count: int, brackets: int, *, rungs: int = 4, factor: int = 3) -> list[int]:
    """The bracket of each of the first trials, by the rule as the docstring states it."""
    parts = [math.ceil(rungs / (rungs - b) * factor ** (rungs - b - 1)) for b in range(brackets)]
    found: list[int] = []
    for number in range(1, count + 1):
        lacks = [part * number / sum(parts) - found.count(b) for b, part in enumerate(parts)]
        found.append(next(b for b in range(brackets) if lacks[b] >= max(lacks) - 1e-9))
    return found


@given(
    brackets=st.integers(1, 4),
    reports=st.lists(st.tuples(st.integers(0, 14), st.integers(1, 5), st.integers(0, 9)), max_size=120),
)
def test_each_bracket_decides_as_asha_alone_would(brackets: int, reports: list[tuple[int, int, int]]) -> None:
    """Of trials given to bracket b, an ASHA whose grace period is its first rung."""
    at = Table(bound(ASHA(27, brackets=brackets)))
    alone = [Table(bound(ASHA(27, grace_period=3**b))) for b in range(brackets)]
    order: dict[int, int] = {}
    times: dict[int, int] = {}
    sequence = given_to(15, brackets)

    for number, step, loss in reports:
        now = times[number] = times.get(number, 0) + step
        bracket = sequence[order.setdefault(number, len(order))]

        assert at.report(number, now, loss).action is alone[bracket].report(number, now, loss).action
    assert at.scheduler.rung_sizes[0] == alone[0].scheduler.rung_sizes[0]
