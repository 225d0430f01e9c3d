"""A driver's backend and a fleet of several shapes, on a real server."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
import redis

from mqtune.backends.celery import CeleryBackend
from mqtune.backends.local.server import EmbeddedServer
from mqtune.core.events import WorkerInfo
from mqtune.core.resources import Resources, queue_name
from mqtune.core.trial import TrialId
from mqtune.core.version import __version__
from mqtune.journal.clock import ServerClock
from mqtune.journal.fleet import Fleet
from mqtune.journal.redis import RedisJournal

#: Longer than a test takes.
HOLD_S: Final = 100.0
PLAIN: Final = Resources(gpus=1, cpus=4, gpu_memory_gb=24)
LINKED: Final = Resources(gpus=1, cpus=4, gpu_memory_gb=80, tags=["a100", "nvlink"])


def worker(name: str, offer: Resources, slots: int) -> WorkerInfo:
    return WorkerInfo(
        name=name,
        host="h",
        pid=1,
        version=__version__,
        queue=queue_name(offer),
        gpus=offer.gpus,
        cpus=offer.cpus,
        slots=slots,
        devices=[""] * slots,
        code_root="/",
        joined_at=0,
        gpu_memory_gb=offer.gpu_memory_gb,
        tags=sorted(offer.tags),
    )


@pytest.fixture
def fleet(redis_client: redis.Redis) -> Fleet:
    fleet = Fleet(redis_client, patience_s=1.0)
    fleet.join(worker("plain@h", PLAIN, 2), HOLD_S)
    fleet.join(worker("linked@h", LINKED, 1), HOLD_S)
    return fleet


@pytest.fixture
def backend(fleet: Fleet, redis_server: EmbeddedServer, redis_client: redis.Redis) -> Iterator[CeleryBackend]:
    backend = CeleryBackend(
        redis_client,
        redis_server.url,
        journal=RedisJournal(redis_client, "x"),
        clock=ServerClock(redis_client),
        title="x/f",
        digest="d",
        resources=Resources(gpus=1),
        patience_s=1.0,
    )
    with contextlib.closing(backend):
        backend.refresh()
        yield backend


def published(client: Any, offer: Resources) -> set[str]:
    return {json.loads(message)["headers"]["id"] for message in client.lrange(queue_name(offer), 0, -1)}


def test_workers_of_different_shapes_both_get_messages(backend: CeleryBackend, redis_client: redis.Redis) -> None:
    for number in range(1, 4):
        backend.publish(TrialId(f"{number:04d}"), 1, {})

    assert published(redis_client, PLAIN) == {"x/0001/1", "x/0002/1"}
    assert published(redis_client, LINKED) == {"x/0003/1"}
    assert backend.queued() == {("0001", 1), ("0002", 1), ("0003", 1)}
    assert backend.resource_string() == (
        "2 workers: 1 × 1 GPU (80 GB), 4 CPUs, tags a100+nvlink; 2 × 1 GPU (24 GB), 4 CPUs"
    )


def test_what_waits_for_workers_that_left_goes_to_those_that_are_there(
    backend: CeleryBackend, fleet: Fleet, redis_client: redis.Redis
) -> None:
    backend.publish(TrialId("0001"), 1, {})
    fleet.leave("plain@h")
    backend.refresh()

    assert backend.queued() == set()
    backend.publish(TrialId("0001"), 1, {})

    assert published(redis_client, LINKED) == {"x/0001/1"}
    assert backend.queued() == {("0001", 1)}
