"""No experiment waits for ever: after a time without a slot it gets one, whatever its priority."""

from __future__ import annotations

import math

import pytest

from mqtune.core.shares import AGING_S, Demand, Priority, entitlements

HOUR_S = 3_600.0


def wants(experiment: str, priority: Priority = "low", *, waiting_s: float = 0.0, running: int = 0) -> Demand:
    return Demand(
        experiment=experiment, queues=("q",), wanted=8, running=running, priority=priority, waiting_s=waiting_s
    )


@pytest.mark.parametrize(
    ("waited_s", "aging_s", "slots"),
    [(HOUR_S - 1, HOUR_S, 0), (HOUR_S, HOUR_S, 1), (AGING_S, AGING_S, 1), (10 * AGING_S, math.inf, 0)],
)
def test_who_has_waited_for_so_long_gets_one_slot_before_all_priorities(
    waited_s: float, aging_s: float, slots: int
) -> None:
    demands = [wants("low", waiting_s=waited_s), wants("high", "high")]

    assert entitlements(demands, {"q": 4}, aging_s=aging_s) == {"low": slots, "high": 4 - slots}


def test_who_has_got_that_slot_counts_as_any_other_again() -> None:
    demands = [wants("low", running=1), wants("high", "high")]

    assert entitlements(demands, {"q": 4}) == {"low": 0, "high": 4}


def test_who_has_waited_longest_comes_first_and_a_quota_holds() -> None:
    demands = [wants("a", waiting_s=AGING_S), wants("b", waiting_s=2 * AGING_S), wants("high", "high")]

    assert entitlements(demands, {"q": 1}) == {"a": 0, "b": 1, "high": 0}
    capped = [Demand(experiment="a", queues=("q",), wanted=8, quotas=("team-*",), waiting_s=AGING_S)]
    assert entitlements(capped, {"q": 4}, {"team-*": 0}) == {"a": 0}


def test_within_a_priority_the_slot_counts_as_part_of_the_share() -> None:
    demands = [wants("a", waiting_s=AGING_S), wants("b")]

    assert entitlements(demands, {"q": 4}) == {"a": 2, "b": 2}
