"""Faults that the campaign found, one at a time and where chance plays no part."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import breaker
import pytest
import times
from breaker import Breaker
from campaign import plan_of
from faulty_proxy import FaultyProxy
from waiting import eventually
from world import World

from mqtune.backends.local.server import EmbeddedServer
from mqtune.journal.connection import connect

#: A worker's start, or an experiment of a few trials, on a busy machine.
SOON_S = 50.0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """One worker, and an experiment of four short trials."""
    plan = plan_of(Random(1), 1)
    plan["constants"] |= {"epochs": 2, "epoch_s": 0.01}
    plan |= {"trainable": "function", "mischief": [""], "scheduler": "ASHA", "epochs": 2, "max_trials": 4}
    world = World(tmp_path / "run", [plan], times.SHORT, seats=1)
    try:
        world.start()
        yield world
    finally:
        world.close()


def test_whoever_asks_sentinels_by_a_way_is_led_to_servers_by_it(redis_server: EmbeddedServer) -> None:
    answer = b"\r\n40001\r\n"

    with (
        FaultyProxy(redis_server.url, hears=lambda said: said.replace(answer, b"\r\n40002\r\n")) as proxy,
        contextlib.closing(connect(proxy.url)) as client,
    ):
        assert client.echo("40001") == b"40002"
        assert client.echo("4000") == b"4000"


@pytest.mark.usefixtures("server_binary")
def test_a_worker_that_connects_again_to_a_full_redis_waits_until_it_is_not(world: World) -> None:
    worker, client = world.workers[0], world.server.client
    eventually(lambda: " ready." in world.log_of_worker(worker), SOON_S)
    # The connection that it takes messages from. One that is killed before it does is replaced, and nothing is written by that.
    eventually(lambda: any(each["cmd"] == "brpop" for each in client.client_list()), SOON_S)
    client.config_set("maxmemory", 1)

    client.client_kill_filter(_type="normal")

    met = re.compile(r"consumer: .*(OutOfMemory|used memory)")
    eventually(lambda: met.search(world.log_of_worker(worker)) or not worker.lives, SOON_S)
    client.config_set("maxmemory", 0)
    driver = world.start_driver()
    eventually(lambda: not driver.lives, SOON_S)
    assert world.how_it_ended(driver) == "finished", world.log_of(driver)
    assert worker.lives


def _asleep() -> None:
    """Do what a thread does time and again."""
    time.sleep(0.01)


@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_thread_that_is_gone_after_an_error_is_told_from_one_that_goes_on(tmp_path: Path, is_guarded: bool) -> None:
    path, over = tmp_path / "orders" / "w0-1", threading.Event()
    broken = Breaker(path, Path(__file__).parent)
    broken.start()

    def run() -> None:
        with contextlib.suppress(MemoryError):
            for step in broken.steps("mqtune-logs", lambda: iter(lambda: over.is_set() or _asleep, True)):
                with contextlib.suppress(MemoryError) if is_guarded else contextlib.nullcontext():
                    step()

    thread = threading.Thread(target=run, name="mqtune-logs")
    thread.start()
    try:
        breaker.order(path, "mqtune-logs", "MemoryError", 3)

        eventually(lambda: breaker.struck(path), SOON_S)
        assert breaker.struck(path).startswith("test_world.py:_asleep")
        if is_guarded:
            assert thread.is_alive()
            assert not breaker.is_dead(path)
        else:
            eventually(lambda: breaker.is_dead(path), SOON_S)
    finally:
        over.set()
        thread.join()
