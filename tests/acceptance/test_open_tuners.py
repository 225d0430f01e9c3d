"""Tuners that somebody else drives, on a real worker: any configs, over drivers that come and go."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
import trainables

import mqtune
from mqtune.core.trial import TrialStatus

pytestmark = pytest.mark.timeout(120)

#: The longest that a driver and a worker take for something, on a machine that runs other tests.
DONE_S = 60.0


def drive_until(tuner: mqtune.Tuner, done: Callable[[], object]) -> None:
    deadline = time.monotonic() + DONE_S
    while not done():
        assert time.monotonic() < deadline, tuner.debug_string()
        tuner.step(0.1)


def test_a_loop_of_somebody_elses_adds_its_trials_goes_on_after_its_end_and_finishes(fleet: str) -> None:
    name = f"open-{os.getpid()}"
    first = mqtune.Tuner(trainables.slow, backend=fleet, name=name, run=mqtune.Run(progress=False))
    trial = first.add({"x": 1.0, "theirs": {"id": 7}}, key="7")
    drive_until(first, lambda: trial.reports > 3)
    worker = trial.attempt.worker
    first.close()

    second = mqtune.Tuner.attach(name, backend=fleet, run=mqtune.Run(progress=False))
    same = second.add({"x": 2.0}, key="7")
    drive_until(second, lambda: same.reports > trial.reports)

    assert (same.id, same.config, same.attempt.number) == (trial.id, {"x": 1.0, "theirs": {"id": 7}}, 1)
    assert same.attempt.worker == worker
    with mqtune.Client(fleet) as client:
        added = client.experiment(name).add({"x": 3.0}, key="8", timeout_s=0)
        drive_until(second, lambda: len(second.running_trials) == 2)
        assert (
            client.experiment(name).add({"x": 3.0}, key="8", request_id=added.request_id, timeout_s=9).trial == "0002"
        )

        results = second.finish("they have enough")

        state = client.experiment(name).state()
        assert state is not None
        assert (state.outcome, state.metric) == ("finished", "")
    assert [result.status for result in results] == [TrialStatus.EARLY_STOPPED] * 2
    second.close()
