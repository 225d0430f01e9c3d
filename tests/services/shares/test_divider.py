"""Fair shares of one fleet."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from mqtune.core.priorities import PRIORITIES
from mqtune.services.shares.divider import AGING_S, Demand, Table, divide, entitlements

ONE = ("q",)
ALL = 1_000
HOUR_S = 3_600.0


def wants(name: str, wanted: int = ALL, **more: object) -> Demand:
    return Demand(**{"experiment": name, "queues": ONE, "wanted": wanted, **more})


@pytest.mark.parametrize(
    ("demands", "slots", "shares"),
    [
        ([wants("a")], 4, {"a": 4}),
        ([wants("a"), wants("b")], 4, {"a": 2, "b": 2}),
        ([wants("a", weight=3.0), wants("b")], 8, {"a": 6, "b": 2}),
        ([wants("a", weight=3.0), wants("b", 1), wants("c")], 9, {"a": 6, "b": 1, "c": 2}),
        ([wants("a", priority="low"), wants("b", 3), wants("c", 2, priority="high")], 8, {"a": 3, "b": 3, "c": 2}),
        ([wants("a", priority="low"), wants("b", priority="high")], 4, {"a": 0, "b": 4}),
        ([wants("a", 0), wants("b")], 4, {"a": 0, "b": 4}),
        ([wants("a"), wants("b")], 0, {"a": 0, "b": 0}),
    ],
)
def test_slots_go_by_priority_then_by_weight(demands: list[Demand], slots: int, shares: dict[str, int]):
    assert entitlements(demands, {"q": slots}) == shares


def test_who_had_less_of_late_is_rounded_up():
    thirds = [wants("a", used=1.4), wants("b", used=1.3), wants("c", used=1.2)]

    assert entitlements(thirds, {"q": 4}) == {"a": 1, "b": 1, "c": 2}
    assert entitlements([wants("a", used=0.6), wants("b", used=0.4)], {"q": 1}) == {"a": 0, "b": 1}


def test_a_quota_holds_for_all_under_it_together_and_the_rest_goes_to_others():
    team = [wants("a", quotas=("team-*",)), wants("b", quotas=("team-*", "other-*")), wants("c")]

    assert entitlements(team, {"q": 12}, {"team-*": 3}) == {"a": 2, "b": 1, "c": 9}
    assert entitlements(team, {"q": 12}, {"team-*": 0, "unknown": 1}) == {"a": 0, "b": 0, "c": 12}


QUEUES = ("p", "q", "r")
a_demand = st.builds(
    Demand,
    experiment=st.uuids().map(str),
    queues=st.lists(st.sampled_from(QUEUES), unique=True, min_size=1).map(tuple),
    wanted=st.integers(0, 12),
    priority=st.sampled_from(PRIORITIES),
    weight=st.sampled_from([0.5, 1.0, 2.0, 3.5]),
    used=st.floats(0, 8),
)
some_demands = st.lists(a_demand, max_size=8, unique_by=lambda each: each.experiment)
some_slots = st.fixed_dictionaries({queue: st.integers(0, 8) for queue in QUEUES})


def placed(demands: list[Demand], shares: dict[str, int], slots: dict[str, int]) -> bool:
    """Whether everybody has a slot: each set of queues has enough for demands on it alone (Hall)."""
    sets = [frozenset(queue for index, queue in enumerate(QUEUES) if mask >> index & 1) for mask in range(8)]
    return all(
        sum(shares[each.experiment] for each in demands if set(each.queues) <= some) <= sum(slots[q] for q in some)
        for some in sets
    )


@given(some_demands, st.integers(0, 24))
def test_within_a_class_shares_are_max_min_fair_but_for_rounding(demands: list[Demand], slots: int):
    demands = [replace(each, queues=ONE) for each in demands]
    shares = entitlements(demands, {"q": slots})

    for priority in PRIORITIES:
        unmet = [each for each in demands if each.priority == priority and shares[each.experiment] < each.wanted]
        for poor in unmet:
            # An experiment with more for its weight has at most the one slot that rounding gave it.
            level = (shares[poor.experiment] + 1) / poor.weight
            peers = [each for each in demands if each.priority == priority and each is not poor]
            assert all((shares[peer.experiment] - 1) / peer.weight <= level + 1e-9 for peer in peers)
        if unmet:
            lower = PRIORITIES[PRIORITIES.index(priority) + 1 :]
            assert not any(shares[each.experiment] for each in demands if each.priority in lower)


@given(some_demands, st.integers(0, 60))
def test_slots_that_are_given_at_once_are_those_that_would_be_given_one_by_one(demands: list[Demand], slots: int):
    demands = [replace(each, queues=ONE, wanted=each.wanted * 5) for each in demands]

    # With a quota that is never reached they are given one by one.
    under = [replace(each, quotas=("all",)) for each in demands]
    assert entitlements(demands, {"q": slots}) == entitlements(under, {"q": slots}, {"all": 10_000})


units = st.sampled_from([1, 1, 2, 3, 8])
some_gangs = st.lists(st.tuples(a_demand, units), max_size=8, unique_by=lambda each: each[0].experiment)


@given(some_gangs, some_slots, st.integers(0, 12))
def test_shares_are_whole_trials(given_units: list[tuple[Demand, int]], slots: dict[str, int], quota: int):
    demands = [replace(each, unit=unit, quotas=("all",)) for each, unit in given_units]
    shares = entitlements(demands, slots, {"all": quota})

    assert all(0 <= shares[each.experiment] <= each.wanted for each in demands)
    assert all(shares[each.experiment] % each.unit == 0 for each in demands)
    assert placed(demands, shares, slots)
    assert sum(shares.values()) <= quota
    for each in demands:
        more = {**shares, each.experiment: shares[each.experiment] + each.unit}
        is_there = placed(demands, more, slots) and sum(more.values()) <= quota
        assert more[each.experiment] > each.wanted or not is_there


def test_who_has_waited_for_long_enough_gets_all_slots_of_a_trial_at_once_or_none():
    gang, others = wants("g", 8, unit=4, priority="low", waiting_s=100.0), wants("h", priority="high")

    assert entitlements([gang, others], {"q": 6}, aging_s=100.0) == {"g": 4, "h": 2}
    assert entitlements([gang, others], {"q": 3}, aging_s=100.0) == {"g": 0, "h": 3}


def test_who_runs_more_than_its_share_is_told_that_rounded_up_to_whole_trials():
    demands = [wants("g", 8, unit=4, running=8), wants("s")]

    shares = divide(Table(demands, {}), {"q": 10}, {})

    assert (shares["g"].limit, shares["g"].at_most) == (4, 8)


@pytest.mark.parametrize("unit", [0, -1, 1.5, "2", True, 10**9])
def test_a_unit_that_is_no_number_of_slots_is_refused(unit: object):
    with pytest.raises(ValueError, match="unit="):
        wants("g", unit=unit)


@pytest.mark.parametrize(
    ("waited_s", "aging_s", "slots"),
    [(HOUR_S - 1, HOUR_S, 0), (HOUR_S, HOUR_S, 1), (AGING_S, AGING_S, 1), (10 * AGING_S, math.inf, 0)],
)
def test_who_has_waited_for_so_long_gets_one_slot_before_all_priorities(waited_s: float, aging_s: float, slots: int):
    demands = [wants("low", priority="low", waiting_s=waited_s), wants("high", priority="high")]

    assert entitlements(demands, {"q": 4}, aging_s=aging_s) == {"low": slots, "high": 4 - slots}
