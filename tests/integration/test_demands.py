"""What experiments want of a fleet they share, on a real server."""

from __future__ import annotations

import json
import time
from typing import Any

import kombu
import pytest
import redis
from kombu.transport import TRANSPORT_ALIASES
from waiting import eventually

from mqtune.backends.local.server import EmbeddedServer
from mqtune.core.keys import DEMANDS
from mqtune.core.resources import lists_of
from mqtune.core.shares import AGING_S, MESSAGE_PRIORITIES, Demand, Table
from mqtune.journal import demands as module
from mqtune.journal.connection import celery_url
from mqtune.journal.demands import Demands
from mqtune.worker.app import TrialTransport

QUEUE = "mqtune-0-1.gpu0.cpu1"


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()


def in_order(demands: Demands, demand: Demand) -> Table | None:
    """What all want, by experiment: servers have no order."""
    found = demands.exchange(demand)
    return found and found._replace(demands=sorted(found.demands, key=lambda each: each.experiment))


def wants(token: str, wanted: int = 3) -> Demand:
    return Demand(experiment=token, queues=[QUEUE], wanted=wanted, priority="high", weight=2.0, used=0.5, quotas=[])


def test_each_hears_what_all_want_until_they_leave_or_say_nothing_more(
    redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
):
    demands = Demands(redis_client, patience_s=1.0)

    assert in_order(demands, wants("a")) == ([wants("a")], {}, AGING_S, {})
    demands.exchange(wants("b", 5))
    assert in_order(demands, wants("a", 4)) == ([wants("a", 4), wants("b", 5)], {}, AGING_S, {})
    demands.leave("b")
    monkeypatch.setattr(module, "DEMAND_S", 0.1)
    assert in_order(demands, wants("c")) == ([wants("a", 4), wants("c")], {}, AGING_S, {})
    # Who only looks neither keeps what has run out nor clears it away.
    assert eventually(lambda: demands.table() == ([wants("a", 4)], {}, AGING_S, {}))
    assert redis_client.hlen(DEMANDS) == 2
    assert eventually(lambda: demands.exchange(wants("a")) == ([wants("a")], {}, AGING_S, {}))
    assert redis_client.hlen(DEMANDS) == 1


@pytest.mark.parametrize(
    "found",
    [
        b"no demand",
        b"99999999999999 \xc1",
        b"99999999999999 " + b"[" * 100_000,
        b"99999999999999 " + as_json([1, 2]),
        b"99999999999999 " + as_json({"experiment": "x", "queues": [QUEUE], "wanted": "many"}),
        b"99999999999999 " + as_json({"experiment": "x", "queues": [QUEUE], "wanted": 1, "weight": 0}),
        b"99999999999999 " + as_json({"experiment": "y", "queues": [QUEUE], "wanted": 1}),
        b"99999999999999 " + as_json({"experiment": "x", "queues": 7, "wanted": 1}),
        b"99999999999999 " + as_json({"experiment": "x", "queues": [QUEUE], "wanted": 10**400}),
        b"99999999999999 " + as_json({"experiment": "x", "queues": [QUEUE], "wanted": -1}),
        b"99999999999999 " + as_json({"experiment": "x", "queues": [QUEUE], "wanted": 1, "running": 10**400}),
        b"99999999999999 " + as_json({"experiment": "x", "queues": [QUEUE], "wanted": 1, "weight": 10**400}),
        b"99999999999999 " + as_json({"experiment": "x", "queues": [QUEUE], "wanted": 1, "weight": 1e-320}),
        b"99999999999999 " + as_json({"experiment": "x", "queues": [QUEUE], "wanted": 1, "used": 10**400}),
        b"9" * 5_000 + b" " + as_json({"experiment": "y", "queues": [QUEUE], "wanted": 1}),
    ],
)
def test_what_is_no_demand_is_left_out(redis_client: redis.Redis, found: bytes):
    redis_client.hset(DEMANDS, "x", found)

    demands = Demands(redis_client, patience_s=1.0)
    assert demands.exchange(wants("a")) == ([wants("a")], {}, AGING_S, {})
    assert demands.table() == ([wants("a")], {}, AGING_S, {})


def test_a_later_versions_demand_is_read_as_far_as_it_is_known(redis_client: redis.Redis):
    body = {"experiment": "x", "queues": [QUEUE], "wanted": 1, "colour": "blue"}
    redis_client.hset(DEMANDS, "x", f"{time.time() * 2000:.0f} ".encode() + as_json(body))

    found = Demands(redis_client, patience_s=1.0).exchange(wants("a"))

    assert found is not None
    assert Demand(experiment="x", queues=[QUEUE], wanted=1) in found.demands


def test_a_table_that_is_none_is_warned_of_once_and_ends_no_driver(
    redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
):
    redis_client.set(DEMANDS, "something else")
    demands = Demands(redis_client, patience_s=1.0)

    assert demands.exchange(wants("a")) is None
    assert demands.exchange(wants("a")) is None
    assert demands.table() is None
    assert len(caplog.records) == 1


def test_workers_take_what_has_a_higher_priority_first(
    redis_server: EmbeddedServer, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
):
    with kombu.Connection(celery_url(redis_server.url)) as driver, driver.Producer() as producer:
        for name in ("low", "normal", "high"):
            producer.publish({"of": name}, routing_key=QUEUE, priority=MESSAGE_PRIORITIES[name])
    waiting = [redis_client.llen(name) for name in lists_of(QUEUE)]
    # As in a process of a worker, which has made no connection before.
    monkeypatch.setattr("kombu.transport._transport_cache", {})
    monkeypatch.setitem(TRANSPORT_ALIASES, "redis", f"{TrialTransport.__module__}:{TrialTransport.__name__}")

    taken: list[Any] = []
    with kombu.Connection(celery_url(redis_server.url)) as worker:
        queue = kombu.Queue(QUEUE, no_ack=True)
        with worker.Consumer(queue, callbacks=[lambda body, _: taken.append(body["of"])], no_ack=True):
            while len(taken) < len(waiting) - 1:
                worker.drain_events(timeout=10)

    assert waiting == [1, 1, 1, 0]
    assert taken == ["high", "normal", "low"]
