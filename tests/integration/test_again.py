"""Heartbeats that say again what the last one said, which take no script."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis
from accounts import Accounts
from contract.journals.world import ASSIGNMENT, INFO, LONG_S, decided, ended, staged, started

from mqtune.backends.local.server import EmbeddedServer
from mqtune.core.errors import NameTaken
from mqtune.core.keys import QUOTAS, WORKERS, ExperimentKeys, name_key, worker_key
from mqtune.core.trial import Intent, TrialId
from mqtune.journal.acl import Rule, account, password_hash, rules_of
from mqtune.journal.base import Answer, Claim
from mqtune.journal.connection import RedisClient, connect
from mqtune.journal.fleet import DESCRIBED_HOLDS, Fleet
from mqtune.journal.redis import RedisJournal

#: Longer than any lease that a test gives.
LONGER_S = 10 * LONG_S


class Beating:
    """A worker of two experiments, with two attempts of each."""

    def __init__(self, client: RedisClient) -> None:
        self.client: Any = client
        self.fleet = Fleet(client, patience_s=1.0)
        self.drivers = {name: RedisJournal(client, name) for name in ("x", "y")}
        self.journals = {name: RedisJournal(client, name) for name in ("x", "y")}
        self.claims = [Claim(TrialId(f"000{number}"), 1, "t") for number in (1, 2)]
        self.fleet.join(INFO, LONG_S)
        for name, journal in self.journals.items():
            self.drivers[name].lock("driver-1", "", LONG_S)
            for claim in self.claims:
                self.drivers[name].stage(claim.trial, 1, ASSIGNMENT, staged(claim.trial))
                journal.claim(claim, INFO.name, LONG_S, started(claim))
        # What there is to repeat, and by how much the server's clock is ahead, is known from here on.
        for _ in range(2):
            self.beat()

    def beat(self, hold_s: float = LONG_S) -> dict[str, list[Answer]]:
        """Do what a heartbeat does, and return the answers for the attempts of each experiment."""
        again = [each for journal in self.journals.values() if (each := journal.again(self.claims)) is not None]
        self.fleet.keep(INFO, hold_s, again)
        return {name: journal.renew(self.claims, hold_s) for name, journal in self.journals.items()}

    def calls(self, beat: Callable[[], object]) -> dict[str, int]:
        """Return how often the server has carried out each command meanwhile."""
        self.client.config_resetstat()
        beat()
        found = self.client.info("commandstats")
        return {name.removeprefix("cmdstat_"): each["calls"] for name, each in found.items()}

    def left_s(self, key: str, member: str) -> float:
        """Return for how long a lease, or the worker's place in the register, lasts."""
        seconds, microseconds = self.client.time()
        return float(self.client.zscore(key, member)) / 1000 - seconds - microseconds / 1e6


@pytest.fixture
def beating(redis_client: RedisClient) -> Beating:
    return Beating(redis_client)


LEASES = ExperimentKeys("x").leases
META = ExperimentKeys("x").meta


def test_a_heartbeat_to_which_nothing_is_new_takes_no_script_and_renews_all_for_its_time(beating: Beating):
    calls = beating.calls(lambda: beating.beat(LONGER_S))

    assert "evalsha" not in calls
    assert "eval" not in calls
    for key, member in ((WORKERS, INFO.name), *((LEASES, claim.trial) for claim in beating.claims)):
        assert LONG_S < beating.left_s(key, member) <= LONGER_S + 1
    assert LONG_S * 1000 < beating.client.pttl(name_key(INFO.name)) <= LONGER_S * 1000
    assert LONGER_S * 1000 < beating.client.pttl(worker_key(INFO.name)) <= DESCRIBED_HOLDS * LONGER_S * 1000


def test_a_heartbeat_counts_an_outage_also_where_it_takes_no_script(beating: Beating):
    before = [journal.outages for journal in beating.journals.values()]
    beating.client.connection_pool.disconnect()

    calls = beating.calls(beating.beat)

    assert "evalsha" not in calls
    assert [journal.outages for journal in beating.journals.values()] == [count + 1 for count in before]


def test_a_worker_whose_attempts_have_ended_leaves_nothing_in_the_experiment(beating: Beating):
    def marks() -> list[bytes]:
        return [field for field in beating.client.hkeys(META) if field.startswith(b"renewed:")]

    assert len(marks()) == 1
    first, second = beating.claims
    beating.journals["x"].end(first, ended(first.trial))
    beating.beat()
    beating.drivers["x"].reap(second.trial, 1, ended(second.trial))
    beating.journals["x"].end(second, ended(second.trial))
    beating.beat()

    assert marks() == []


def test_a_heartbeat_says_the_same_as_before_until_a_driver_has_decided(beating: Beating):
    assert beating.beat() == {"x": ["", ""], "y": ["", ""]}

    beating.drivers["x"].intend(beating.claims[1].trial, 1, Intent.STOP, decided(), ended())

    assert beating.beat() == {"x": ["", "stop"], "y": ["", ""]}
    assert beating.beat() == {"x": ["", "stop"], "y": ["", ""]}


def test_an_attempt_that_has_ended_meanwhile_is_fenced_and_gets_no_lease(beating: Beating):
    beating.journals["x"].end(beating.claims[0], ended())

    assert beating.beat()["x"] == ["fenced", ""]
    assert beating.client.zscore(LEASES, beating.claims[0].trial) is None


def test_a_lease_that_the_server_has_lost_is_there_again(beating: Beating):
    beating.client.zrem(LEASES, beating.claims[0].trial)

    assert beating.beat()["x"] == ["", ""]
    assert beating.left_s(LEASES, beating.claims[0].trial) > 0


@pytest.mark.parametrize("key", [WORKERS, worker_key(INFO.name), name_key(INFO.name)])
def test_what_the_server_has_lost_of_a_worker_is_there_again(beating: Beating, key: str):
    beating.client.delete(key)

    beating.beat()

    assert [info.name for info in beating.fleet.workers()] == [INFO.name]
    assert beating.client.get(name_key(INFO.name)).decode() == beating.fleet.token


def test_a_quota_that_is_set_counts_what_runs_with_the_next_heartbeat(beating: Beating):
    beating.client.hset(QUOTAS, "x*", 1)

    beating.beat()

    counted = beating.client.zrange(f"{QUOTAS.removesuffix('s')}:x*", 0, -1)
    assert counted == [f"x/{claim.trial}".encode() for claim in beating.claims]


def test_attempts_that_nobody_drives_end_where_their_experiment_says_so(beating: Beating):
    beating.client.hset(META, mapping={"on_loss": "stop", "loss_ms": 0, "driver_until": 1})

    assert beating.beat() == {"x": ["undriven", "undriven"], "y": ["", ""]}


def test_broken_keys_of_an_experiment_cost_no_other_its_leases(beating: Beating):
    beating.client.set(LEASES, "broken")

    with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
        beating.beat(LONGER_S)

    assert beating.journals["y"].renew(beating.claims, LONGER_S) == ["", ""]
    assert beating.left_s(ExperimentKeys("y").leases, beating.claims[0].trial) > LONG_S
    assert beating.left_s(WORKERS, INFO.name) > LONG_S


@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
def test_times_are_the_servers_also_after_its_clock_was_set(
    beating: Beating, monkeypatch: pytest.MonkeyPatch, ahead_s: float
):
    monkeypatch.setattr(beating.fleet, "_ahead_s", beating.fleet._ahead_s + ahead_s)

    beating.beat(LONGER_S)

    for key, member in ((WORKERS, INFO.name), (LEASES, beating.claims[0].trial)):
        assert LONG_S < beating.left_s(key, member) <= LONGER_S + 1


def test_answers_of_a_heartbeat_are_not_those_of_a_later_one(beating: Beating):
    again = beating.journals["x"].again(beating.claims)
    assert again is not None
    beating.fleet.keep(INFO, LONG_S, [again])
    beating.journals["x"].renew(beating.claims, LONG_S)

    assert "evalsha" in beating.calls(lambda: beating.journals["x"].renew(beating.claims, LONG_S))


def test_a_name_that_another_process_has_taken_is_noticed(beating: Beating, redis_client: RedisClient):
    Fleet(redis_client, patience_s=1.0).take_name(INFO.name, LONG_S, dead=beating.fleet.token)

    with pytest.raises(NameTaken):
        beating.fleet.keep(INFO, LONG_S)


def test_a_wish_that_the_worker_drains_is_heard(beating: Beating):
    beating.fleet.drain(INFO)

    assert beating.fleet.keep(INFO, LONG_S) is True
    assert beating.fleet.keep(replace(INFO, joined_at=2.0), LONG_S) is False


@pytest.fixture
def older(redis_server: EmbeddedServer, redis_client: RedisClient) -> Iterator[RedisClient]:
    """A client with an account that was made when heartbeats were scripts alone."""
    accounts = Accounts(redis_server.url)
    new = ("getex", "hlen", "pexpire")
    rules = [
        Rule(" ".join(name for name in rule.commands.split() if name not in new), rule.keys, rule.channels)
        for rule in rules_of("worker")
    ]
    line = account("older", password_hash("works-8"), [rule for rule in rules if rule.commands])
    try:
        accounts.admin.execute_command(*line.split())
        with contextlib.closing(connect(accounts.url_of("older", "works-8"), role="worker")) as client:
            yield client
    finally:
        accounts.admin.execute_command("ACL", "DELUSER", "older")
        accounts.admin.close()


def test_an_account_that_may_not_do_without_scripts_uses_them(beating: Beating, older: RedisClient):
    fleet = Fleet(older, patience_s=1.0, token=beating.fleet.token)
    fleet.join(INFO, LONG_S)

    for _ in range(3):
        assert fleet.keep(INFO, LONGER_S) is False

    assert LONG_S < beating.left_s(WORKERS, INFO.name) <= LONGER_S
    assert "getex" not in beating.calls(lambda: fleet.keep(INFO, LONG_S))


def test_an_error_among_answers_is_one_of_them_and_moves_no_other(redis_client: RedisClient):
    redis_client.set("text", "a")

    first, error, last = redis_client.execute_together([("GET", "text"), ("HGETALL", "text"), ("EXISTS", "text")])

    assert (first, last) == (b"a", 1)
    assert isinstance(error, redis.exceptions.ResponseError)
    assert redis_client.get("text") == b"a"
