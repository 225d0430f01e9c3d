"""Imports that take long: the driver knows of them, says so, and publishes nothing again; and experiments that take turns don't repeat them."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from running import QUICK, running_worker
from waiting import eventually

import mqtune
from mqtune.core.keys import ExperimentKeys
from mqtune.core.resources import Resources
from mqtune.core.trial import TrialStatus
from mqtune.driver.timers import DriverTimers
from mqtune.journal.connection import connect
from mqtune.testing.backends.world import drive

Tune = Callable[..., mqtune.Tuner]

#: No other test's workers have it.
TAG = "imports"
#: More than it takes to see an import that is repeated at each turn.
TURNS = 4


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that has to be there before a worker has imported the trainable of ``imports_long``."""
    gate = tmp_path / "gate"
    (tmp_path / "imports_long.py").write_text(
        "import sys, time, pathlib, mqtune\n"
        f"gate = pathlib.Path({str(gate)!r})\n"
        "while 'mqtune.trainable.process.importer' in str(sys.orig_argv) and not gate.exists():\n"
        "    time.sleep(0.01)\n"
        "def train(config):\n"
        "    mqtune.report({'loss': config['x']})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return gate


@pytest.fixture
def client(broker: str) -> Iterator[redis.Redis]:
    with connect(broker, role="test") as client:
        yield client


def test_a_worker_says_at_once_that_it_imports_and_again_until_it_claims(
    tune: Tune,
    broker: str,
    gate: Path,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    train = importlib.import_module("imports_long").train
    tuner = tune(train, max_trials=2, name="imports-long", resources=Resources(tags=[TAG]))
    # Whatever nobody has is overdue at once.
    publish = DriverTimers.publish_lost
    monkeypatch.setattr(DriverTimers, "publish_lost", lambda self, older_than_s=0: publish(self, 0))
    trial = ExperimentKeys("imports-long").trial("0001")
    options = ["--gpus", "0", "--slots", "2", "--tags", TAG]
    with running_worker(
        broker, gate.parent / "worker.log", *options, name="slow", code_root=gate.parent, program=QUICK
    ):
        drive(tuner, lambda: "importing your code (" in tuner.debug_string())
        until = client.hget(trial, "held_until")
        assert until is not None
        eventually(lambda: client.hget(trial, "held_until") != until)
        drive(tuner, lambda: "importing your code (2 s)" in tuner.debug_string())
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            tuner._runner.open()._timers.publish_lost()
        assert "nobody has taken it" not in caplog.text

        gate.touch()
        results = tuner.run()

    assert [trial.status for trial in results.trials] == [TrialStatus.COMPLETED] * 2
    assert [len(trial.attempts) for trial in results.trials] == [1, 1]
