"""The figures of a worker: its state, its ended attempts and its services' figures."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest
import redis

from mqtune.core.errors import ConfigurationError
from mqtune.core.resources import Resources
from mqtune.core.timing import Timing
from mqtune.core.trial import AttemptEnd
from mqtune.core.usage import DeviceUse
from mqtune.services.exporter.settings import ExporterSettings, Observer
from mqtune.services.exporter.worker import WorkerExporter, for_worker
from mqtune.worker import RunResult, SlotPlan, WorkerSettings
from mqtune.worker.ports import AttemptHere, WorkerHost, WorkerState


def host(client: redis.Redis, *, is_heard: bool = True) -> WorkerHost:
    lent = SimpleNamespace(
        name="gpu@node",
        plan=SlotPlan(offer=Resources(gpus=1), devices=(("0",), ("1",))),
        client=client,
        timing=Timing(),
        state=lambda: WorkerState(slots=2, usable=1, busy=1, heartbeat_at=5.0, is_heard=is_heard),
    )
    return cast("WorkerHost", lent)


def attempt(device: str) -> AttemptHere:
    return cast("AttemptHere", SimpleNamespace(devices=(device,)))


def exporter(observer: Observer, client: redis.Redis, *, is_heard: bool = True) -> WorkerExporter:
    use = {"0": DeviceUse(90.0, 7, 400.0), "1": DeviceUse(memory_bytes=8)}
    return WorkerExporter(host(client, is_heard=is_heard), observer, Mock(**{"use.return_value": use}))


def test_a_worker_that_serves_its_figures_has_them_from_its_start(redis_client: redis.Redis) -> None:
    read = Observer()
    service = exporter(read, redis_client)

    assert read() is None
    service.start()
    service.ended(attempt("0"), RunResult(AttemptEnd.FAILED, ""))
    service.ended(attempt("1"), RunResult(None, "not run"))

    found = read()
    assert found is not None
    assert (found.worker, found.slots, found.usable, found.busy, found.heartbeat_at) == ("gpu@node", 2, 1, 1, 5.0)
    assert (found.gpu_memory, found.gpu_load, found.gpu_power) == ({"0": 7, "1": 8}, {"0": 90.0}, {"0": 400.0})
    assert found.redis is not None
    assert {key: count for key, count in found.ended.items() if count} == {("0", "failed"): 1}
    assert {devices for devices, _ in found.ended} == {"0", "1"}


def test_nobody_waits_for_a_server_that_has_not_answered_recently(redis_client: redis.Redis) -> None:
    read = Observer()
    exporter(read, redis_client, is_heard=False).start()

    found = read()

    assert found is not None
    assert found.redis is None


def test_a_worker_without_a_port_counts_nothing(redis_client: redis.Redis) -> None:
    settings = WorkerSettings(broker="", code_root=Path())
    assert for_worker(host(redis_client), settings) == ()
    served = WorkerSettings(broker="", code_root=Path(), services=(ExporterSettings(metrics_port=0),))
    assert len(for_worker(host(redis_client), served)) == 1


def test_a_port_in_use_is_named() -> None:
    prometheus = pytest.importorskip("mqtune.services.exporter.prometheus")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port} can't be listened on"):
            prometheus.serve_figures(port, "127.0.0.1", list)
