"""A full journal: its trials wait, the reason is said, and no other experiment is held up."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trainables
from click.testing import CliRunner
from restartable import RestartableRedis
from running import running_worker, tuner_on
from waiting import eventually

import mqtune
from mqtune.cli import group
from mqtune.core.events import Reports, decode_event
from mqtune.core.keys import ExperimentKeys
from mqtune.core.timing import Timing
from mqtune.core.trial import TrialStatus
from mqtune.journal import RedisJournal, entry_time

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


Says = Callable[..., str]
#: A driver tells the bytes that its journal may have, and hears how many it has, with its lock.
OFTEN = Timing(keep_lock_s=0.3)


@pytest.fixture
def says(redis_server: RestartableRedis) -> Says:
    """Run a command, and return what it says."""

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(group, [*arguments, "--broker", redis_server.url])
        assert done.exit_code == 0, (done.output, done.exception)
        return done.stdout

    return run


class Running:
    """An experiment of one trial, in a thread."""

    def __init__(
        self,
        server: RestartableRedis,
        kind: str,
        trainable: Callable[..., object],
        journal_mb: float = 1000.0,
        **config: object,
    ) -> None:
        self.name = f"{kind}-{os.getpid()}-{next(_names)}"
        self._server = server
        tuner = tuner_on(
            server.url,
            trainable,
            {**config, "x": mqtune.uniform(0, 1)},
            name=self.name,
            max_trials=1,
            run=mqtune.RunOptions(max_concurrent=1, journal_mb=journal_mb, timing=OFTEN),
        )
        self._results: list[mqtune.Results] = []
        self._thread = threading.Thread(target=lambda: self._results.append(tuner.run()), daemon=True)
        self._thread.start()

    @property
    def results(self) -> mqtune.Results:
        """Its results, once it has ended."""
        self._thread.join(SOON_S)
        [results] = self._results
        return results

    def reports(self) -> list[tuple[float, float, int]]:
        """When each report was in the journal and when it was made, and its step."""
        journal = RedisJournal(self._server.client, self.name, patience_s=1.0)
        found = []
        for entry in journal.read("0-0", count=100_000):
            event = decode_event(entry.data, entry.id)
            if isinstance(event, Reports):
                at = entry_time(entry.id)
                found += [(at, report.timestamp, report.metrics["step"]) for report in event]
        return found

    def has_reported(self) -> bool:
        return bool(self.reports())

    @property
    def has_begun(self) -> bool:
        return bool(self._server.client.hexists(ExperimentKeys(self.name).meta, "definition"))


def test_a_flooding_trial_waits_until_its_journal_may_have_more_and_holds_up_no_other_experiment(
    redis_server: RestartableRedis,
    says: Says,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    told = tmp_path / "told"
    flood = Running(redis_server, "flood", trainables.floods, JOURNAL_MB, told=str(told), steps=60_000)
    eventually(lambda: flood.has_begun, SOON_S)
    eventually(lambda: json.loads(says("why", flood.name, "--json"))["cause"] == "journal full", SOON_S)
    sizes: list[int] = []

    def size() -> int:
        return int(redis_server.client.hget(ExperimentKeys(flood.name).meta, "bytes") or 0)

    def has_settled() -> bool:
        sizes.append(size())
        return sizes[-5:] == [sizes[-1]] * 5

    eventually(has_settled, SOON_S)
    assert size() < JOURNAL_MB * 10**6 + PIPE_BYTES
    assert not told.exists()
    reason = json.loads(says("why", flood.name, "0001", "--json"))
    assert (reason["cause"], f"mqtune set {flood.name} journal_mb=" in reason["way_out"]) == ("journal full", True)
    assert "MB used of 0.1 MB: no trial begins, and report() waits" in reason["text"]
    assert "its journal is full" in caplog.text

    other = Running(redis_server, "other", trainables.counts, steps=30, step_s=0.01, saves=True)
    assert [trial.status for trial in other.results.trials] == [TrialStatus.COMPLETED]
    assert size() == sizes[-1]

    says("set", flood.name, "journal_mb=1000")

    [trial] = flood.results.trials
    assert (trial.status, len(trial.attempts)) == (TrialStatus.COMPLETED, 1)
    assert [step for _, _, step in flood.reports()] == list(range(1, 60_001))
