"""A follower gets every entry once and in order, whatever pub/sub loses."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from waiting import eventually

from mqtune.backends import EmbeddedServer
from mqtune.core.codec import encode_value
from mqtune.core.events import START, ExperimentCreated, ExperimentEnded, TrialStaged
from mqtune.core.keys import ExperimentKeys
from mqtune.core.timing import Timing
from mqtune.core.trial import TrialId
from mqtune.journal import RedisJournal, connect
from mqtune.results import Follower, follow

NAME = "followed"
KEYS = ExperimentKeys(NAME)


class Writer:
    """A driver that only writes."""

    def __init__(self, client: redis.Redis) -> None:
        self.client: Any = client
        self.journal = RedisJournal(client, NAME, patience_s=5)
        self.journal.lock("owner", "a test", 60)
        self.number = 0
        definition = encode_value({})
        self.journal.record(ExperimentCreated(name=NAME, definition={}, at=0.0).encode(), definition=definition)

    def stage(self, count: int = 1, *, padding: str = "a text with spaces and \x00 in it") -> None:
        for _ in range(count):
            self.number += 1
            id_ = TrialId(f"{self.number:06d}")
            event = TrialStaged(trial=id_, attempt=1, config={"text": padding}, at=0.0, cursor=START)
            self.journal.record(event.encode())

    def end(self) -> None:
        self.journal.record(ExperimentEnded(outcome="finished", reason="", at=0.0, cursor=START).encode())

    @property
    def ids(self) -> list[str]:
        return [id_.decode() for id_, _ in self.client.xrange(KEYS.journal)]

    def trials(self) -> list[str]:
        return [f"{number:06d}" for number in range(1, self.number + 1)]


@pytest.fixture
def writer(redis_client: redis.Redis) -> Writer:
    return Writer(redis_client)


@pytest.fixture
def follower(request: pytest.FixtureRequest, redis_server: EmbeddedServer, writer: Writer) -> Iterator[Follower]:
    timing = getattr(request, "param", Timing())
    with contextlib.closing(Follower(redis_server.url, NAME, timing=timing)) as following:
        yield following


def read_of(follower: Follower, count: int) -> list[str]:
    """Return the ids of so many entries, as the follower reads them."""
    found: list[str] = []
    eventually(lambda: found.extend(entry.id for entry in follower.read(0.2)) or len(found) >= count, 20)
    return found


def listening(follower: Follower, writer: Writer) -> None:
    """Have the follower read what there is, and wait on its channel."""

    def is_subscribed() -> object:
        follower.read(0.05)
        return writer.client.pubsub_numsub(KEYS.metrics)[0][1]

    eventually(is_subscribed)
    # Of what the server has said by then, one read takes that it is subscribed, and the next what the journal has.
    while any(follower.read(0.05) for _ in range(3)):
        pass


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Have subscriptions lose every third message, and return the lost ones."""
    get, heard, lost = redis.client.PubSub.get_message, itertools.count(1), list[Any]()

    def get_lossy(pubsub: redis.client.PubSub, **options: Any) -> Any:
        message = get(pubsub, **options)
        if message is not None and message["type"] == "message" and next(heard) % 3 == 0:
            lost.append(message)
            return None
        return message

    monkeypatch.setattr(redis.client.PubSub, "get_message", get_lossy)
    return lost


@pytest.mark.parametrize("follower", [Timing(follow_silence_s=0.1)], indirect=True)
def test_what_messages_lose_is_read_from_the_journal(follower: Follower, writer: Writer, lost: list[Any]):
    listening(follower, writer)
    before = len(writer.ids)
    thread = threading.Thread(target=writer.stage, args=(300,))

    thread.start()
    found = read_of(follower, 300)
    thread.join()

    assert lost
    assert found == writer.ids[before:]


def test_a_follower_that_is_too_slow_is_cut_off_and_catches_up(follower: Follower, writer: Writer):
    listening(follower, writer)
    before = len(writer.ids)
    limit = writer.client.config_get("client-output-buffer-limit")["client-output-buffer-limit"]
    writer.client.config_set("client-output-buffer-limit", "pubsub 32kb 0 0")
    try:
        writer.stage(300, padding="x" * 50_000)
        assert writer.client.pubsub_numsub(KEYS.metrics) == [(KEYS.metrics.encode(), 0)]

        assert read_of(follower, 300) == writer.ids[before:]
    finally:
        writer.client.config_set("client-output-buffer-limit", limit)


def test_following_ends_with_the_experiment(redis_server: EmbeddedServer, writer: Writer):
    writer.stage(3)
    events = follow(redis_server.url, NAME)
    seen = [next(events) for _ in range(4)]

    writer.stage(2)
    writer.end()
    seen += events

    assert isinstance(seen[0], ExperimentCreated)
    assert [event.trial for event in seen if isinstance(event, TrialStaged)] == writer.trials()
    assert isinstance(seen[-1], ExperimentEnded)
    assert [*follow(redis_server.url, NAME, from_start=False)] == []


def test_a_server_that_ends_with_its_experiment_takes_nothing_of_it_away(tmp_path: Path):
    with EmbeddedServer.start(tmp_path) as server, contextlib.closing(connect(server.url)) as client:
        writer = Writer(client)
        events = follow(server.url, NAME)
        seen = [next(events)]
        # The follower listens, and reads nothing meanwhile: more than what lies between it and the server.
        writer.stage()
        seen.append(next(events))
        writer.stage(300, padding="x" * 2_000)
        writer.end()
        client.close()
        reading = threading.Thread(target=lambda: seen.extend(events))
        reading.start()

        server.stop()
        reading.join(20)

    assert [event.trial for event in seen if isinstance(event, TrialStaged)] == writer.trials()
    assert isinstance(seen[-1], ExperimentEnded)
