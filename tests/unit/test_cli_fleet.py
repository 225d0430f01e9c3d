"""Who has how much of a fleet, as the live page shows it."""

from __future__ import annotations

from typing import Any

from mqtune.cli.fleet import Share, shares_of
from mqtune.core.events import WorkerInfo
from mqtune.core.shares import Demand, Table
from mqtune.core.version import __version__


def worker(name: str, slots: int, version: str = __version__, **details: Any) -> WorkerInfo:
    plain: dict[str, Any] = {"name": name, "host": "h", "pid": 1, "version": version, "queue": "q", "gpus": 0}
    return WorkerInfo(**plain, cpus=1, slots=slots, devices=["0"], code_root="/", joined_at=1.0, **details)


def wants(token: str, wanted: int, running: int, **more: Any) -> Demand:
    return Demand(experiment=token, queues=["q"], wanted=wanted, running=running, **more)


def test_each_has_what_its_priority_and_its_share_give_it_and_no_more_than_it_wants():
    demands = [
        wants("a", 8, 5, weight=3.0),
        wants("b", 8, 3),
        wants("c", 1, 0, priority="high"),
        wants("d", 9, 0, priority="low"),
    ]

    found = shares_of(Table(demands, {}), [worker("w1", 5), worker("w2", 4), worker("old", 9, "0.0.9")])

    assert {each.token: (each.running, each.wanted, each.may_run) for each in found} == {
        "a": (5, 8, 6),
        "b": (3, 8, 2),
        "c": (0, 1, 1),
        "d": (0, 9, 0),
    }
    assert [each.token for each in found] == ["a", "b", "c", "d"]


def test_a_quota_bounds_all_that_fall_under_it_and_one_that_was_dropped_nobody():
    demands = [wants("a", 8, 1, quotas=["team-*"]), wants("b", 8, 1, quotas=["team-*", "dropped-*"])]

    found = shares_of(Table(demands, {"team-*": 3}), [worker("w1", 8)])

    assert sum(each.may_run for each in found) == 3
    assert [each.quotas for each in found] == [["team-*"], ["team-*"]]


def test_slots_of_trials_that_nobody_drives_are_shown_and_are_nobodys_to_have():
    busy = {"gone": 2, "a": 1, "odd": "many"}

    found = shares_of(Table([wants("a", 8, 1)], {}), [worker("w1", 4, busy=busy)])

    assert found == [Share("gone", "", 0.0, 2, 0, 0, []), Share("a", "normal", 1.0, 1, 8, 2, [])]
