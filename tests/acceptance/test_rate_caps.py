"""Caps of reports a second and requests a minute, and a full journal: who is over one waits, or is refused, hears why, and holds nobody else up."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import threading
import time
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
from mqtune.core.errors import RequestRefused
from mqtune.core.events import Reports, decode_event
from mqtune.core.keys import ExperimentKeys
from mqtune.core.owner import this_owner
from mqtune.core.timing import Timing
from mqtune.core.trial import TrialStatus
from mqtune.journal import RedisJournal, entry_time

#: How long it may take until what was set is everywhere, on a machine that runs other tests.
SOON_S = 45.0
REPORTS_PER_S = 200
#: A trial's pipe holds a few hundred of such reports, so that report() waits with the others.
ALSO = {"text": "x" * 4_000}
STEPS = 2_000
#: A pipe, and what is read from it at once: more than that a trial can't send any more.
PIPE_BYTES = 3 * 2**20
JOURNAL_MB = 0.1
#: Of a trial that is held up by nothing, on a machine that runs other tests.
DELAY_S = 2.0

_names = itertools.count(1)


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestartableRedis]:
    folder = tmp_path_factory.mktemp("rate-caps")
    options = ("--gpus", "0", "--slots", "2")
    with (
        contextlib.closing(RestartableRedis(folder)) as server,
        running_worker(server.url, folder / "worker.log", *options),
    ):
        yield server


Says = Callable[..., str]
#: A driver says what its journal may have, and hears of caps, more often than usual.
OFTEN = Timing(keep_lock_s=0.3, look_at_shares_s=0.2)


@pytest.fixture
def says(redis_server: RestartableRedis) -> Says:
    """Run a command, and return what it says."""

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(group, [*arguments, "--broker", redis_server.url])
        assert done.exit_code == 0, (done.output, done.exception)
        return done.stdout

    return run


@pytest.fixture
def cap(says: Says) -> Iterator[Callable[[str, int], str]]:
    """Cap the experiments whose names begin with "capped", and return whose cap it is, in words."""

    def set_cap(option: str, most: int) -> str:
        says("quota", "capped-*", option, str(most))
        return f"are the most for experiments whose names fit capped-*, as set by {this_owner()}"

    yield set_cap
    says("quota", "capped-*", "--drop")


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


def test_a_trial_that_reports_without_end_keeps_to_its_cap_loses_nothing_and_slows_no_other_experiment_of_its_worker(
    redis_server: RestartableRedis,
    cap: Callable[[str, int], str],
    says: Says,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    whose = cap("--reports-per-s", REPORTS_PER_S)
    told = str(tmp_path / "told")
    flood = Running(redis_server, "capped", trainables.floods, told=told, steps=STEPS, also=ALSO)
    eventually(flood.has_reported, SOON_S)
    other = Running(redis_server, "other", trainables.counts, steps=100, step_s=0.01, saves=False)

    def why() -> dict[str, str]:
        found: dict[str, str] = json.loads(says("why", flood.name, "0001", "--json"))
        return found

    # One answer is looked at: the flood lasts for seconds.
    found = eventually(lambda: (answer := why())["cause"] == "too fast" and answer, SOON_S)
    too_fast = f"its trials report faster than they may, and report() waits: {REPORTS_PER_S} reports a second {whose}"
    assert too_fast in found["text"]
    assert "mqtune quota" in found["way_out"]

    assert [trial.status for trial in other.results.trials] == [TrialStatus.COMPLETED]
    delays = [at - made for at, made, _ in other.reports()]
    assert len(delays) == 100
    assert max(delays) < DELAY_S
    [trial] = flood.results.trials
    assert (trial.status, len(trial.attempts)) == (TrialStatus.COMPLETED, 1)
    journaled = flood.reports()
    assert [step for _, _, step in journaled] == list(range(1, STEPS + 1))
    seconds, made_in_s = (journaled[-1][i] - journaled[0][i] for i in (0, 1))
    # A second's reports may come ahead; at the end nothing waits that the trial has sent already.
    beside = REPORTS_PER_S + PIPE_BYTES // len(ALSO["text"])
    assert (STEPS - beside) / seconds <= REPORTS_PER_S
    assert made_in_s > seconds / 2, "report() does not wait"
    assert f"experiment {flood.name}: {too_fast}" in caplog.messages


def test_requests_over_a_cap_are_refused_with_its_name_and_neither_stall_the_driver_nor_keep_others_from_theirs(
    redis_server: RestartableRedis, cap: Callable[[str, int], str], says: Says
) -> None:
    whose = cap("--requests-per-min", 10)
    steered = Running(redis_server, "capped", trainables.counts, steps=3_000, step_s=0.01, saves=False)
    other = Running(redis_server, "other", trainables.counts, steps=3_000, step_s=0.01, saves=False)
    eventually(lambda: steered.has_begun and steered.has_reported() and other.has_reported(), SOON_S)
    refused, began = [], time.monotonic()
    with mqtune.Client(redis_server.url) as client:
        handle = client.experiment(steered.name)
        for number in range(50):
            try:
                assert handle.label(note=f"note {number}", timeout_s=SOON_S).is_done
            except RequestRefused as error:
                refused.append(str(error))
        assert client.experiment(other.name).label(note="a note", timeout_s=SOON_S).is_done

    # One comes in each six seconds.
    assert 10 <= 50 - len(refused) <= 11 + (time.monotonic() - began) / 6
    assert f"takes no more requests for now, and this one was not made: 10 requests a minute {whose}" in refused[0]

    def refusal() -> str:
        done = CliRunner().invoke(group, ["label", steered.name, "--note", "more", "--broker", redis_server.url])
        return done.output if done.exit_code == 1 else ""

    # Another one may have come in by now.
    assert whose in " ".join(eventually(refusal, SOON_S).split())

    says("quota", "capped-*", "--requests-per-min", "1000")

    def can_be_ended() -> bool:
        arguments = ["stop", steered.name, "--experiment", "--now", "--broker", redis_server.url]
        return CliRunner().invoke(group, arguments).exit_code == 0

    eventually(can_be_ended, SOON_S)
    says("stop", other.name, "--experiment", "--now")
    assert [each.results.outcome for each in (steered, other)] == ["finished", "finished"]


def test_a_trial_that_floods_waits_while_another_experiment_of_its_worker_goes_on_and_goes_on_once_its_journal_may_have_more(
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
