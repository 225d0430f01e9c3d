"""A driver's backend and a fleet of several shapes, on a real server."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import redis
from fleets import worker

from mqtune.backends import CeleryBackend, EmbeddedServer, Offer, Together
from mqtune.core.resources import Resources, queue_name
from mqtune.core.trial import Attempt, TrialId
from mqtune.journal import Fleet, RedisJournal, ServerClock

#: Longer than a test takes.
HOLD_S: Final = 100.0
PLAIN: Final = Resources(gpus=1, cpus=4, gpu_memory_gb=24)
LINKED: Final = Resources(gpus=1, cpus=4, gpu_memory_gb=80, tags=["a100", "nvlink"])


@pytest.fixture
def fleet(redis_client: redis.Redis) -> Fleet:
    fleet = Fleet(redis_client, patience_s=1.0)
    for name, offer, slots in (("plain@h", PLAIN, 2), ("linked@h", LINKED, 1)):
        shape = {"gpus": offer.gpus, "cpus": offer.cpus, "gpu_memory_gb": offer.gpu_memory_gb, "tags": [*offer.tags]}
        fleet.join(worker(name, queue=queue_name(offer), slots=slots, **shape), HOLD_S)
    return fleet


@pytest.fixture
def backend(fleet: Fleet, redis_server: EmbeddedServer, redis_client: redis.Redis) -> Iterator[CeleryBackend]:
    journal, clock = RedisJournal(redis_client, "x"), ServerClock(redis_client)
    of: Any = {"title": "x/f", "digest": "d", "resources": Resources(gpus=1), "patience_s": 1.0}
    backend = CeleryBackend(redis_client, redis_server.url, journal=journal, clock=clock, **of)
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
    shown = "2 workers: 1 × 1 GPU (80 GB), 4 CPUs, tags a100+nvlink; 2 × 1 GPU (24 GB), 4 CPUs"
    assert backend.resource_string() == shown


#: Settings of another project, which has its own broker, backend, queues and loader.
CELERYCONFIG: Final = """
broker_url = broker_read_url = broker_write_url = "redis://127.0.0.1:1/0"
result_backend = "nonsense://x"
task_default_queue = "theirs"
task_routes = {"*": {"queue": "theirs"}}
task_serializer = "pickle"
task_always_eager = True
event_exchange = "theirs"
"""
THEIRS: Final = {
    "CELERY_BROKER_URL": "redis://127.0.0.1:1/0",
    "CELERY_RESULT_BACKEND": "nonsense://x",
    "CELERY_CONFIG_MODULE": "celeryconfig",
    "CELERY_LOADER": "there_is_no_such_module:Loader",
}


def test_the_settings_of_another_celery_project_in_the_drivers_shell_change_nothing(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, redis_client: redis.Redis
) -> None:
    for name, value in THEIRS.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "celeryconfig.py").write_text(CELERYCONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "celeryconfig", raising=False)
    backend: CeleryBackend = request.getfixturevalue("backend")

    backend.publish(TrialId("0001"), 1, {})
    backend.lost(TrialId("0001"), Attempt(1, 0.0, worker="plain@h", started_at=1.0, ended_at=2.0))

    assert published(redis_client, PLAIN) == {"x/0001/1"}
    assert not redis_client.exists("theirs")


def test_a_message_is_the_same_as_celery_sends_it_and_kombu_puts_it(
    backend: CeleryBackend, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.publish_all([Offer(TrialId("0001"), 1, {"lr": 0.1})])
    monkeypatch.setattr(Together, "together", contextlib.nullcontext)
    backend.publish_all([Offer(TrialId("0002"), 1, {"lr": 0.1})])
    queue = queue_name(PLAIN)

    kombus, ours = map(json.loads, redis_client.lrange(queue, 0, -1))

    for message in (kombus, ours):
        assert all(message["properties"].pop(name) for name in ("correlation_id", "delivery_tag"))
        assert all(message["headers"].pop(name) for name in ("id", "root_id"))
    assert kombus.pop("body") != ours.pop("body")
    assert kombus == ours
    assert ours["properties"]["delivery_info"] == {"exchange": "", "routing_key": queue}
