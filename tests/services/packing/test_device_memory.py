"""A slot is free once its devices' memory is. A full device takes no trial."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest.mock import Mock

import pytest
from impaired import quarantined, reasons
from waiting import eventually

from mqtune.core.resources import Resources
from mqtune.core.timing import Timing
from mqtune.services.packing.device_memory import KEPT_BYTES, TOLERANCE_BYTES, DeviceMemory
from mqtune.worker import Impairments, Slot, SlotPlan, WorkerHooks

GB = 1_000_000_000
MB = 1_000_000
QUICK = Timing(gpu_poll_s=0.001, gpu_return_s=0.05)


class Gpus:
    """Says what it was told that devices have in use, and notes who asked for what."""

    def __init__(self) -> None:
        self.now = {"0": 100 * MB, "1": 100 * MB}
        self.asked: list[Sequence[str]] = []

    def used(self, devices: Sequence[str]) -> dict[str, int]:
        self.asked.append(devices)
        return {device: self.now[device] for device in devices if device in self.now}

    def close(self) -> None: ...


class At(NamedTuple):
    """A slot with these devices."""

    index: int
    places: tuple[str, ...]

    @property
    def environment(self) -> dict[str, str]:
        return {}


class Watched:
    """The memory of two devices, and how often it was said that something changed."""

    def __init__(self, timing: Timing = QUICK) -> None:
        self.gpus = Gpus()
        self.changes = 0
        self.impairments = Impairments(self._count)
        self.memory = DeviceMemory(self.gpus, self.impairments, ["0"], timing=timing)

    def look(self) -> None:
        """Look at the quarantined devices, as the worker does from time to time."""
        for look in self.impairments.checks():
            look()

    def close(self) -> None:
        self.impairments.close()
        self.memory.drain()

    def _count(self) -> None:
        self.changes += 1


@pytest.fixture
def watched(request: pytest.FixtureRequest) -> Iterator[Watched]:
    with contextlib.closing(Watched(getattr(request, "param", QUICK))) as watched:
        yield watched


@pytest.mark.parametrize("watched", [replace(QUICK, gpu_return_s=60.0)], indirect=True)
def test_a_trial_has_ended_only_when_its_devices_have_what_they_had_before(watched: Watched) -> None:
    gpus = watched.gpus
    assert watched.memory.admit(At(0, ("0", "1")))
    gpus.now = {"0": 20 * GB, "1": 30 * GB}

    settling = threading.Thread(
        target=watched.memory.emptied, args=(At(0, ("0", "1")),), kwargs={"waits": True}, daemon=True
    )
    settling.start()
    for _ in range(2):
        asked = len(gpus.asked)
        eventually(lambda asked=asked: len(gpus.asked) > asked + 3)
        gpus.now["0"] = 100 * MB
    assert settling.is_alive(), "the second device is not back"

    gpus.now["1"] = 100 * MB + TOLERANCE_BYTES
    settling.join(10)
    assert not settling.is_alive()
    assert quarantined(watched.impairments) == set()
    assert watched.changes == 0


def test_a_full_device_is_quarantined_until_it_has_memory(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    watched.memory.admit(At(0, ("0",)))
    watched.gpus.now["0"] = 5_100 * MB

    with caplog.at_level(logging.WARNING):
        watched.memory.emptied(At(0, ("0",)), waits=True)

        assert quarantined(watched.impairments) == {"0"}
        assert not watched.memory.admit(At(0, ("0",)))
        assert not watched.memory.admit(At(1, ("1", "0"))), "one device of several is enough"
        assert watched.memory.admit(At(2, ("1",)))
        assert reasons(watched.impairments) == "device 0 is quarantined, 5.0 GB of its memory did not come back"
        assert watched.changes == 1
        watched.look()
        assert watched.changes == 1

        watched.gpus.now["0"] = 120 * MB
        watched.look()
        assert watched.changes == 2

    assert reasons(watched.impairments) == ""
    assert watched.memory.admit(At(0, ("0",)))
    first, last = [record.getMessage() for record in caplog.records]
    assert "device 0 is quarantined, 5.1 GB" in first
    assert "0.1 GB was before" in first
    assert last == "device 0 is in use again: its memory is back"


def test_others_that_come_between_two_trials_are_seen_before_the_second(watched: Watched) -> None:
    watched.memory.start()
    watched.gpus.now["0"] = 5 * GB

    assert not watched.memory.admit(At(0, ("0",)))

    assert reasons(watched.impairments) == "device 0 is quarantined, others have 5.0 GB of its memory in use"
    watched.gpus.now["0"] = 0
    watched.look()
    assert watched.memory.admit(At(0, ("0",)))
    watched.gpus.now["0"] = GB
    watched.memory.emptied(At(0, ("0",)), waits=True)
    assert "did not come back" in reasons(watched.impairments), "the one that was refused has left no baseline"


def test_on_a_shared_device_nothing_is_compared_before_its_last_trial_has_ended(watched: Watched) -> None:
    watched.memory.admit(At(0, ("0",)))
    watched.gpus.now["0"] = 10 * GB
    watched.memory.admit(At(1, ("0",)))
    watched.gpus.now["0"] = 20 * GB
    asked = list(watched.gpus.asked)

    watched.memory.emptied(At(0, ("0",)), waits=True)
    assert watched.gpus.asked == asked, "the other's memory says nothing of this one's"

    watched.gpus.now["0"] = 10 * GB
    watched.memory.emptied(At(1, ("0",)), waits=True)
    assert quarantined(watched.impairments) == {"0"}, "the first has left something"


def test_a_kept_process_with_too_much_memory_is_named_and_waited_for(watched: Watched, tmp_path: Path) -> None:
    plan, memory, importers = SlotPlan(offer=Resources(gpus=0.5), devices=(("0",), ("0",))), watched.memory, Mock()
    hooks = WorkerHooks([memory])
    slots = [
        Slot(index, plan, tmp_path, watched.impairments, hooks, importers=importers, admits=memory.admit)
        for index in (0, 1)
    ]
    turn, other = (slot.next_turn() for slot in slots)
    turn.take(stays=True)

    watched.gpus.now["0"] = 100 * MB + KEPT_BYTES
    assert hooks.retires(slots[0]) == ""
    watched.gpus.now["0"] += 300 * MB
    assert hooks.retires(slots[0]) == "it has left 2.4 GB on device 0"
    other.take(stays=True)
    assert hooks.retires(slots[0]) == "", "it may be the other slot's"
    memory.emptied(slots[1], waits=False)

    turn.note_not_kept()
    turn.end()
    assert quarantined(watched.impairments) == {"0"}


def test_devices_that_can_not_say_how_full_they_are_cost_no_wait(watched: Watched) -> None:
    watched.gpus.now.clear()
    watched.memory.admit(At(0, ("0",)))
    watched.gpus.now["0"] = GB
    watched.memory.emptied(At(0, ("0",)), waits=True)
    assert not quarantined(watched.impairments)

    watched.memory.admit(At(0, ("0",)))
    watched.gpus.now["0"] = 3 * GB
    del watched.gpus.now["0"]
    watched.memory.emptied(At(0, ("0",)), waits=True)
    assert not quarantined(watched.impairments)
