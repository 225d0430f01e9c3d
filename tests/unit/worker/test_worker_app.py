"""A worker that takes nothing although trials wait reconnects first, and then starts anew; one in order does neither."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from celery.worker import state
from kombu import Connection

from mqtune.worker import LOOKS, ConsumerWatch, WorkerSettings, create_app


class Consumer:
    """What is looked at of a Celery worker with two slots, of which one is free, and what was done to it."""

    def __init__(self) -> None:
        self.waits = 0
        self.looked = 0
        self.done: list[str] = []
        self.pool = SimpleNamespace(taken=7, tasks={1: "e/0001/1"}, num_processes=2)
        self.queues: dict[str, object] = {"gpus": object()}
        self.app = SimpleNamespace(amqp=SimpleNamespace(queues=SimpleNamespace(consume_from=self.queues)))
        self.consumer = SimpleNamespace(hub=SimpleNamespace(call_soon=lambda _: self.done.append("reconnected")))
        self.runtime = Mock(queue="gpus", waiting=self.waiting)
        self.runtime.services.grace_s = 10.0
        self.runtime.requeue_all = lambda _: self.done.append("requeued")
        self.runtime.close = lambda **_: self.done.append("closed")

    def waiting(self) -> int:
        self.looked += 1
        return self.waits


@pytest.fixture
def consumer() -> Consumer:
    return Consumer()


@pytest.fixture
def watch(consumer: Consumer) -> ConsumerWatch:
    return ConsumerWatch(consumer, consumer.runtime, lambda: consumer.done.append("restarted"))


def look(watch: ConsumerWatch, times: int) -> None:
    for _ in range(times):
        watch.look()


def test_one_that_takes_again_after_reconnecting_goes_on(watch: ConsumerWatch, consumer: Consumer) -> None:
    consumer.waits = 3
    look(watch, LOOKS)

    for _ in range(3 * LOOKS):
        consumer.pool.taken += 1
        watch.look()

    assert consumer.done == ["reconnected"]
    look(watch, LOOKS)
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
    watch: ConsumerWatch, consumer: Consumer, tasks: int, room: int, queues: dict[str, object]
) -> None:
    consumer.waits = 3
    consumer.pool.tasks, consumer.pool.num_processes = dict.fromkeys(range(tasks)), room
    consumer.app.amqp.queues.consume_from = queues

    look(watch, 5 * LOOKS)
    assert consumer.looked == 0
    consumer.waits, consumer.pool.num_processes = 0, 2
    consumer.pool.tasks, consumer.app.amqp.queues.consume_from = {}, consumer.queues
    look(watch, 5 * LOOKS)

    assert consumer.done == [], "nor while nothing waits"


@pytest.mark.parametrize("change", ["a slot is taken", "the queue is empty", "a task is taken"])
def test_one_good_look_in_between_begins_the_count_anew(watch: ConsumerWatch, consumer: Consumer, change: str) -> None:
    consumer.waits = 3
    look(watch, LOOKS - 1)

    if change == "a slot is taken":
        consumer.pool.num_processes = 1
    elif change == "the queue is empty":
        consumer.waits = 0
    else:
        consumer.pool.taken += 1
    look(watch, 1)
    consumer.pool.num_processes, consumer.waits = 2, 3
    look(watch, LOOKS - 1)

    assert consumer.done == []


def test_one_that_was_told_to_end_meanwhile_does_not_start_anew(
    watch: ConsumerWatch, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "should_stop", 0)
    consumer.waits = 3

    look(watch, 2 * LOOKS)

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
