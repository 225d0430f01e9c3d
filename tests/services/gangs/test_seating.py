"""Gangs are counted by the slots that can seat them, and each seat is published to a queue with slots for it."""

from __future__ import annotations

from functools import cache
from itertools import combinations
from typing import Final

import pytest
from brokers import LARGE, SMALL, World, backend_of as plain_backend_of
from hypothesis import HealthCheck, given, settings, strategies as st

from mqtune.backends import CeleryBackend, Offer
from mqtune.core.resources import Resources
from mqtune.core.tasks import task_names
from mqtune.core.trial import TrialId
from mqtune.services.gangs.driver import check_for_settings

ONE: Final = TrialId("0001")
PAIR: Final = Resources(machines=2)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World.for_backends(monkeypatch)


def backend_of(resources: Resources) -> CeleryBackend:
    """A backend that was checked for trials that ask for this."""
    backend = plain_backend_of(resources)
    check_for_settings([resources], backend)
    return backend


def gang(seats: int = 2) -> list[str]:
    return [str(name) for name in task_names(ONE, seats)]


@cache
def can_seat(slots: tuple[int, ...], seats: int, gangs: int) -> bool:
    """Whether a number of gangs can be seated on different workers, found by trying all workers for the first gang."""
    if not gangs:
        return True
    able = [number for number, left in enumerate(slots) if left]
    for chosen in combinations(able, seats):
        left = sorted(count - (number in chosen) for number, count in enumerate(slots))
        if can_seat(tuple(left), seats, gangs - 1):
            return True
    return False


@settings(max_examples=2 * settings.default.max_examples, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(slots=st.lists(st.integers(0, 4), max_size=5), seats=st.integers(2, 4))
def test_as_many_gangs_count_as_can_be_seated(world: World, slots: list[int], seats: int) -> None:
    world.workers.clear()
    for number in slots:
        world.join(SMALL, number)
    apart = max(gangs for gangs in range(sum(slots) + 1) if can_seat(tuple(sorted(slots)), seats, gangs))
    assert backend_of(Resources(machines=seats)).slots == apart
    assert backend_of(Resources(seats=seats)).slots == sum(slots) // seats


def test_each_seat_has_a_task_of_its_own(world: World) -> None:
    world.join(SMALL, 2)
    world.join(LARGE, 1)
    backend = backend_of(Resources(seats=3))

    backend.publish_all([Offer(ONE, 1, {})])

    assert [sent["task_id"] for sent in world.sent] == [f"x/{name}/1" for name in gang(seats=3)]
    assert [sent["args"] for sent in world.sent] == [("x", name, 1, "d") for name in gang(seats=3)]
    assert (world.waiting(SMALL), world.waiting(LARGE)) == (gang(seats=3)[:2], gang(seats=3)[2:])
    assert backend.queued() == {(TrialId(name), 1) for name in gang(seats=3)}


def test_seats_on_different_workers_go_to_queues_with_workers_for_them(world: World) -> None:
    world.join(SMALL, 8)
    world.join(LARGE, 8)

    backend_of(PAIR).publish(ONE, 1, {})

    assert (world.waiting(SMALL), world.waiting(LARGE)) == (["0001"], ["0001~1"])


def test_a_seat_whose_message_is_lost_is_published_again_and_the_others_stay(world: World) -> None:
    world.join(SMALL, 2)
    backend = backend_of(Resources(seats=2))
    backend.publish(ONE, 1, {})
    assert world.take(SMALL) == "0001"

    assert backend.queued() == {(TrialId("0001~1"), 1)}
    backend.publish(ONE, 1, {})

    assert world.waiting(SMALL) == ["0001~1", "0001"]


def test_a_message_that_names_no_seat_disturbs_nobody(world: World) -> None:
    world.join(SMALL, 2)
    backend = backend_of(PAIR)
    backend.publish(ONE, 1, {})
    world.queues[next(iter(world.queues))].extend(["x/0001~x/1", "x/~/1", "x/0001~01/1"])

    assert backend.queued() == {(TrialId(name), 1) for name in gang()}


@pytest.mark.parametrize(
    ("asked", "workers", "why"),
    [
        (PAIR, 0, "no fleet of 2 workers offers a slot with 1 CPU on each: no worker is connected; start one"),
        (PAIR, 1, "no fleet of 2 workers offers a slot with 1 CPU on each: 1 worker with that is connected; connected: w0@h: 3 × 2 CPUs"),
        (Resources(seats=8), 2, "no fleet offers 8 slots with 1 CPU each: 6 such slots are there; connected: w0@h: 3 × 2 CPUs"),
    ],
)  # fmt: skip
def test_what_a_fleet_lacks_for_a_gang_is_said(world: World, asked: Resources, workers: int, why: str) -> None:
    for _ in range(workers):
        world.join(SMALL, 3)
    backend = backend_of(asked)

    assert backend.slots == 0
    assert backend.why_no_slot().startswith(why)
