"""The shares and quotas of a fleet, as the live page and ``mqtune why`` show them."""

from __future__ import annotations

from typing import Any

import pytest
from fleets import worker

import mqtune
from mqtune.cli import unmet_versions
from mqtune.core.resources import Resources, queue_name
from mqtune.core.version import minor
from mqtune.core.worker_info import busy_as
from mqtune.services.shares.advice import users_of_quota, way_to_more
from mqtune.services.shares.divider import Cap, Demand, Table
from mqtune.services.shares.overview import ShareSummary, shares_of


def wants(token: str, wanted: int, running: int, **more: Any) -> Demand:
    return Demand(experiment=token, queues=["q"], wanted=wanted, running=running, **more)


def test_a_quota_bounds_all_that_fall_under_it_and_one_that_was_dropped_nobody():
    demands = [wants("a", 8, 1, quotas=["team-*"]), wants("b", 8, 1, quotas=["team-*", "dropped-*"])]

    found = shares_of(Table(demands, {"team-*": 3}), [worker("w1", slots=8)])

    assert sum(each.may_run for each in found) == 3
    assert [each.quotas for each in found] == [["team-*"], ["team-*"]]


def test_slots_of_trials_that_nobody_drives_are_shown_and_are_nobodys_to_have():
    busy = {"gone": 2, "a": 1, "odd": "many"}

    found = shares_of(Table([wants("a", 8, 1)], {}), [worker("w1", slots=4, busy=busy)])

    assert found == [ShareSummary("gone", "", 0.0, 2, 0, 0, []), ShareSummary("a", "normal", 1.0, 1, 8, 2, [])]


@pytest.mark.parametrize(
    ("mine", "others", "way_out"),
    [
        ({}, [{}], "share=2"),
        ({"weight": 2.0}, [{}, {"priority": "low"}], "share=4"),
        ({"weight": 0.25}, [{}], "share=0.5"),
        ({"priority": "low", "weight": 3.0}, [{}], "priority=normal"),
        ({"priority": "low"}, [{"priority": "high"}], "priority=high"),
        # Experiments of high priority leave no slot, so that another place behind them is no help.
        ({"priority": "low"}, [{}, {"priority": "high"}], "priority=high"),
        ({"priority": "low"}, [{}, {"priority": "high", "wanted": 1}], "priority=normal"),
        # An experiment that wants no slot is before nobody.
        ({"priority": "low"}, [{"priority": "high", "wanted": 0}, {"priority": "low"}], "share=2"),
    ],
)
def test_the_way_to_more_slots_fits_the_demands(mine: dict[str, Any], others: list[dict[str, Any]], way_out: str):
    rivals = [wants(f"other{number}", **{"wanted": 8, "running": 1, **each}) for number, each in enumerate(others)]
    table = Table([wants(busy_as("x"), 8, 0, **mine), *rivals], {})

    assert way_to_more("x", table, [worker("w1", slots=4)]) == f"mqtune set x {way_out}"


@pytest.mark.parametrize(
    ("cap", "mine", "other", "way_out"),
    [
        ({"share": 2.0}, {"weight": 2.0}, "normal", "mqtune fleet quota 'team-*' --share 4"),
        ({"share": 8.0}, {"weight": 2.0}, "normal", "mqtune set x share=4"),
        ({"priority": "normal"}, {}, "high", "mqtune fleet quota 'team-*' --priority high"),
        ({"priority": "normal"}, {"priority": "low"}, "normal", "mqtune set x priority=normal"),
    ],
)
def test_the_way_to_more_slots_respects_a_cap(cap: dict[str, Any], mine: dict[str, Any], other: str, way_out: str):
    demands = [wants(busy_as("x"), 8, 0, quotas=["team-*"], **mine), wants("other", 8, 1, priority=other)]
    table = Table(demands, {}, caps={"team-*": Cap(**cap, by="olaf@h")})

    said = way_to_more("x", table, [worker("w1", slots=4)])

    assert said.endswith(way_out)
    assert said.startswith("ask olaf@h to raise the cap: " if "quota" in way_out else "mqtune set")


def test_who_may_not_know_what_others_want_is_told_no_number():
    assert way_to_more("x", None, []) == way_to_more("x", Table([], {}), [])
    assert "share=" not in way_to_more("x", None, [])


def test_who_has_the_slots_of_a_quota_is_said_by_name_where_that_is_known():
    quotas = ["team-*"]
    demands = [wants(busy_as(f"team-{n}"), 8, n, quotas=quotas) for n in range(3)]
    demands += [wants("secret", 8, 9, quotas=quotas), wants(busy_as("other"), 8, 7, quotas=["other"])]

    assert users_of_quota("team-*", Table(demands, {}), ["team-0", "team-1", "team-2", "other"]) == (
        "another experiment (9), team-2 (2), team-1 (1)"
    )
    assert users_of_quota("team-*", None, []) == ""


def test_slots_of_a_version_that_no_driver_has_are_counted():
    there = [worker("w1", slots=2), worker("w2", slots=4, version="99.3.1"), worker("w3", slots=1, version="99.3.0")]
    ours = Demand(experiment="x", queues=[queue_name(Resources())], wanted=3)

    for table in (None, Table([], {}), Table([ours], {})):
        assert [*unmet_versions(there, table)] == [
            f"5 slots of mqtune 99.3 fit no driver: drivers are of {minor(mqtune.__version__)}; upgrade the older one: docs/installation.md#upgrade-a-fleet"
        ]
    theirs = Demand(experiment="y", queues=["mqtune-99-3.gpu0.cpu1"], wanted=3)
    assert not [*unmet_versions(there, Table([ours, theirs], {}))]
