"""A worker's heartbeat, on which the leases of all its trials depend, waits for nothing but Redis."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import redis
from waiting import DEADLINE_S, eventually

from mqtune.core.resources import Resources
from mqtune.worker import runtime as runtime_module
from mqtune.worker.devices import SlotPlan
from mqtune.worker.runtime import WorkerRuntime
from mqtune.worker.slots import Slots


def test_a_zygote_that_will_not_close_delays_no_heartbeat(
    redis_client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing, closed = threading.Event(), threading.Event()

    def trim(*_: object) -> None:
        closing.set()
        closed.wait(DEADLINE_S)

    monkeypatch.setattr(Slots, "trim", trim)
    monkeypatch.setattr(runtime_module, "HEARTBEAT_S", 0.02)
    runtime = WorkerRuntime(
        redis_client,
        name="w1@here",
        plan=SlotPlan(offer=Resources(cpus=1), devices=((),)),
        code_root=tmp_path,
        log_root=tmp_path,
        grace_s=1.0,
        wake_consumer=lambda: None,
        show=lambda _: None,
    )
    beats: list[None] = []
    monkeypatch.setattr(runtime.services.memory_kills, "look", lambda: beats.append(None))
    runtime.start()
    try:
        assert closing.wait(DEADLINE_S)
        before = len(beats)
        eventually(lambda: len(beats) > before + 2)
    finally:
        closed.set()
        runtime.close(grace_s=0)
        for thread in (runtime._heart, runtime._control, runtime._tidier):
            thread.join(DEADLINE_S)
