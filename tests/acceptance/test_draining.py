"""Workers that are drained: their trials save, go on elsewhere, and it is no failure of theirs; down to no worker and up again."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trainables_saving as saving
from pair import SPACE, Tune, counting, rows, tuners, workers
from waiting import eventually

import mqtune
from mqtune.core.events import AttemptEnded, decode_event
from mqtune.core.trial import UNDRIVEN, AttemptEnd, TrialStatus
from mqtune.journal import RedisJournal, connect
from mqtune.testing.backends.world import drive

END_S = 40.0


@pytest.fixture
def start(own_broker: str, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    with workers(own_broker, tmp_path) as start:
        yield start


@pytest.fixture
def tune(own_broker: str, tmp_path: Path) -> Iterator[Tune]:
    with tuners(own_broker, tmp_path / "store") as build:
        yield build


def drain(broker: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mqtune", "fleet", "drain", *arguments],
        env={**os.environ, "MQTUNE_BROKER": broker},
        capture_output=True,
        text=True,
        timeout=END_S,
        check=False,
    )


def test_a_worker_that_is_drained_is_gone_and_its_trial_goes_on_where_it_was(
    own_broker: str, start: Callable[..., subprocess.Popen[bytes]], tune: Tune, tmp_path: Path
):
    going = start("going", "--log-format", "json")
    tuner = tune(saving.Counts, counting())
    drive(tuner, lambda: any(trial.attempt.reports >= 3 for trial in tuner.get_trials()))
    (trial,) = tuner.get_trials()
    start("staying")

    # By the part of its name before the @, while the driver does nothing: the worker needs none for it.
    done = drain(own_broker, "going")

    assert (done.returncode, done.stderr) == (0, "")
    told, gone = done.stdout.splitlines()
    assert told.startswith("going@")
    assert "save a checkpoint and are requeued, which takes 31 s at most" in told
    assert "has shut down after" in gone
    assert going.wait(timeout=END_S) == 0
    drive(tuner, lambda: trial.attempt.number == 2 and trial.attempt.reports)
    first, second = trial.attempts
    assert second.worker.startswith("staying@")
    # As root Celery warns, by Python's own means, before it logs anything.
    lines = [json.loads(line) for line in (tmp_path / "going.log").read_text().splitlines() if line.startswith("{")]
    assert {line["worker"].partition("@")[0] for line in lines} == {"going"}
    assert {line["attempt"] for line in lines if "Task" in line["message"]} == {1}
    assert (first.end, first.error, trial.failures) == (AttemptEnd.HANDED_BACK, "its worker was drained", 0)
    assert rows(tuner, trial, 2)[0]["step"] == rows(tuner, trial, 1)[-1]["step"] + 1


def test_down_to_no_worker_and_up_again_costs_nothing(
    own_broker: str, start: Callable[..., subprocess.Popen[bytes]], tune: Tune, tmp_path: Path
):
    both = [start("one"), start("two")]
    # On a busy machine the command needs seconds to begin: no trial ends before it has drained.
    gate = tmp_path / "drained"
    tuner = tune(saving.CountsInDict, *[counting(20, step_s=0.05)] * 3, space={**SPACE, "gate": str(gate)})
    drive(tuner, lambda: sum(trial.attempt.reports >= 3 for trial in tuner.get_trials()) == 2)

    done = drain(own_broker, "all")

    assert done.returncode == 0
    assert done.stdout.count("has shut down after") == 2
    assert [worker.wait(timeout=END_S) for worker in both] == [0, 0]
    drive(tuner, lambda: "no worker is connected" in tuner.debug_string(), "the experiment must wait, and say so")
    assert not tuner.is_finished
    gate.touch()

    start("three")
    drive(tuner, lambda: tuner.is_finished)
    for trial in tuner.get_trials():
        assert (trial.status, trial.failures) == (TrialStatus.COMPLETED, 0)
        steps = [row["step"] for number in range(len(trial.attempts)) for row in rows(tuner, trial, number + 1)]
        assert len(steps) >= trial.config["steps"]
        assert steps == list(range(1, len(steps) + 1)), "each step once: it was saved where it was handed back"


def test_with_stop_what_nobody_drives_any_more_is_handed_back_with_its_state(
    own_broker: str, start: Callable[..., subprocess.Popen[bytes]], tune: Tune
):
    start("alone")
    tuner = tune(saving.Counts, counting(), failures=mqtune.Failures(on_driver_loss="stop", driver_loss_grace_s=1.0))
    drive(tuner, lambda: tuner.get_trials() and tuner.get_trials()[0].attempt.reports >= 3)
    # The driver goes silent, as a killed one does some seconds later.
    tuner.close()

    with contextlib.closing(connect(own_broker)) as client:
        journal = RedisJournal(client, tuner.name)
        eventually(lambda: isinstance(decode_event(journal.read("0-0", count=100_000)[-1].data), AttemptEnded), END_S)
    run = mqtune.RunOptions(progress=False)
    with contextlib.closing(mqtune.Tuner.attach(tuner.name, backend=own_broker, run=run)) as second:
        (trial,) = second.get_trials()
        drive(second, lambda: trial.attempt.number == 2 and trial.attempt.reports)
        first = trial.attempts[0]
        assert (first.end, first.error_type, trial.failures) == (AttemptEnd.HANDED_BACK, UNDRIVEN, 0)
        assert first.error == "nobody drives the experiment any more"
        assert rows(second, trial, 2)[0]["step"] == rows(second, trial, 1)[-1]["step"] + 1
