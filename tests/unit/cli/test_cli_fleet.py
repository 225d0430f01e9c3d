"""Who has how much of a fleet, as the live page shows it."""

from __future__ import annotations

import time
from types import SimpleNamespace

from fleets import impairment, worker

from mqtune.cli import (
    described_worker,
    impairment_text,
    queues_of,
)


def test_workers_with_driver_slots_alone_serve_no_queue():
    register = SimpleNamespace(waiting=lambda _: 0)
    there = [worker("w1"), worker("drv", queue="drivers", slots=0, drivers=8), worker("full", queue="full", slots=0)]

    assert [queue.queue for queue in queues_of(register, there)] == ["q", "full"]  # type: ignore[arg-type]


def test_what_keeps_a_worker_from_its_work_is_said_with_since_when_and_who_or_what_ends_it():
    full = impairment(since=time.time() - 3 * 60)
    since, retry_at = time.time() - 5, time.time() + 20.4
    rests = impairment("?", "", kind="starts", ends="an attempt is started", since=since, retry_at=retry_at)

    assert impairment_text(full) == "device 0 is quarantined, it is full; for 3 min 00 s, until it is free"
    assert impairment_text(rests) == (
        "the worker takes no trials, ?; for 5 s, until an attempt is started; the worker tries an attempt in 20 s"
    )
    described = {"device": "0", "kind": "memory", "text": "it is full", "ends": "it is free"}
    described |= {"since": full.since, "retry_at": 0.0}
    assert described_worker(worker(impairments=[full]))["impairments"] == [described]
