"""Slots that several teams share have one name, and a queue for each team."""

from __future__ import annotations

import pytest

from mqtune.core.errors import ConfigurationError
from mqtune.core.resources import Resources, checked_patterns, queue_name, queues_of, serves
from mqtune.core.shares import lists_of

SHAPE = queue_name(Resources(gpus=1))


def test_the_slots_of_several_patterns_have_a_queue_for_each_and_one_for_all_experiments() -> None:
    shared = queue_name(Resources(gpus=1), checked_patterns("team-b-*, *,team-a-*,team-b-*"))

    assert shared == f"{SHAPE}@*,team-a-*,team-b-*"
    assert queues_of(shared) == [SHAPE, f"{SHAPE}@team-a-*", f"{SHAPE}@team-b-*"]
    for one in (SHAPE, f"{SHAPE}@team-a-*"):
        assert queues_of(one) == [one]


def test_what_waits_for_them_is_taken_by_priority_before_it_is_by_team() -> None:
    lists = lists_of(f"{SHAPE}@team-a-*,team-b-*")

    first, second = lists[:2]
    assert (first[:-1], second[:-1]) == (f"{SHAPE}@team-a-*\x06\x16", f"{SHAPE}@team-b-*\x06\x16")
    assert first[-1] == second[-1]
    assert lists == [*dict.fromkeys(lists)]


def test_a_worker_serves_what_fits_one_of_its_patterns() -> None:
    assert [serves("team-a-*,team-b-*", name) for name in ("team-a-1", "team-b-1", "team-c-1")] == [True, True, False]


@pytest.mark.parametrize("experiments", ["", "team-a-*,", "team a", "team-a-*;team-b-*"])
def test_what_is_no_pattern_is_refused(experiments: str) -> None:
    with pytest.raises(ConfigurationError, match="can't be names of experiments"):
        checked_patterns(experiments)
