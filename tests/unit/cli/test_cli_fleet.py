"""Workers and queues as ``mqtune fleet`` shows them, and the workers that it drains."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from fleets import impairment, worker

from mqtune.cli import described_worker, find_worker, impairment_text, queues_of, wait_until_gone
from mqtune.core.errors import ConfigurationError, MqtuneError
from mqtune.core.timing import Timing
from mqtune.core.worker_info import WorkerInfo


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


A, B, OTHER = worker("gpu@a"), worker("gpu@b"), worker("cpu@a")


def fleet(*workers: WorkerInfo) -> Any:
    return SimpleNamespace(workers=lambda: [*workers])


@pytest.mark.parametrize(
    ("name", "there", "words"),
    [
        ("gpu", [A, B, OTHER], "'gpu' is the name of 2 workers: gpu@a, gpu@b"),
        ("tpu", [A, OTHER], "no worker 'tpu' is connected; connected are gpu@a, cpu@a"),
        ("tpu", [], "no worker 'tpu' is connected; there are no workers"),
    ],
)
def test_a_name_that_means_none_or_several_is_refused(name: str, there: list[WorkerInfo], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        find_worker(name, there)


def test_one_that_was_started_anew_under_its_name_is_another() -> None:
    wait_until_gone(fleet(worker("gpu@a", joined_at=2.0)), [A])


def test_one_that_does_not_go_is_an_error_that_names_it() -> None:
    impatient = Timing(drain_look_s=0.0, drain_register_s=-A.leaves_within_s)

    with pytest.raises(MqtuneError, match="workers still connected after 0 s: gpu@a;"):
        wait_until_gone(fleet(A, B), [A], timing=impatient)
