"""A full journal: its trials wait, the reason is said, and no other experiment is held up."""

from __future__ import annotations

import contextlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import trainables
from faces import said
from running import tuner_on
from waiting import eventually

import mqtune
from mqtune.core.keys import ExperimentKeys
from mqtune.core.timing import Timing
from mqtune.core.trial import TrialStatus
from mqtune.journal import connect

#: How long it may take until what was set is everywhere, on a machine that runs other tests.
SOON_S = 45.0
#: More than a trial can send before it waits: a pipe, and what is read from it at once.
REPORTS, PIPE_BYTES = 60_000, 3 * 2**20
JOURNAL_MB = 0.1


def tuner(broker: str, name: str, steps: int, journal_mb: float) -> mqtune.Tuner:
    # A driver says how much its journal may have, and hears how much it has, with its lock.
    run = mqtune.RunOptions(max_concurrent=1, journal_mb=journal_mb, timing=Timing(keep_lock_s=0.3))
    space = {"steps": steps, "step_s": 0.0, "saves": False, "x": mqtune.uniform(0, 1)}
    return tuner_on(broker, trainables.counts, space, name=name, max_trials=1, run=run)


def test_a_flooding_trial_waits_until_its_journal_may_have_more_and_holds_up_no_other_experiment(
    fleet: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"flood-{os.getpid()}"

    monkeypatch.setenv("MQTUNE_BROKER", fleet)
    with contextlib.closing(connect(fleet)) as client, ThreadPoolExecutor(1) as thread:
        flood = thread.submit(tuner(fleet, name, REPORTS, JOURNAL_MB).run)
        try:
            eventually(lambda: "its journal is full" in caplog.text, SOON_S)

            def why() -> dict[str, Any]:
                found: dict[str, Any] = json.loads(said("why", name, "0001", "--json"))["reasons"][0]
                return found

            eventually(lambda: why()["cause"] == "journal full", SOON_S)
            assert f"mqtune set {name} journal_mb=" in why()["way_out"]
            assert "MB used of 0.1 MB: no trial begins, and report() waits" in why()["text"]

            (other,) = tuner(fleet, f"other-{os.getpid()}", 30, 1000.0).run()
            assert other.status is TrialStatus.COMPLETED
            found: Any = client.hget(ExperimentKeys(name).meta, "bytes")
            assert int(found) < JOURNAL_MB * 10**6 + PIPE_BYTES
            assert not flood.done()
        finally:
            said("set", name, "journal_mb=1000")
        results = flood.result(SOON_S)
    (trial,) = results
    assert (trial.status, len(trial.attempts)) == (TrialStatus.COMPLETED, 1)
    assert [report.metrics["step"] for report in results.reports()] == list(range(1, REPORTS + 1))
