"""Figures of workers for Prometheus."""

from __future__ import annotations

import socket

import pytest

from mqtune.core.errors import ConfigurationError
from mqtune.worker import WorkerFigures

prometheus = pytest.importorskip("mqtune.integrations.prometheus")


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port} can't be listened on"):
            prometheus.serve_figures(port, "127.0.0.1", list)


def test_attempts_of_a_worker_are_counted_by_device_and_end() -> None:
    worker = WorkerFigures(
        worker="w@a",
        slots=2,
        usable=1,
        busy=0,
        ended={("0", "failed"): 89, ("1", "completed"): 11},
        heartbeat_at=1.0,
        gpu_memory={"0": 5.0},
        gpu_load={},
        gpu_power={},
        redis=None,
    )

    found = {figure.name: dict(figure.values) for figure in prometheus.figures_of_worker(worker)}

    assert found["mqtune_worker_attempts_ended_total"] == {("w@a", "0", "failed"): 89, ("w@a", "1", "completed"): 11}
    assert found["mqtune_worker_gpu_memory_bytes"] == {("w@a", "0"): 5.0}
    assert (found["mqtune_worker_slots"], found["mqtune_worker_slots_usable"]) == ({("w@a",): 2}, {("w@a",): 1})
    assert "mqtune_worker_redis_memory_bytes" not in found
