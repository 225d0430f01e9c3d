"""Tuners that somebody else drives, on a real worker: any configs, over drivers that come and go."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import trainables
import trainables_saving as saving

import mqtune
from mqtune.core.trial import Report, TrialStatus

#: The longest that a driver and a worker take for something, on a machine that runs other tests.
DONE_S = 60.0


def drive_until(tuner: mqtune.Tuner, done: Callable[[], object]) -> None:
    deadline = time.monotonic() + DONE_S
    while not done():
        assert time.monotonic() < deadline, tuner.debug_string()
        tuner.step(0.1)


def test_a_loop_of_somebody_elses_adds_its_trials_goes_on_after_its_end_and_finishes(fleet: str) -> None:
    name = f"open-{os.getpid()}"
    first = mqtune.Tuner(trainables.slow, backend=fleet, name=name, run=mqtune.RunOptions(progress=False))
    trial = first.add({"x": 1.0, "theirs": {"id": 7}}, key="7")
    drive_until(first, lambda: trial.reports > 3)
    worker = trial.attempt.worker
    first.close()

    second = mqtune.Tuner.attach(name, backend=fleet, run=mqtune.RunOptions(progress=False))
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


def next_report(tuner: mqtune.Tuner) -> Report:
    deadline = time.monotonic() + DONE_S
    while (report := tuner.next_report(0.1)) is None:
        assert time.monotonic() < deadline, tuner.debug_string()
    return report


def test_in_lockstep_no_line_runs_after_the_report_that_is_decided_on_nor_after_one_that_nobody_answered(
    fleet: str, tmp_path: Path
) -> None:
    def opened() -> mqtune.Tuner:
        process = mqtune.Process(sync="lockstep")
        return mqtune.Tuner(
            saving.writes_on, backend=fleet, name=name, process=process, run=mqtune.RunOptions(progress=False)
        )

    name, written = f"handed-{os.getpid()}", tmp_path / "written"
    first = opened()
    trial = first.add({"written": str(written), "saves": True})
    assert [next_report(first).metrics["step"] for _ in range(3)] == [1, 2, 3]
    assert written.read_text().split() == ["1", "2"]
    first.close()

    second = opened()
    assert next_report(second).metrics["step"] == 3
    second.trial(trial).pause("enough for now")
    trial = second.trial(trial).record
    drive_until(second, lambda: trial.status is TrialStatus.PAUSED)
    assert (trial.attempt.number, trial.attempt.stop.sequence, written.read_text().split()) == (1, 3, ["1", "2"])
    second.trial(trial).resume()
    assert (report := next_report(second)).metrics["step"] == 4
    assert report.attempt == 2
    second.finish()
    second.close()
    assert written.read_text().split() == ["1", "2"]
