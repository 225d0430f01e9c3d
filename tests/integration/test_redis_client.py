from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest
import redis
from waiting import eventually

from mqtune.backends import EmbeddedServer
from mqtune.journal import RedisClient, RedisJournal, connect


@pytest.fixture
def client(redis_server: EmbeddedServer) -> Iterator[RedisClient]:
    with contextlib.closing(connect(redis_server.url, role="kept")) as client:
        yield client


def connections(watching: redis.Redis) -> list[str]:
    return [each["id"] for each in watching.client_list() if each["name"] == "mqtune-kept"]


def test_a_limited_client_has_no_more_connections_than_it_may_whatever_its_threads(
    client: RedisClient, redis_client: redis.Redis
) -> None:
    client.limit_to(3)

    with ThreadPoolExecutor(12) as pool:
        # Each takes some milliseconds, so that all threads want a connection.
        answers = list(pool.map(lambda number: client.blpop([f"nothing-{number}"], timeout=0.02), range(48)))

    assert answers == [None] * 48
    assert len(connections(redis_client)) <= 3


def test_a_connection_beside_others_or_after_want_of_use_says_nothing_of_the_server(
    client: RedisClient, redis_client: redis.Redis
) -> None:
    journal = RedisJournal(client, "x")
    journal.definition()
    before = journal.outages
    for _ in range(3):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda number: client.blpop([f"nothing-{number}"], timeout=0.05), range(8)))
        assert len(connections(redis_client)) > 1
        client.close_unused(0)
        eventually(lambda: connections(redis_client) == [])
        journal.definition()
    assert journal.outages == before

    # One that broke does, also where nobody has noticed that before it was closed.
    redis_client.client_kill_filter(_id=connections(redis_client)[0])
    eventually(lambda: connections(redis_client) == [])
    client.close_unused(0)
    journal.definition()

    assert journal.outages == before + 1


def test_an_answer_that_nobody_waited_for_is_not_taken_for_the_next(client: RedisClient) -> None:
    with patch.object(client, "parse_response", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        client.echo("first")

    assert client.echo("second") == b"second"


def test_a_server_that_was_demoted_is_connected_to_anew(client: RedisClient, redis_client: redis.Redis) -> None:
    before = client.connects.count
    redis_client.execute_command("REPLICAOF", "127.0.0.1", "1")
    try:
        with pytest.raises(redis.exceptions.ReadOnlyError):
            client.set("demoted", 1)
    finally:
        redis_client.execute_command("REPLICAOF", "NO", "ONE")

    assert client.set("demoted", 1)
    assert client.connects.count == before + 1


def test_a_short_wait_for_entries_does_not_last_to_the_servers_next_tick(redis_client: redis.Redis) -> None:
    journal = RedisJournal(redis_client, "x")
    tick_s = 1 / int(redis_client.config_get("hz")["hz"])

    def wait() -> float:
        began = time.monotonic()
        assert journal.read("0-0", count=1, block_s=0.01) == []
        return time.monotonic() - began

    # The first wait may begin just before a tick.
    fastest = sorted(wait() for _ in range(10))[1]

    assert 0.01 <= fastest < tick_s / 2
