"""The register in short: workers that are alike, counted."""

from __future__ import annotations

from typing import Any

import pytest
from fleets import impairment, worker

from mqtune.core.crews import register_of


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
