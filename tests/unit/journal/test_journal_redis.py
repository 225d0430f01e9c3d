"""How entries are read from Redis; all else of its journal is held by the contract of journals."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import redis

from mqtune.journal.base import Entry
from mqtune.journal.redis import RedisJournal


class Client(redis.Redis):
    """A client that answers a read with one entry, or an error, and notes whether garbage is collected meanwhile."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.error = error
        self.was_collected: list[bool] = []

    def execute_command(self, *args: object, **options: object) -> object:
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


def test_no_garbage_is_collected_while_a_page_is_read_and_then_as_before(is_collecting: bool) -> None:
    client = Client()

    assert RedisJournal(client, "x").read("0-0", count=10) == [Entry("1-0", b"event")]

    assert client.was_collected == [False]
    assert gc.isenabled() is is_collecting


def test_garbage_is_collected_as_before_behind_a_read_that_fails(is_collecting: bool) -> None:
    client = Client(redis.exceptions.ResponseError("ERR unknown command"))

    with pytest.raises(redis.exceptions.ResponseError, match="unknown"):
        RedisJournal(client, "x").read("0-0", count=10)

    assert client.was_collected == [False]
    assert gc.isenabled() is is_collecting
