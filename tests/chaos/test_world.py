"""Faults that the campaign found, one at a time and where chance plays no part."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import times
from campaign import plan_of
from waiting import eventually
from world import World

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
