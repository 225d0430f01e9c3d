"""A worker remembers for some seconds which trials have failed in which of its slots, and has others run them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bench import Clock
from impaired import nothing_impaired

from mqtune.core.events import AttemptEnded
from mqtune.core.trial import UNDRIVEN, AttemptEnd, TrialId
from mqtune.journal import Claim
from mqtune.worker import ANOTHER_DEVICE_S, ANOTHER_WORKER_S, Retries, SlotPlan, Slots, plan_slots

FOUR: SlotPlan = plan_slots(("0", "1", "2", "3"))
PAIRS: SlotPlan = plan_slots(("0", "1", "2", "3"), gpus_per_slot=2)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def claim(attempt: int, trial: str = "0001") -> Claim:
    return Claim(TrialId(trial), attempt, "token")


def note(known: Retries, attempt: int, *devices: str, end: AttemptEnd = AttemptEnd.FAILED, **fields: Any) -> Retries:
    ended = AttemptEnded(trial=TrialId("0001"), attempt=attempt, end=end, at=1.0, **fields)
    known.note("x", claim(attempt), ended, devices)
    return known


def devices_of(known: Retries, attempt: int, experiment: str = "x", trial: str = "0001") -> set[str] | None:
    failure = known.failure(experiment, claim(attempt, trial))
    return None if failure is None else {*failure.devices}


@pytest.mark.parametrize(("devices", "away_s"), [({"0"}, ANOTHER_DEVICE_S), (set(), ANOTHER_WORKER_S)])
def test_the_next_attempt_of_a_trial_is_kept_off_the_devices_or_worker_where_it_has_failed_for_a_while(
    clock: Clock, devices: set[str], away_s: float
) -> None:
    known = note(Retries(clock), 1, *devices)

    clock.now += away_s - 1
    assert devices_of(known, 2) == devices
    clock.now += 1
    assert devices_of(known, 2) is None


def test_a_trial_that_fails_again_avoids_all_places_and_from_the_last_failure_on(clock: Clock) -> None:
    known = note(Retries(clock), 1, "0")
    clock.now += ANOTHER_DEVICE_S - 1
    note(known, 2, "1")
    clock.now += ANOTHER_DEVICE_S - 1

    assert devices_of(known, 3) == {"0", "1"}


def test_no_other_trial_or_experiment_is_kept_away(clock: Clock) -> None:
    known = note(Retries(clock), 1, "0")

    assert devices_of(known, 2, trial="0002") is None
    assert devices_of(known, 2, experiment="y") is None
    # Of an experiment that has begun from scratch under this name.
    assert devices_of(known, 1) is None


@pytest.mark.parametrize(
    ("end", "fields", "is_kept_away"),
    [
        (AttemptEnd.FAILED, {"error_type": "ValueError", "pid": 7}, True),
        (AttemptEnd.HANDED_BACK, {"error_type": "DeviceBroken", "pid": 7}, True),
        (AttemptEnd.HANDED_BACK, {"error_type": "ModuleNotFoundError"}, False),
        (AttemptEnd.HANDED_BACK, {"error_type": UNDRIVEN, "pid": 7}, False),
        (AttemptEnd.HANDED_BACK, {"pid": 7}, False),
        (AttemptEnd.COMPLETED, {"pid": 7}, False),
        (AttemptEnd.STOPPED, {"error_type": "Killed", "pid": 7}, False),
    ],
)
def test_only_what_may_be_the_devices_fault_keeps_a_trial_away(
    clock: Clock, end: AttemptEnd, fields: dict[str, Any], is_kept_away: bool
) -> None:
    known = note(Retries(clock), 1, "0", end=end, **fields)

    assert (devices_of(known, 2) is not None) is is_kept_away


def test_a_free_slot_with_other_devices_is_found_behind_those_that_are_to_be_avoided(tmp_path: Path) -> None:
    slots = Slots(FOUR, tmp_path, nothing_impaired())

    found = slots.acquire_other({"0", "1"})

    assert found is not None
    assert found.devices == ("2",)
    others = [slots.acquire(timeout_s=0) for _ in range(3)]
    assert [slot.devices for slot in others if slot is not None] == [("0",), ("1",), ("3",)]
    assert slots.acquire_other({"0", "1"}) is None


def test_a_trial_of_several_devices_avoids_slots_that_have_one_of_them(tmp_path: Path) -> None:
    slots = Slots(PAIRS, tmp_path, nothing_impaired())

    assert (slots.has_other({"1"}), slots.has_other({"1", "2"})) == (True, False)
    found = slots.acquire_other({"1"})
    assert found is not None
    assert found.devices == ("2", "3")
    assert slots.acquire_other({"1", "2"}) is None
    rest = slots.acquire(timeout_s=0)
    assert rest is not None
    assert rest.devices == ("0", "1")


def test_slots_without_devices_are_all_one_place(tmp_path: Path) -> None:
    slots = Slots(plan_slots((), slots=2), tmp_path, nothing_impaired())

    assert not slots.has_other(set())
    assert slots.acquire_other(set()) is None
