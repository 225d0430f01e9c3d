"""Many experiments on one fleet, in virtual time: nobody starves, and each has slots for its share."""

from __future__ import annotations

import pytest
from shared_fleet import SharedFleetInTime, alike, fairness, many


def test_each_class_of_many_experiments_shares_fairly_within_minutes_and_nobody_starves():
    fleet = SharedFleetInTime(60, many(10, 60))
    fleet.run(60)
    assert sum(len(each.running) for each in fleet.sharers if each.wish.standing.priority == "low") == 60

    fleet.run(120)
    for each in fleet.sharers:
        each.slot_s = each.longest_without_s = 0.0
    fleet.run(600)

    for priority in ("high", "normal", "low"):
        assert fairness([each for each in fleet.sharers if each.wish.standing.priority == priority]) > 0.95
    assert max(each.longest_without_s for each in fleet.sharers) < 60
    assert sum(each.slot_s for each in fleet.sharers) / 600 == pytest.approx(60, rel=0.01)
    # Those of low priority had all slots, and keep what nobody else wants.
    assert 0 < sum(each.pauses for each in fleet.sharers) <= 60


def test_trials_that_are_never_paused_are_shared_out_as_they_end():
    fleet = SharedFleetInTime(40, alike(8, preemptible=False), longest_s=120.0)
    fleet.run(600)

    assert fairness(fleet.sharers) > 0.95
    assert not any(each.pauses for each in fleet.sharers)
