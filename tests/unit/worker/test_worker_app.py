"""A worker's process: it restarts when it takes nothing, its threads end it, and it knows where others reach it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from celery.worker import state
from kombu import Connection
from waiting import DEADLINE_S

from mqtune.core.errors import BrokerUnavailable
from mqtune.core.timing import Timing
from mqtune.worker import Address, ConsumerWatch, WorkerSettings, create_app, guarded


class Consumer:
    """A Celery worker with two slots, one of them free, while three trials wait, and notes of its restarts."""

    def __init__(self) -> None:
        self.waits = 3
        self.looked = 0
        self.done: list[str] = []
        self.pool = SimpleNamespace(taken=7, tasks={1: "e/0001/1"}, num_processes=2)
        self.queues: dict[str, object] = {"gpus": object()}
        self.app = SimpleNamespace(amqp=SimpleNamespace(queues=SimpleNamespace(consume_from=self.queues)))
        self.consumer = SimpleNamespace(hub=SimpleNamespace(call_soon=lambda _: self.done.append("reconnected")))
        self.runtime = Mock(queue="gpus", waiting=self.waiting)
        self.runtime.services.grace_s, self.runtime.services.timing = 10.0, Timing()
        self.runtime.requeue_all = lambda _: self.done.append("requeued")
        self.runtime.close = lambda **_: self.done.append("closed")
        self.watch = ConsumerWatch(self, self.runtime, lambda: self.done.append("restarted"))

    def waiting(self) -> int:
        self.looked += 1
        return self.waits

    def look(self, times: int, *, takes: int = 0) -> None:
        for _ in range(times):
            self.pool.taken += takes
            self.watch.look()


@pytest.fixture
def consumer() -> Consumer:
    return Consumer()


def test_a_worker_that_takes_nothing_although_trials_wait_reconnects_and_then_starts_anew(consumer: Consumer) -> None:
    consumer.look(consumer.watch.rounds - 1)
    assert consumer.done == []
    consumer.look(1)
    assert consumer.done == ["reconnected"]
    consumer.look(consumer.watch.rounds)
    assert consumer.done == ["reconnected", "requeued", "closed", "restarted"]


def test_a_worker_that_takes_again_after_reconnecting_goes_on(consumer: Consumer) -> None:
    consumer.look(consumer.watch.rounds)
    consumer.look(3 * consumer.watch.rounds, takes=1)

    assert consumer.done == ["reconnected"]
    consumer.look(consumer.watch.rounds)
    assert consumer.done == ["reconnected"] * 2, "the next time it is tried gently again"


@pytest.mark.parametrize(
    ("tasks", "room", "queues"),
    [
        pytest.param(2, 2, {"gpus": 1}, id="all slots are taken"),
        pytest.param(0, 0, {"gpus": 1}, id="it drains, backs off, or its devices are quarantined"),
        pytest.param(1, 2, {}, id="an operator has cancelled the consumer"),
    ],
)
def test_nothing_is_wrong_while_it_should_take_nothing_and_nobody_asks_redis(
    consumer: Consumer, tasks: int, room: int, queues: dict[str, object]
) -> None:
    consumer.pool.tasks, consumer.pool.num_processes = dict.fromkeys(range(tasks)), room
    consumer.app.amqp.queues.consume_from = queues

    consumer.look(5 * consumer.watch.rounds)
    assert consumer.looked == 0
    consumer.waits, consumer.pool.num_processes = 0, 2
    consumer.pool.tasks, consumer.app.amqp.queues.consume_from = {}, consumer.queues
    consumer.look(5 * consumer.watch.rounds)
    assert (consumer.looked > 0, consumer.done) == (True, []), "or while nothing waits"


@pytest.mark.parametrize("change", ["a slot is taken", "the queue is empty", "a task is taken"])
def test_one_good_look_in_between_begins_the_count_anew(consumer: Consumer, change: str) -> None:
    consumer.look(consumer.watch.rounds - 1)
    consumer.pool.num_processes = 1 if change == "a slot is taken" else 2
    consumer.waits = 0 if change == "the queue is empty" else 3
    consumer.look(1, takes=int(change == "a task is taken"))
    consumer.pool.num_processes, consumer.waits = 2, 3
    consumer.look(consumer.watch.rounds - 1)

    assert consumer.done == []


def test_one_that_was_told_to_end_meanwhile_does_not_start_anew(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "should_stop", 0)

    consumer.look(2 * consumer.watch.rounds)

    assert consumer.done == ["reconnected", "requeued", "closed"]


@pytest.mark.parametrize(
    ("groups", "is_sent"),
    [
        pytest.param({"worker"}, False, id="nobody has asked for events"),
        pytest.param({"worker", "task"}, True, id="a listener has enabled task events"),
        pytest.param(set(), True, id="a listener was there when the worker started"),
    ],
)
def test_celerys_heartbeats_are_sent_only_while_somebody_listens(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, groups: set[str], is_sent: bool
) -> None:
    app = create_app(WorkerSettings(broker="redis://nowhere", gpus="0", code_root=tmp_path, log_root=tmp_path))
    dispatcher = app.events.Dispatcher(Connection("memory://"), "w@h", enabled=True, groups=groups)
    sent: list[str] = []
    monkeypatch.setattr(dispatcher.producer, "publish", lambda event, *_, **__: sent.append(event["type"]))

    for name in ("worker-online", "worker-heartbeat", "worker-offline"):
        dispatcher.send(name)

    assert sent == ["worker-online", *(["worker-heartbeat"] if is_sent else []), "worker-offline"]


# Threads.


def test_a_step_that_fails_is_logged_and_the_next_one_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    taken: list[int] = []

    def fail(error: Exception) -> None:
        raise error

    steps = [
        lambda: taken.append(1),
        lambda: fail(MemoryError("no room")),
        lambda: taken.append(2),
        lambda: fail(BrokerUnavailable("closing")),
        lambda: taken.append(3),
    ]
    thread = guarded("counts", lambda: steps)
    thread.start()
    thread.join(DEADLINE_S)

    assert taken == [1, 2, 3]
    (record,) = caplog.records
    assert "a step of the thread counts failed" in record.getMessage()
    assert "no room" in caplog.text


def run(source: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "thread", ["guarded('t', lambda: [fail], vital=True)", "guarded('t', fail)"], ids=["vital step", "steps themselves"]
)
def test_a_thread_that_cannot_go_on_ends_its_process_with_an_error(thread: str) -> None:
    ended = run(f"""
import time
from mqtune.worker import guarded
def fail():
    raise MemoryError("no room")
{thread}.start()
time.sleep({DEADLINE_S})
""")

    assert ended.returncode == os.EX_SOFTWARE
    assert "the thread t can't go on, so this worker ends" in ended.stderr
    assert "no room" in ended.stderr


# Where the seats of a gang reach this machine.

#: Has this machine reach others by some addresses, by their families, and by no other; and says where it is reached.
ROUTES = """
import logging, os, socket
from mqtune.worker import advertised
logging.basicConfig()
os.environ.pop("MQTUNE_ADVERTISE", None)
routes = {routes}
class Probe:
    def __init__(self, family, kind):
        assert kind == socket.SOCK_DGRAM
        self.family = family
    def __enter__(self):
        return self
    def __exit__(self, *_): ...
    def connect(self, address):
        if self.family not in routes:
            raise OSError("Network is unreachable")
    def getsockname(self):
        return routes[self.family], 9
socket.socket = Probe
print(advertised(), advertised())
"""


@pytest.mark.parametrize(
    ("routes", "expected"),
    [
        ({socket.AF_INET: "10.1.2.3", socket.AF_INET6: "fd00::7"}, "10.1.2.3"),
        ({socket.AF_INET6: "fd00::7"}, "[fd00::7]"),
        ({}, "127.0.0.1"),
    ],
)
def test_a_machine_is_reached_by_its_route_to_others_and_says_once_that_it_has_none(
    routes: dict[int, str], expected: str
) -> None:
    done = run(ROUTES.format(routes={int(family): address for family, address in routes.items()}))

    assert done.stdout.split() == [expected] * 2, done.stderr
    assert done.stderr.count("no route to others") == done.stderr.count("MQTUNE_ADVERTISE") == (not routes)


@contextlib.contextmanager
def kept() -> Iterator[Address]:
    address = Address()
    try:
        yield address
    finally:
        address.give_up()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_nobody_else_gets_the_port_before_it_is_given_up(family: socket.AddressFamily) -> None:
    if family is socket.AF_INET6 and not socket.has_dualstack_ipv6():
        pytest.skip("there is no IPv6 here")
    with contextlib.closing(socket.socket(family)) as other, kept() as address:
        to: Any = ("", int(address.text.rpartition(":")[2]))
        with pytest.raises(OSError, match="in use"):
            other.bind(to)
        address.give_up()
        other.bind(to)
