"""A worker that fails to start attempts rests, and a failed trial runs elsewhere first."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from bench import Clock
from impaired import nothing_impaired

from mqtune.core.events import AttemptEnded
from mqtune.core.experiment import LOST_BUDGET
from mqtune.core.trial import UNDRIVEN, AttemptEnd, TrialId
from mqtune.journal import Claim
from mqtune.worker import (
    ANOTHER_DEVICE_S,
    ANOTHER_WORKER_S,
    BACK_OFF_S,
    FAILED_STARTS,
    BackOff,
    Impairments,
    Retries,
    Slots,
    plan_slots,
)


def fail(worker: BackOff, times: int = 1) -> None:
    for _ in range(times):
        worker.note_problem("started", "StoreUnavailable: on worker w:\nnot mounted")


def test_after_some_failed_starts_it_takes_none_and_then_one_to_try_which_ends_the_rest() -> None:
    clock = Clock()
    worker = BackOff(Impairments(lambda: None, monotonic=clock.monotonic))
    fail(worker, FAILED_STARTS - 1)
    assert worker.allows is None

    fail(worker)
    assert worker.allows == 0
    clock.now += BACK_OFF_S - 0.1
    assert worker.allows == 0
    clock.now += 0.2
    assert worker.allows == 1
    fail(worker)

    worker.note_done("started")
    assert worker.allows is None
    # Attempts that were taken together are one try.
    fail(worker, FAILED_STARTS + 5)
    clock.now += BACK_OFF_S
    assert worker.allows == 1
    assert FAILED_STARTS < LOST_BUDGET, "one broken worker does not end a trial alone"


def note(known: Retries, *devices: str, end: AttemptEnd = AttemptEnd.FAILED, **fields: Any) -> Retries:
    ended = AttemptEnded(trial=TrialId("0001"), attempt=1, end=end, at=1.0, **fields)
    known.note("x", Claim(TrialId("0001"), 1, "token"), ended, devices)
    return known


def avoided(known: Retries, attempt: int, experiment: str = "x", trial: str = "0001") -> set[str] | None:
    failure = known.failure(experiment, Claim(TrialId(trial), attempt, "token"))
    return None if failure is None else {*failure.devices}


@pytest.mark.parametrize(("devices", "away_s"), [({"0"}, ANOTHER_DEVICE_S), (set(), ANOTHER_WORKER_S)])
def test_a_trial_alone_avoids_the_device_where_it_failed_for_a_while(devices: set[str], away_s: float) -> None:
    clock = Clock()
    known = note(Retries(clock), *devices)

    clock.now += away_s - 1
    assert avoided(known, 2) == devices
    assert avoided(known, 2, trial="0002") is None
    assert avoided(known, 2, experiment="y") is None
    # Of an experiment that has begun from scratch under this name.
    assert avoided(known, 1) is None
    clock.now += 1
    assert avoided(known, 2) is None


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
def test_only_device_faults_keep_a_trial_away(end: AttemptEnd, fields: dict[str, Any], is_kept_away: bool) -> None:
    assert (avoided(note(Retries(), "0", end=end, **fields), 2) is not None) is is_kept_away


@pytest.mark.parametrize(
    ("gpus", "options", "avoids", "found"),
    [
        ("0123", {}, {"0", "1"}, ("2",)),
        ("0123", {}, {"0", "1", "2", "3"}, None),
        # A slot with one of them is avoided too.
        ("0123", {"gpus_per_slot": 2}, {"1"}, ("2", "3")),
        ("0123", {"gpus_per_slot": 2}, {"1", "2"}, None),
        # Slots without devices are all one place.
        ("", {"slots": 2}, set(), None),
    ],
)
def test_a_free_slot_with_other_devices_is_found(
    tmp_path: Path, gpus: str, options: dict[str, int], avoids: set[str], found: tuple[str, ...] | None
) -> None:
    slots = Slots(plan_slots(tuple(gpus), **options), tmp_path, nothing_impaired())

    assert slots.has_other(avoids) is (found is not None)
    slot = slots.acquire_other(avoids, Mock())
    assert (None if slot is None else slot.devices) == found
    # The others wait in their order.
    rest = slots.acquire(Mock(), timeout_s=0)
    assert rest is not None
    assert rest.devices == slots.all[0].devices
