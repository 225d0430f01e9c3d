"""How entries are read from Redis and a call is tried again; all else of its journal is held by the contract of journals."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Final

import pytest
import redis

from mqtune.core.errors import BrokerUnavailable
from mqtune.core.timing import Timing
from mqtune.journal import RETRY_MAX_S, Entry, RedisJournal, retrying

TIMING: Final = Timing()
RETRY_MIN_S: Final = TIMING.first_retry_s


class Client(redis.Redis):
    """A client that answers a read with one entry, or an error, and notes whether garbage is collected meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None
        self.was_collected: list[bool] = []

    def execute_command(self, *args: object, **options: object) -> object:
        if args[0] == "HMGET":
            return [None]
        self.was_collected.append(gc.isenabled())
        if self.error is not None:
            raise self.error
        return [[b"1-0", [b"e", b"event"]]]


@pytest.fixture(params=[True, False], ids=["collecting", "not collecting"])
def is_collecting(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether this process collects garbage."""
    if not request.param:
        gc.disable()
    yield request.param
    gc.enable()


def test_no_garbage_is_collected_while_a_page_is_read_and_then_as_before_also_if_that_fails(
    is_collecting: bool,
) -> None:
    client = Client()
    assert RedisJournal(client, "x").read("0-0", count=10) == [Entry("1-0", b"event")]
    assert (client.was_collected, gc.isenabled()) == ([False], is_collecting)

    client.error = redis.exceptions.ResponseError("ERR unknown command")
    with pytest.raises(redis.exceptions.ResponseError, match="unknown"):
        RedisJournal(client, "x").read("0-0", count=10)
    assert (client.was_collected, gc.isenabled()) == ([False, False], is_collecting)


# While the server is away.


class Closing(threading.Event):
    """Notes how long it is waited for, takes no time, and is set after some waits."""

    def __init__(self, waits: int) -> None:
        super().__init__()
        self._left = waits
        self.waited: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waited.append(timeout)
        self._left -= 1
        if not self._left:
            self.set()
        return self.is_set()


def away() -> None:
    raise redis.ConnectionError("Connection refused.")


def test_waits_grow_and_differ_from_client_to_client() -> None:
    """So that a thousand workers don't come back in one instant."""
    crowd = [Closing(waits=8) for _ in range(20)]
    for closing in crowd:
        with pytest.raises(BrokerUnavailable, match="Connection refused"):
            retrying(away, patience_s=60, closing=closing)

    for tries, wait_s in enumerate((RETRY_MIN_S, 2 * RETRY_MIN_S, 4 * RETRY_MIN_S)):
        waited = [closing.waited[tries] for closing in crowd]
        assert wait_s / 2 <= min(waited) < max(waited) <= wait_s
        assert len(set(waited)) > len(crowd) / 2
    assert all(RETRY_MAX_S / 2 <= closing.waited[-1] <= RETRY_MAX_S for closing in crowd)
