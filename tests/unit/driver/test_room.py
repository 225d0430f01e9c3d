"""A server's memory, and when its driver warns that it runs out."""

from __future__ import annotations

import pytest

from mqtune.driver import RoomWatch
from mqtune.journal import Room

MIB = 1 << 20


def test_a_driver_says_once_that_room_runs_out_that_there_is_none_and_that_there_is_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = RoomWatch()
    said = []

    for percent in (79, 80, 81, 79, 80, 101, 99, 101, 90, 70, 82):
        caplog.clear()
        watch.look(Room(percent * MIB, 100 * MIB))
        said.append((percent, bool(watch.why), [record.getMessage().partition(",")[0] for record in caplog.records]))

    assert said == [
        (79, False, []),
        (80, False, ["Redis is nearly full"]),
        (81, False, []),
        (79, False, []),
        (80, False, []),
        (101, True, ["Redis is full (maxmemory)"]),
        (99, True, []),
        (101, True, []),
        (90, False, ["Redis has room again: 90 MiB used of 100 MiB"]),
        (70, False, ["Redis has room again: 70 MiB used of 100 MiB"]),
        (82, False, ["Redis is nearly full"]),
    ]


def test_a_server_without_a_limit_is_never_short_and_one_that_may_not_be_asked_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = RoomWatch()

    watch.look(Room(10**12, 0))
    watch.look(None)

    assert (watch.why, caplog.text) == ("", "")


def test_what_a_server_does_not_count_against_its_limit_is_left_out() -> None:
    """Buffers of replicas and of its file."""
    room = Room.of({"used_memory": 110 * MIB, "maxmemory": 100 * MIB, "mem_not_counted_for_evict": 40 * MIB})

    assert (room.part, room.shortage) == (0.7, "")
