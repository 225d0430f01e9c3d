"""What experiments want of a fleet they share, on a real server."""

from __future__ import annotations

import json
from typing import Any

import kombu
import pytest
import redis
from fleets import worker
from kombu.transport import TRANSPORT_ALIASES
from waiting import eventually

from mqtune.backends import EmbeddedServer
from mqtune.core.keys import DEMANDS, SHARES
from mqtune.core.priorities import MESSAGE_PRIORITIES, lists_of
from mqtune.core.resources import QUEUE_VERSION
from mqtune.core.timing import Timing
from mqtune.journal import Fleet, RedisClient, celery_url
from mqtune.services.shares.demands import Demands
from mqtune.services.shares.divider import AGING_S, Demand, Share, Table
from mqtune.worker import TrialTransport

QUEUE = f"mqtune-{QUEUE_VERSION}.gpu0.cpu1"
#: Longer than a test takes.
HOLD_S = 100.0


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()


def wants(token: str, wanted: int = 3) -> Demand:
    return Demand(experiment=token, queues=[QUEUE], wanted=wanted, priority="high", weight=2.0, used=0.5)


class Driver:
    """What a driver does once a second, for an experiment whose token is its name."""

    def __init__(self, client: RedisClient, name: str) -> None:
        self.demands = Demands(client, patience_s=1.0)
        self.name = name

    def look(self, wanted: int = 3, running: int = 0, **details: Any) -> Share:
        demand = Demand(experiment=self.name, queues=[QUEUE], wanted=wanted, running=running, **details)
        share = self.demands.exchange(self.name, demand)
        assert share is not None
        return share


@pytest.fixture
def four_slots(redis_client: redis.Redis) -> None:
    Fleet(redis_client, patience_s=1.0).join(worker(queue=QUEUE, slots=4), HOLD_S)


def all_of(demands: Demands) -> Table | None:
    """What all want, by experiment: servers have no order."""
    found = demands.table()
    return found and Table(sorted(found.demands, key=lambda each: each.experiment), *found[1:])


def demand_of(**fields: Any) -> bytes:
    return b"99999999999999  " + as_json({"experiment": "x", "queues": [QUEUE], "wanted": 1, **fields})


def test_each_demand_holds_until_its_experiment_leaves_or_says_nothing_more(redis_client: RedisClient):
    demands = Demands(redis_client, patience_s=1.0)

    for token, wanted in (("a", 3), ("b", 5), ("a", 4)):
        demands.exchange(token, wants(token, wanted))
    assert all_of(demands) == ([wants("a", 4), wants("b", 5)], {}, AGING_S, {})
    demands.leave("b")
    redis_client.timing = Timing(lock_s=1.0)
    demands = Demands(redis_client, patience_s=1.0)
    demands.exchange("c", wants("c"))
    assert all_of(demands) == ([wants("a", 4), wants("c")], {}, AGING_S, {})
    # Who only looks neither keeps what has run out nor clears it away.
    assert eventually(lambda: all_of(demands) == ([wants("a", 4)], {}, AGING_S, {}))
    assert redis_client.hlen(DEMANDS) == 2
    demands.exchange("d", wants("d"))
    assert set(redis_client.hkeys(DEMANDS)) == {b"a", b"d"}


@pytest.mark.parametrize(
    "found",
    [
        b"no demand",
        b"99999999999999 \xc1",
        b"99999999999999  " + b"[" * 100_000,
        b"99999999999999  " + as_json([1, 2]),
        demand_of(experiment="y"),
        demand_of(queues=7),
        *(demand_of(wanted=wanted) for wanted in ("many", 10**400, -1)),
        *(demand_of(weight=weight) for weight in (0, "1", 1e-320)),
        *(demand_of(**{name: 10**400}) for name in ("running", "used")),
        demand_of(waiting_s="9"),
        demand_of(journal_mb=0),
        b"9" * 5_000 + demand_of(experiment="y")[14:],
    ],
)
def test_what_is_no_demand_is_left_out(redis_client: redis.Redis, found: bytes):
    redis_client.hset(DEMANDS, "x", found)

    demands = Demands(redis_client, patience_s=1.0)
    assert demands.exchange("a", wants("a")) == Share(priority="high")
    assert demands.table() == ([wants("a")], {}, AGING_S, {})


@pytest.mark.usefixtures("four_slots")
def test_who_comes_new_divides_and_the_others_hear_their_share_from_it(redis_client: Any):
    first, second = Driver(redis_client, "a"), Driver(redis_client, "b")
    assert first.look() == Share()
    one = redis_client.hget(SHARES, "number")
    assert first.look(running=4) == Share()
    assert redis_client.hget(SHARES, "number") == one

    assert second.look() == Share(limit=2, at_most=2, rivals=1)
    two = redis_client.hget(SHARES, "number")
    assert int(two) > int(one)
    assert first.look(running=4) == Share(limit=2, at_most=2, rivals=1, wanted=[QUEUE])
    assert redis_client.hget(SHARES, "number") == two, "it has a share, and so does not divide any more"
    # What it says is heard when the other one divides next.
    assert first.look(wanted=1, running=1).limit == 2
    assert second.look(running=2).limit == 3
    assert first.look(wanted=1, running=1).limit == 1

    second.demands.leave("b")
    assert first.look(running=1) == Share()
    assert redis_client.hkeys(DEMANDS) == [b"a"]


def test_what_a_silent_driver_does_not_use_is_lent_to_others_until_it_speaks_again(redis_client: RedisClient):
    Fleet(redis_client, patience_s=1.0).join(worker(queue=QUEUE, slots=4, busy={"b": 1}), HOLD_S)
    a, b = Driver(redis_client, "a"), Driver(redis_client, "b")
    # Other experiments' text is no clock.
    redis_client.hset(DEMANDS, "x", b"99999999999999  " + as_json({"experiment": "x", "queues": [QUEUE], "wanted": 0}))
    a.look(wanted=4)
    assert b.look(wanted=4, running=1).limit == 2
    assert a.look(wanted=4).limit == 2, "both are driven"
    redis_client.timing = Timing(lend_after_s=0.3)
    a = Driver(redis_client, "a")

    assert eventually(lambda: a.look(wanted=4).limit == 3), "of its two slots the silent one uses one"
    table = a.demands.table()
    assert table is not None
    assert {each.experiment: each.wanted for each in table.demands} == {"a": 4, "b": 1, "x": 0}

    b.look(wanted=4, running=1)
    assert eventually(lambda: (a.look(wanted=4).limit, b.look(wanted=4, running=1).limit) == (2, 2))


@pytest.mark.parametrize("kept", [b"", b"\x81\xa5limit\xa1x", b"\x81\xa8priority\xa1x", b"\x91" * 2_000])
@pytest.mark.usefixtures("four_slots")
def test_a_share_or_a_register_that_makes_no_sense_disturbs_no_driver(redis_client: redis.Redis, kept: bytes):
    first, second = Driver(redis_client, "a"), Driver(redis_client, "b")
    first.look()
    second.look()
    crews = first.demands.register.crews
    redis_client.hset(SHARES, mapping={"of:a": kept, "crews": kept, "busy": kept, "version": "another"})

    demand = Demand(experiment="a", queues=[QUEUE], wanted=3)
    assert first.demands.exchange("a", demand) is None
    assert first.demands.refresh().crews in ([], crews)
    assert first.demands.busy() == {}
    # With the next change, or look at the register, the table is whole again.
    assert second.look(wanted=1).limit == 1
    assert first.look().limit == 3


def test_workers_take_what_has_a_higher_priority_first(
    redis_server: EmbeddedServer, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
):
    with kombu.Connection(celery_url(redis_server.url)) as driver, driver.Producer() as producer:
        for name in ("low", "normal", "high"):
            producer.publish({"of": name}, routing_key=QUEUE, priority=MESSAGE_PRIORITIES[name])
    waiting = [redis_client.llen(name) for name in lists_of(QUEUE)]
    taken: list[Any] = []
    monkeypatch.setitem(TRANSPORT_ALIASES, "trials", f"{TrialTransport.__module__}:{TrialTransport.__name__}")
    with kombu.Connection(celery_url(redis_server.url).replace("redis+", "trials+")) as worker:
        queue = kombu.Queue(QUEUE, no_ack=True)
        with worker.Consumer(queue, callbacks=[lambda body, _: taken.append(body["of"])], no_ack=True):
            while len(taken) < len(waiting) - 1:
                worker.drain_events(timeout=10)

    assert waiting == [1, 1, 1, 0]
    assert taken == ["high", "normal", "low"]
