"""Quotas on a real server: no claim goes beyond one, whatever its driver wants, and what is not claimed is not lost."""

from __future__ import annotations

import json
import math
import re

import pytest
import redis
from click.testing import CliRunner
from contract.journals.gangs import ANY
from contract.journals.world import ASSIGNMENT, LONG_S, ONE, ended, staged, started

from mqtune.backends import EmbeddedServer
from mqtune.cli import group
from mqtune.core.errors import ConfigurationError
from mqtune.core.keys import QUOTAS, quota_key
from mqtune.core.owner import this_owner
from mqtune.core.tasks import task_names
from mqtune.core.trial import TrialId
from mqtune.journal import Claim, Grant, RedisJournal, Unclaimed
from mqtune.services.shares.demands import Demands
from mqtune.services.shares.divider import AGING_S, Cap
from mqtune.services.shares.quotas import Quota, Quotas

#: How long the server keeps what runs under a quota.
KEPT_S = 3600


@pytest.fixture
def quotas(redis_client: redis.Redis) -> Quotas:
    return Quotas(redis_client, patience_s=1.0)


class Many:
    """An experiment with trials to claim."""

    def __init__(self, client: redis.Redis, name: str) -> None:
        self.journal = RedisJournal(client, name, patience_s=1.0)
        self.journal.lock("owner", "driver", LONG_S)
        self._count = 0

    def stage(self) -> Claim:
        self._count += 1
        trial = TrialId(f"{self._count:04d}")
        self.journal.stage(trial, 1, ASSIGNMENT, staged(trial))
        return Claim(trial, 1, f"token-{trial}")

    def claim(self, claim: Claim, lease_s: float = LONG_S) -> str:
        answer = self.journal.claim(claim, "w", lease_s, started(claim))
        return answer if isinstance(answer, str) else "granted"

    def start(self, lease_s: float = LONG_S) -> str:
        return self.claim(self.stage(), lease_s)


def test_no_more_run_than_a_quota_allows_of_all_that_fall_under_it(redis_client: redis.Redis, quotas: Quotas):
    first, second, other = (Many(redis_client, name) for name in ("team-a.1", "team-a.2", "team-axx1"))
    quotas.set("team-a.*", 2)
    quotas.set("*.1", 5)

    one, two, three = first.stage(), second.stage(), first.stage()
    assert [first.claim(one), first.claim(one), second.claim(two)] == ["granted"] * 3
    entries = redis_client.xlen("mqtune:x:{team-a.1}:journal")
    redis_client.zincrby("mqtune:x:{team-a.1}:staged", -60_000, three.trial)
    assert first.journal.unclaimed(older_than_s=50) == [Unclaimed(three.trial, 1)]
    assert [first.claim(three), second.start()] == ["quota"] * 2
    assert other.start() == "granted"
    assert quotas.all() == [Quota("*.1", 5, 1), Quota("team-a.*", 2, 2)]
    # What was not claimed waits on, and its driver publishes it again after a while.
    assert redis_client.xlen("mqtune:x:{team-a.1}:journal") == entries
    assert first.journal.unclaimed() == [Unclaimed(three.trial, 1)]
    assert first.journal.unclaimed(older_than_s=5) == []
    assert second.journal.end(two, ended(two.trial))
    assert first.claim(three) == "granted"

    quotas.set("team-a.*", 3)
    assert second.start() == "granted"
    assert quotas.drop("team-a.*")
    assert not quotas.drop("team-a.*")
    assert second.start() == "granted"
    assert 0 < redis_client.ttl(quota_key("team-a.*")) <= KEPT_S


def test_a_gang_counts_as_many_slots_as_it_has_seats_and_begins_only_where_a_quota_has_room_for_all(
    redis_client: redis.Redis, quotas: Quotas
):
    many, gangs = Many(redis_client, "x"), RedisJournal(redis_client, "y", patience_s=1.0)
    gangs.lock("owner", "driver", LONG_S)
    quotas.set("*", 2)
    single = many.stage()
    many.claim(single)
    gangs.stage(ONE, 1, ANY, staged(ONE))
    seats = [Claim(name, 1, f"token-{name}") for name in task_names(ONE, 2)]

    assert [gangs.claim(each, "w", LONG_S, started(each)) for each in seats] == ["quota"] * 2
    many.journal.end(single, ended(single.trial))
    answers = [gangs.claim(each, "w", LONG_S, started(each)) for each in seats]

    assert [isinstance(answer, Grant) for answer in answers] == [False, True]
    assert [quota.running for quota in quotas.all()] == [2]
    assert many.start() == "quota"
    assert gangs.end(seats[1], ended(ONE))
    assert many.start() == "granted"


def test_what_runs_when_a_quota_is_set_counts_from_the_next_heartbeat_on(redis_client: redis.Redis, quotas: Quotas):
    many = Many(redis_client, "x")
    claim = many.stage()
    many.claim(claim)
    quotas.set("x", 1)

    assert many.journal.renew([claim], LONG_S) == [""]
    assert many.start() == "quota"


@pytest.mark.parametrize(
    ("pattern", "slots"), [("x", "many"), ("x", "-1"), ("*", "9" * 5_000), ("[", "0"), (b"\xff", "0")]
)
def test_what_is_no_quota_in_redis_is_not_listed_and_keeps_nothing_from_running(
    redis_client: redis.Redis, quotas: Quotas, pattern: str | bytes, slots: str
):
    redis_client.hset(QUOTAS, pattern, slots)
    many = Many(redis_client, "x")
    claim = many.stage()

    assert quotas.all() == []
    assert many.claim(claim) == "granted"
    assert many.journal.renew([claim], LONG_S) == [""]
    assert many.journal.end(claim, ended(claim.trial)) is True


def test_after_how_long_an_experiment_gets_a_slot_is_set_for_all_and_is_no_quota(
    redis_server: EmbeddedServer, redis_client: redis.Redis, quotas: Quotas, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MQTUNE_BROKER", redis_server.url)
    demands = Demands(redis_client, patience_s=1.0)

    def run(*arguments: str) -> str:
        return CliRunner().invoke(group, ["fleet", "quota", *arguments]).output.strip().splitlines()[-1]

    def told() -> float:
        table = demands.table()
        assert table is not None
        return table.aging_s

    assert told() == AGING_S
    assert run() == "an experiment without a slot gets one after 1 d 0 h, whatever its priority"
    assert run("--aging", "4") == "an experiment without a slot gets one after 4 h 00 min, whatever its priority"
    assert quotas.aging_s() == told() == 4 * 3600
    assert run("--aging", "0") == "an experiment of low priority may wait for a slot forever"
    assert quotas.aging_s() == told() == math.inf
    assert quotas.all() == []
    for unsound in (b"-1", b"nan", b"soon"):
        redis_client.hset(QUOTAS, ":aging_s", unsound)
        assert told() == AGING_S
    for wrong in (0.0, -1.0, math.nan):
        with pytest.raises(ConfigurationError, match="is no time above 0"):
            quotas.set_aging(wrong)
    assert "gets one after 4 h" in run("team-*", "2", "--aging", "4")
    assert [quota.pattern for quota in quotas.all()] == ["team-*"]
    assert "is not a number of slots" in run("team-*", "few")


def test_a_cap_is_set_heard_of_and_dropped_by_its_pattern(
    redis_server: EmbeddedServer, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MQTUNE_BROKER", redis_server.url)
    demands = Demands(redis_client, patience_s=1.0)

    def run(*arguments: str) -> str:
        return CliRunner().invoke(group, ["fleet", "quota", *arguments]).output

    shown = run("team-*", "5", "--priority", "normal", "--share", "2")

    table = demands.table()
    assert table is not None
    assert table.caps == {"team-*": Cap("normal", 2.0, by=str(this_owner()))}
    assert table.quotas == {"team-*": 5}
    assert re.search(r"team-\* +normal +2 +any +" + str(this_owner()), shown)
    assert json.loads(run("--json"))[1]["share"] == 2
    for unsound in (b"{", b'{"priority": "most", "share": 1, "by": ""}', b'{"priority": "low", "share": -1, "by": ""}'):
        redis_client.hset(QUOTAS, b":cap x", unsound)
        assert demands.table() == table
    assert Many(redis_client, "team-1").start() == "granted"
    assert "team-*" not in run("team-*", "none")
    assert "a cap needs a PATTERN of experiments" in run("--share", "2")
    run("both-*", "--share", "2")
    run("both-*", "--priority", "low")
    assert re.search(r"both-\* +low +2 +80 +", run("both-*", "--journal-mb", "80"))
    table = demands.table()
    assert table is not None
    assert table.caps["both-*"] == Cap("low", 2.0, 80.0, str(this_owner())), "the part that was not given stays"
    quotas = Quotas(redis_client, patience_s=1.0)
    for pattern, slots in (("team a", 1), ("", 1), ("x", -1), ("x", 1.5)):
        with pytest.raises(ConfigurationError):
            quotas.set(pattern, slots)
    for wrong in ({"share": -1.0}, {"journal_mb": 0.0}):
        with pytest.raises(ConfigurationError, match=r"share=-1|journal_mb=0"):
            quotas.set_cap("team-*", "olaf", **wrong)
