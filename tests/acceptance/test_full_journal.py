"""A full journal: its trials wait, the reason is said, and no other experiment is held up."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trainables
from click.testing import CliRunner
from running import tuner_on
from waiting import eventually

import mqtune
from mqtune.cli import group
from mqtune.core.keys import ExperimentKeys
from mqtune.core.timing import Timing
from mqtune.core.trial import TrialStatus
from mqtune.journal import connect

#: How long it may take until what was set is everywhere, on a machine that runs other tests.
SOON_S = 45.0
#: A pipe, and what is read from it at once: more than that a trial can't send any more.
PIPE_BYTES = 3 * 2**20
JOURNAL_MB = 0.1

#: A driver tells the bytes that its journal may have, and hears how many it has, with its lock.
OFTEN = Timing(keep_lock_s=0.3)


class Running:
    """An experiment of one trial, in a thread."""

    def __init__(self, url: str, name: str, trainable: Callable[..., object], journal_mb: float, **config: Any) -> None:
        run = mqtune.RunOptions(max_concurrent=1, journal_mb=journal_mb, timing=OFTEN)
        tuner = tuner_on(url, trainable, {**config, "x": mqtune.uniform(0, 1)}, name=name, max_trials=1, run=run)
        self._results: list[mqtune.Results] = []
        self._thread = threading.Thread(target=lambda: self._results.append(tuner.run()), daemon=True)
        self._thread.start()

    @property
    def results(self) -> mqtune.Results:
        """Its results, once it has ended."""
        self._thread.join(SOON_S)
        [results] = self._results
        return results


def test_a_flooding_trial_waits_until_its_journal_may_have_more_and_holds_up_no_other_experiment(
    fleet: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    name, told = f"flood-{os.getpid()}", tmp_path / "told"
    flood = Running(fleet, name, trainables.floods, JOURNAL_MB, told=str(told), steps=60_000)
    sizes: list[int] = []
    with contextlib.closing(connect(fleet)) as client:

        def size() -> int:
            return int(client.hget(ExperimentKeys(name).meta, "bytes") or 0)  # type: ignore[arg-type]

        def why(*trial: str) -> dict[str, str]:
            done = CliRunner().invoke(group, ["why", name, *trial, "--json", "--broker", fleet])
            found: dict[str, str] = json.loads(done.stdout)
            return found

        def has_settled() -> bool:
            sizes.append(size())
            return sizes[-5:] == [sizes[-1]] * 5

        eventually(lambda: client.hexists(ExperimentKeys(name).meta, "definition"), SOON_S)
        eventually(lambda: why()["cause"] == "journal full", SOON_S)
        eventually(has_settled, SOON_S)
        assert size() < JOURNAL_MB * 10**6 + PIPE_BYTES
        assert not told.exists()
        reason = why("0001")
        assert (reason["cause"], f"mqtune set {name} journal_mb=" in reason["way_out"]) == ("journal full", True)
        assert "MB used of 0.1 MB: no trial begins, and report() waits" in reason["text"]
        assert "its journal is full" in caplog.text

        other = Running(fleet, f"other-{os.getpid()}", trainables.counts, 1000.0, steps=30, step_s=0.01, saves=True)
        assert [trial.status for trial in other.results.trials] == [TrialStatus.COMPLETED]
        assert size() == sizes[-1]

        done = CliRunner().invoke(group, ["set", name, "journal_mb=1000", "--broker", fleet])
        assert done.exit_code == 0, done.output
        [trial] = flood.results.trials
        assert (trial.status, len(trial.attempts)) == (TrialStatus.COMPLETED, 1)
        assert [report.metrics["step"] for report in flood.results.reports()] == list(range(1, 60_001))
