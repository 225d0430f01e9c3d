"""A worker's process: it restarts when it takes nothing, and its threads end it."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from waiting import DEADLINE_S

from mqtune.core.errors import BrokerUnavailable
from mqtune.core.timing import Timing
from mqtune.worker import ConsumerWatch, guarded


class Consumer:
    """A Celery worker with one of two slots free while three trials wait, and its restarts."""

    def __init__(self) -> None:
        self.waits = 3
        self.looked = 0
        self.done: list[str] = []
        self.pool = SimpleNamespace(taken=7, tasks={1: "e/0001/1"}, num_processes=2)
        self.queues: dict[str, object] = {"gpus": object()}
        self.consumer = SimpleNamespace(hub=SimpleNamespace(call_soon=lambda _: self.done.append("reconnected")))
        self.runtime = Mock(waiting=self.waiting)
        self.runtime.parts = Mock(queue="gpus", grace_s=10.0, timing=Timing())
        self.runtime.requeue_all = lambda _: self.done.append("requeued")
        self.runtime.close = lambda **_: self.done.append("closed")
        queues = SimpleNamespace(consume_from=self.queues)
        self.app = SimpleNamespace(amqp=SimpleNamespace(queues=queues), runtime=self.runtime)
        self.watch = ConsumerWatch(self, lambda: self.done.append("restarted"))

    def waiting(self) -> int:
        self.looked += 1
        return self.waits

    def look(self, times: int) -> None:
        for _ in range(times):
            self.watch.check_consumer()


def test_a_worker_that_takes_nothing_although_trials_wait_reconnects_and_then_starts_anew() -> None:
    consumer = Consumer()
    consumer.look(consumer.watch.rounds - 1)
    assert consumer.done == []
    consumer.look(1)
    assert consumer.done == ["reconnected"]
    consumer.look(consumer.watch.rounds)
    assert consumer.done == ["reconnected", "requeued", "closed", "restarted"]


@pytest.mark.parametrize(
    ("tasks", "room", "queues"),
    [
        pytest.param(2, 2, {"gpus": 1}, id="all slots are taken"),
        pytest.param(0, 0, {"gpus": 1}, id="it drains, backs off, or its devices are quarantined"),
        pytest.param(1, 2, {}, id="an operator has cancelled the consumer"),
    ],
)
def test_a_worker_that_should_take_nothing_asks_no_redis(tasks: int, room: int, queues: dict[str, object]) -> None:
    consumer = Consumer()
    consumer.pool.tasks, consumer.pool.num_processes = dict.fromkeys(range(tasks)), room
    consumer.app.amqp.queues.consume_from = queues

    consumer.look(5 * consumer.watch.rounds)
    assert consumer.looked == 0
    consumer.waits, consumer.pool.num_processes = 0, 2
    consumer.pool.tasks, consumer.app.amqp.queues.consume_from = {}, consumer.queues
    consumer.look(5 * consumer.watch.rounds)
    assert (consumer.looked > 0, consumer.done) == (True, []), "or while nothing waits"


def test_a_step_that_fails_is_logged_and_the_next_one_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    taken: list[int] = []

    failing, closing = Mock(side_effect=MemoryError("no room")), Mock(side_effect=BrokerUnavailable("closing"))
    one, two, three = (functools.partial(taken.append, number) for number in (1, 2, 3))
    thread = guarded("counts", lambda: [one, failing, two, closing, three])
    thread.start()
    thread.join(DEADLINE_S)

    assert taken == [1, 2, 3]
    (record,) = caplog.records
    assert "a step of thread counts failed" in record.getMessage()
    assert "no room" in caplog.text


@pytest.mark.parametrize(
    "thread", ["guarded('t', lambda: [fail], vital=True)", "guarded('t', fail)"], ids=["vital step", "steps themselves"]
)
def test_a_thread_that_cannot_go_on_ends_its_process_with_an_error(thread: str) -> None:
    source = f"""
import time
from mqtune.worker import guarded
def fail():
    raise MemoryError("no room")
{thread}.start()
time.sleep({DEADLINE_S})
"""
    ended = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)

    assert ended.returncode == os.EX_SOFTWARE
    assert "thread t can't continue, so this worker ends" in ended.stderr
    assert "no room" in ended.stderr
