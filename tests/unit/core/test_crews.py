"""The register in short: workers that are alike, counted."""

from __future__ import annotations

from typing import Any

import pytest
from fleets import impairment, worker

from mqtune.core.crews import Register, register_of


def test_workers_that_offer_the_same_are_one_crew_and_slots_are_counted_by_queue():
    workers = [worker(f"w{number}", queue="q", slots=2, busy={"a": 1}) for number in range(7)]
    workers += [worker("x", queue="p", slots=3, busy={"a": 2, "b": 1, "odd": "many"})]

    found = register_of(workers)

    first, second = found.crews
    assert (first.queue, first.workers, first.slots, first.names) == ("q", 7, 2, ["w0", "w1", "w2", "w3", "w4"])
    assert (second.queue, second.workers, second.slots, second.names) == ("p", 1, 3, ["x"])
    assert found.slots == {"q": 14, "p": 3}
    assert found.busy == {"a": {"q": 7, "p": 2}, "b": {"p": 1}}
    assert register_of([]) == Register([], {})


@pytest.mark.parametrize(
    "other", [{"slots": 2}, {"gpus": 1}, {"cpus": 2}, {"gpu_memory_gb": 24}, {"tags": ["a100"]}, {"version": "9.0.0"}]
)
def test_workers_that_differ_in_what_they_offer_are_crews_of_their_own(other: dict[str, Any]):
    assert len(register_of([worker("a"), worker("b", **other)]).crews) == 2


def test_a_crew_has_the_notes_of_its_workers_but_no_more_than_people_read():
    workers = [worker(f"w{number:03}", impairments=[impairment()] * (number % 2)) for number in range(100)]

    (crew,) = register_of(workers).crews

    assert crew.workers == 100
    assert set(crew.notes.values()) == {"device 0 is quarantined, it is full"}
    assert list(crew.notes)[:2] == ["w001", "w003"]
    assert len(crew.notes) == 20
