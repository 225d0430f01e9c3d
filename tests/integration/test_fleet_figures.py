"""The figures of a whole fleet, read from a real server with the accounts of those who watch it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import redis
from accounts import Accounts
from contract.journals.world import ASSIGNMENT, LONG_S, staged, started
from fleets import impairment, worker
from waiting import eventually

from mqtune.backends import EmbeddedServer
from mqtune.core.events import START, ExperimentCreated
from mqtune.core.priorities import lists_of
from mqtune.core.resources import QUEUE_VERSION
from mqtune.core.timing import Timing
from mqtune.core.trial import TrialId
from mqtune.core.version import __version__
from mqtune.core.worker_info import busy_as
from mqtune.journal import Claim, DriverState, Fleet, RedisJournal
from mqtune.services.exporter import fleet
from mqtune.services.exporter.fleet import METRICS, FleetReader
from mqtune.services.shares.demands import Demands
from mqtune.services.shares.divider import Demand
from mqtune.services.shares.quotas import Quotas

QUEUE: Final = f"mqtune-{QUEUE_VERSION}.gpu1.cpu4"


class Driven:
    """An experiment with a driver that does nothing by itself."""

    def __init__(self, client: redis.Redis, name: str, user: str = "ada", account: str = "a-driver") -> None:
        self.journal = RedisJournal(client, name, patience_s=5)
        self.journal.lock("driver", "a driver", Timing().lock_s)
        self._read_to = ""
        created = ExperimentCreated(name=name, definition={}, at=1.0, account=account, user=user, host="lap")
        self.journal.record(created.encode(), definition=b"definition")
        self._count = 0

    def keep_lock(self, read_to: str | None = None) -> None:
        self._read_to = self._read_to if read_to is None else read_to
        self.journal.heartbeat("driver", Timing().lock_s, DriverState(read_to=self._read_to))

    def stage(self) -> Claim:
        self._count += 1
        trial = TrialId(f"{self._count:04d}")
        self.journal.stage(trial, 1, ASSIGNMENT, staged(trial))
        return Claim(trial, 1, f"{self._count}")

    def start(self) -> Claim:
        claim = self.stage()
        self.journal.claim(claim, f"w-{claim.token}", LONG_S, started(claim))
        return claim


def looked(reader: FleetReader) -> dict[str, float]:
    """Each value, by its metric without the project's name and its labels; that it has all of these is checked."""
    found = {}
    for figure in reader():
        assert (figure.text, figure.labels) == METRICS[figure.name]
        for labels, value in figure.values.items():
            assert len(labels) == len(figure.labels)
            found[" ".join([figure.name.removeprefix("mqtune_"), *labels])] = value
    return found


@pytest.fixture
def accounts(redis_server: EmbeddedServer, redis_client: redis.Redis) -> Iterator[Accounts]:
    with contextlib.closing(Accounts(redis_server.url)) as accounts:
        yield accounts


@pytest.fixture
def reader(accounts: Accounts) -> FleetReader:
    return FleetReader(accounts.make("monitor"))


def test_a_monitor_sees_what_waits_who_has_the_slots_and_which_drivers_live(
    redis_client: redis.Redis, reader: FleetReader, accounts: Accounts
) -> None:
    Quotas(redis_client, patience_s=5).set("dig*", 3)
    digits, gone = Driven(redis_client, "digits"), Driven(redis_client, "gone", "eve", "")
    digits.start()
    digits.stage()
    digits.stage()
    # It has said what it has read, as drivers do while they live.
    entry = gone.journal.read(START.entry, count=1)[0].id
    gone.keep_lock(read_to=entry)
    gone.journal.unlock("driver")
    busy = {busy_as("digits"): 1}
    impaired = [impairment(device="3", since=time.time() - 90)]
    Fleet(redis_client, patience_s=5).join(worker(queue=QUEUE, slots=4, busy=busy, impairments=impaired), LONG_S)
    for name in lists_of(QUEUE)[:2]:
        redis_client.lpush(name, "{}")
    asked = {"priority": "low", "weight": 2.0, "waiting_s": 90.0}
    demand = Demand(experiment=busy_as("digits"), queues=[QUEUE], wanted=3, running=1, **asked)
    Demands(redis_client, patience_s=5).exchange("digits", demand)
    accounts.refused()

    mine = "digits ada a-driver"
    seen = eventually(lambda: (found := looked(reader))[f"experiment_waiting_oldest_seconds {mine}"] and found)

    assert seen["redis_up"] == 1
    assert seen["redis_memory_bytes"] > 1e5
    assert seen["redis_memory_limit_bytes"] == 0
    names = f"workers {QUEUE} {__version__}", f"slots {QUEUE}", f"slots_busy {QUEUE}"
    assert [seen[f"queue_{name}"] for name in names] == [1, 4, 1]
    assert [seen[f"queue_waiting {QUEUE} {priority}"] for priority in ("high", "normal", "low")] == [1, 1, 0]
    assert 85 < seen["fleet_impaired_seconds w@h 3 memory"] < 600
    assert [seen[f"experiment_{name} {mine}"] for name in ("running", "waiting", "driver_up")] == [1, 2, 1]
    assert [seen[f"quota_{name} dig*"] for name in ("slots", "slots_used")] == [3, 1]
    shares = ("slots_held", "slots_wanted", "slots_entitled", "share", "starved_seconds")
    assert [seen[f"experiment_{name} {mine} low"] for name in shares] == [1, 3, 3, 2, 90]
    assert seen[f"experiment_journal_bytes {mine}"] > 100
    assert abs(seen[f"experiment_last_event_timestamp_seconds {mine}"] - time.time()) < 600
    # Nobody has the other one, which has not ended.
    assert seen["experiment_driver_up gone eve "] == 0
    assert "experiment_driver_behind_seconds gone eve " not in seen
    assert accounts.refused() == []


def test_a_driver_that_does_not_read_on_is_behind(redis_client: redis.Redis, reader: FleetReader) -> None:
    name, digits = "experiment_driver_behind_seconds digits ada a-driver", Driven(redis_client, "digits")
    assert name not in looked(reader), "as it has not said yet what it has read"

    def lag() -> float:
        digits.keep_lock()
        return looked(reader)[name]

    entry = digits.journal.read(START.entry, count=1)[0].id
    digits.keep_lock(read_to=entry)
    assert lag() == 0
    digits.stage()
    assert eventually(lambda: lag() > 0.05)
    newest = digits.journal.read(entry, count=10)[-1].id
    digits.keep_lock(read_to=newest)
    assert lag() == 0
    RedisJournal(redis_client, "digits", patience_s=5).lock("heir", "its heir", 60, dead="a driver")
    assert name not in looked(reader), "the next driver has not said yet what it has read"


def test_a_server_that_does_not_answer_is_a_figure_and_is_looked_at_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with EmbeddedServer.start(tmp_path) as server:
        read = FleetReader(server.url, timing=Timing(figures_answer_s=1.0))
        assert looked(read)["redis_up"] == 1
        os.kill(server.pid, signal.SIGSTOP)
        try:
            assert [looked(read), looked(read)] == [{"redis_up": 0}] * 2
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert eventually(lambda: looked(read)["redis_up"] == 1)
        server.stop()
        assert looked(read) == {"redis_up": 0}

    told = [record.getMessage() for record in caplog.records if record.name == fleet.__name__]
    assert len([text for text in told if "does not answer" in text]) == 2, "once for each time that it is away"
