"""A trial that has failed runs again elsewhere: a slot that fails at once is free first, and would draw each retry."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from accounts import Accounts
from running import running_worker
from trainables import BROKEN_WORKER

import mqtune
from mqtune.backends import EmbeddedServer
from mqtune.core.trial import AttemptEnd, Trial, TrialStatus
from mqtune.worker import ANOTHER_WORKER_S

TRIALS = 4


Run = Callable[..., list[Trial]]


@pytest.fixture
def run(tune: Callable[..., mqtune.Tuner]) -> Run:
    """Run trials on a backend, each of which may fail once."""

    def run(backend: Any, **options: Any) -> list[Trial]:
        failures = mqtune.Failures(max_failures=1)
        tuner = tune("fails_where_it_is_broken", max_trials=TRIALS, backend=backend, failures=failures, **options)
        tuner.run()
        return tuner.get_trials()

    return run


def assert_each_failed_once_at_most(trials: list[Trial]) -> None:
    assert [trial.status for trial in trials] == [TrialStatus.COMPLETED] * TRIALS
    ends = [attempt.end for trial in trials for attempt in trial.attempts]
    assert AttemptEnd.FAILED in ends, "nothing has met the broken place"


def test_a_trial_that_has_failed_on_a_worker_runs_again_on_another_one(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = ("--gpus", "0", "--slots", "1")
    with (
        EmbeddedServer.start(tmp_path / "server") as server,
        contextlib.closing(Accounts(server.url)) as accounts,
    ):
        broker = accounts.make("worker")
        with (
            running_worker(broker, tmp_path / "1.log", *options, name="broken", environment={BROKEN_WORKER: "1"}),
            running_worker(broker, tmp_path / "2.log", *options, name="sound"),
        ):
            trials = run(accounts.make("driver"))
        assert accounts.refused() == []

    assert_each_failed_once_at_most(trials)
    pairs = [pair for trial in trials for pair in itertools.pairwise(trial.attempts)]
    assert {(before.worker.partition("@")[0], after.worker.partition("@")[0]) for before, after in pairs} == {
        ("broken", "sound")
    }
    assert "publishing it again" not in caplog.text


def test_where_there_is_one_slot_alone_a_retry_waits_for_no_other(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BROKEN_WORKER, "1")

    trials = run(mqtune.Local(slots=1))

    assert {trial.status for trial in trials} == {TrialStatus.FAILED}
    first, second = trials[0].attempts
    assert first.ended_at is not None
    assert second.started_at is not None
    assert second.started_at - first.ended_at < ANOTHER_WORKER_S / 2
