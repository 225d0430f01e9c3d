"""An experiment whose journal is full: its trials wait, others go on, and it goes on once its journal may have more, or ends."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trainables
from click.testing import CliRunner
from restartable import RestartableRedis
from running import running_worker
from waiting import eventually

import mqtune
from mqtune.cli import group
from mqtune.core.keys import ExperimentKeys
from mqtune.core.owner import this_owner
from mqtune.core.trial import TrialStatus

#: How long it may take until what was set is everywhere, on a machine that runs other tests.
SOON_S = 45.0
#: A pipe, and what is read from it at once: more than that a trial can't send any more.
PIPE_BYTES = 3 * 2**20
JOURNAL_MB = 0.1

_names = itertools.count(1)


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestartableRedis]:
    folder = tmp_path_factory.mktemp("full-journal")
    options = ("--gpus", "0", "--slots", "2")
    with (
        contextlib.closing(RestartableRedis(folder)) as server,
        running_worker(server.url, folder / "worker.log", *options),
    ):
        yield server


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver says what its journal may have, and hears how much it has, with its lock."""
    monkeypatch.setattr("mqtune.driver.timers.KEEP_LOCK_S", 0.3)


class Flooded:
    """An experiment of one trial that reports without end, in a thread, until its journal is full."""

    def __init__(self, server: RestartableRedis, folder: Path, *, steps: int, journal_mb: float = JOURNAL_MB) -> None:
        self.server = server
        self.told = folder / "told"
        self.name = f"flood-{os.getpid()}-{next(_names)}"
        self.tuner = mqtune.Tuner(
            trainables.floods,
            {"told": str(self.told), "steps": steps, "x": mqtune.uniform(0, 1)},
            metric="loss",
            mode="min",
            backend=server.url,
            run=mqtune.RunOptions(progress=False, journal_mb=journal_mb),
            name=self.name,
            max_trials=1,
        )
        self.results: list[mqtune.Results] = []
        self.thread = threading.Thread(target=lambda: self.results.append(self.tuner.run()), daemon=True)
        self.thread.start()
        eventually(lambda: self.why()["cause"] == "journal full", SOON_S)

    @property
    def size(self) -> int:
        return int(self.server.client.hget(ExperimentKeys(self.name).meta, "bytes") or 0)

    def says(self, *arguments: str) -> str:
        done = CliRunner().invoke(group, [*arguments, "--broker", self.server.url])
        assert done.exit_code == 0, (done.output, done.exception)
        return done.stdout

    def why(self, *trial: str) -> dict[str, str]:
        if not self.server.client.hexists(ExperimentKeys(self.name).meta, "definition"):
            return {"cause": "it has not begun"}
        found: dict[str, str] = json.loads(self.says("why", self.name, *trial, "--json"))
        return found

    def ended(self) -> tuple[TrialStatus, int]:
        """How its trial has ended, and how many reports there are: each once, in order."""
        self.thread.join(SOON_S)
        [results] = self.results
        steps = [report.metrics["step"] for report in results.reports("0001")]
        assert steps == list(range(1, len(steps) + 1))
        [trial] = results.trials
        assert len(trial.attempts) == 1
        return trial.status, len(steps)


def stands_still(flooded: Flooded) -> int:
    """How many bytes its journal has, once it gets no more."""
    sizes = [flooded.size]

    def has_settled() -> bool:
        sizes.append(flooded.size)
        return sizes[-5:] == [sizes[-1]] * 5

    eventually(has_settled, SOON_S)
    return sizes[-1]


def test_a_trial_that_floods_waits_while_another_experiment_of_its_worker_goes_on_and_goes_on_once_its_journal_may_have_more(
    redis_server: RestartableRedis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    flooded = Flooded(redis_server, tmp_path, steps=60_000)
    before = stands_still(flooded)
    assert before < JOURNAL_MB * 10**6 + PIPE_BYTES
    assert not flooded.told.exists()
    reason = flooded.why("0001")
    assert (reason["cause"], f"mqtune set {flooded.name} journal_mb=" in reason["way_out"]) == ("journal full", True)
    assert "MB used of 0.1 MB: no trial begins, and report() waits" in reason["text"]
    assert "its journal is full" in caplog.text

    other = mqtune.Tuner(
        trainables.counts,
        {"steps": 30, "step_s": 0.01, "saves": True, "x": mqtune.uniform(0, 1)},
        metric="loss",
        mode="min",
        backend=redis_server.url,
        run=mqtune.RunOptions(progress=False, max_concurrent=1),
        name=f"{flooded.name}-other",
        max_trials=2,
    ).run()
    assert [trial.status for trial in other.trials] == [TrialStatus.COMPLETED] * 2
    assert flooded.size == before

    flooded.says("set", flooded.name, "journal_mb=1000")

    assert flooded.ended() == (TrialStatus.COMPLETED, 60_000)


def test_a_journal_is_no_larger_than_an_operators_cap_lets_it_be_and_why_says_who_has_set_that(
    redis_server: RestartableRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqtune.driver.timers.LOOK_S", 0.2)
    cap = "quota", "flood-*", "--broker", redis_server.url
    assert CliRunner().invoke(group, [*cap, "--journal-mb", str(JOURNAL_MB)]).exit_code == 0
    try:
        flooded = Flooded(redis_server, tmp_path, steps=60_000, journal_mb=1000.0)
        assert stands_still(flooded) < JOURNAL_MB * 10**6 + PIPE_BYTES
        assert (
            f"a journal of 0.1 MB is the most for experiments whose names fit flood-*, as set by {this_owner()}"
            in (flooded.why()["text"])
        )
    finally:
        assert CliRunner().invoke(group, [*cap, "--drop"]).exit_code == 0

    assert flooded.ended() == (TrialStatus.COMPLETED, 60_000)
