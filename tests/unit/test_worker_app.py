"""A worker that takes nothing although trials wait reconnects first, and then starts anew; one in order does neither."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from mqtune.core.errors import BrokerUnavailable
from mqtune.worker import app as consuming
from mqtune.worker.app import LOOKS, ConsumerWatch


class Celerys:
    """A consumer that does what it was told."""

    def __init__(self) -> None:
        self.taken = 7
        self.should_take = True
        self.waits = 0
        self.done: list[str] = []
        self.looked = 0

    def waiting(self) -> int:
        self.looked += 1
        return self.waits

    def reconnect(self) -> None:
        self.done.append("reconnected")

    def restart(self) -> None:
        self.done.append("restarted")


@pytest.fixture
def consumer() -> Celerys:
    return Celerys()


@pytest.fixture
def watch(consumer: Celerys) -> ConsumerWatch:
    return ConsumerWatch(consumer)


def look(watch: ConsumerWatch, times: int) -> None:
    for _ in range(times):
        watch.look()


def test_one_that_is_stuck_reconnects_and_if_that_does_not_help_starts_anew(
    watch: ConsumerWatch, consumer: Celerys
) -> None:
    consumer.waits = 3

    look(watch, LOOKS - 1)
    assert consumer.done == []
    look(watch, 1)
    assert consumer.done == ["reconnected"]
    look(watch, LOOKS - 1)
    assert consumer.done == ["reconnected"]
    look(watch, 1)
    assert consumer.done == ["reconnected", "restarted"]


def test_one_that_takes_again_after_reconnecting_goes_on(watch: ConsumerWatch, consumer: Celerys) -> None:
    consumer.waits = 3
    look(watch, LOOKS)

    for _ in range(3 * LOOKS):
        consumer.taken += 1
        watch.look()

    assert consumer.done == ["reconnected"]
    look(watch, LOOKS)
    assert consumer.done == ["reconnected"] * 2, "the next time it is tried gently again"


def test_nothing_is_wrong_while_nothing_waits(watch: ConsumerWatch, consumer: Celerys) -> None:
    look(watch, 5 * LOOKS)

    assert consumer.done == []


def test_nothing_is_wrong_while_no_slot_is_free_and_nobody_asks_redis(watch: ConsumerWatch, consumer: Celerys) -> None:
    consumer.waits = 3
    consumer.should_take = False

    look(watch, 5 * LOOKS)

    assert consumer.done == []
    assert consumer.looked == 0


@pytest.mark.parametrize("change", ["a slot is taken", "the queue is empty", "a task is taken"])
def test_one_good_look_in_between_begins_the_count_anew(watch: ConsumerWatch, consumer: Celerys, change: str) -> None:
    consumer.waits = 3
    look(watch, LOOKS - 1)

    if change == "a slot is taken":
        consumer.should_take = False
    elif change == "the queue is empty":
        consumer.waits = 0
    else:
        consumer.taken += 1
    look(watch, 1)
    consumer.should_take, consumer.waits = True, 3
    look(watch, LOOKS - 1)

    assert consumer.done == []


def test_a_worker_that_closes_is_not_looked_at(watch: ConsumerWatch, consumer: Celerys) -> None:
    def closing() -> int:
        raise BrokerUnavailable("closing")

    consumer.waiting = closing  # type: ignore[method-assign]

    with pytest.raises(BrokerUnavailable):
        watch.look()
    assert consumer.done == []


# Celery's own.


def celerys_worker(*, here: int = 1, room: int = 2, queues: tuple[str, ...] = ("gpus",)) -> SimpleNamespace:
    """What is looked at of a Celery worker with two slots: a task is here, and another may come."""
    pool = SimpleNamespace(taken=5, tasks=dict.fromkeys(range(here)), num_processes=room)
    consume_from = {queue: object() for queue in queues}
    app = SimpleNamespace(amqp=SimpleNamespace(queues=SimpleNamespace(consume_from=consume_from)))
    return SimpleNamespace(pool=pool, app=app)


@pytest.mark.parametrize(
    ("worker", "should"),
    [
        pytest.param(celerys_worker(), True, id="a slot is free"),
        pytest.param(celerys_worker(here=2), False, id="all are taken"),
        pytest.param(celerys_worker(here=0, room=0), False, id="it drains, backs off, or its devices are quarantined"),
        pytest.param(celerys_worker(queues=()), False, id="an operator has cancelled the consumer"),
    ],
)
def test_a_worker_should_take_trials_when_it_has_room_and_nobody_has_told_it_not_to(
    worker: SimpleNamespace, should: bool
) -> None:
    consumer = consuming._CelerysConsumer(worker, Mock(queue="gpus"), lambda: False)

    assert consumer.taken == 5
    assert consumer.should_take is should


@pytest.mark.parametrize("is_leaving", [True, False])
def test_one_that_was_told_to_end_meanwhile_does_not_start_anew(
    monkeypatch: pytest.MonkeyPatch, is_leaving: bool
) -> None:
    steps = Mock()
    steps.runtime.services.grace_s = 10.0
    monkeypatch.setattr(consuming, "_restart_process", steps.restart_process)
    consumer = consuming._CelerysConsumer(celerys_worker(), steps.runtime, lambda: is_leaving)

    consumer.restart()

    names = [call[0] for call in steps.method_calls]
    assert names == ["runtime.requeue_all", "runtime.close", *([] if is_leaving else ["restart_process"])]
