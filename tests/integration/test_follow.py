"""A follower gets every entry once and in order, whatever pub/sub loses."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from restartable import RestartableRedis
from waiting import eventually

from mqtune.backends import EmbeddedServer
from mqtune.core.codec import encode_value
from mqtune.core.errors import BrokerUnavailable, ConfigurationError
from mqtune.core.events import START, ExperimentCreated, ExperimentEnded, TrialStaged
from mqtune.core.keys import ExperimentKeys
from mqtune.core.timing import Timing
from mqtune.core.trial import TrialId
from mqtune.journal import Follower, RedisJournal, connect
from mqtune.journal.follow import follow

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
def timing() -> Timing:
    return Timing()


@pytest.fixture
def follower(redis_server: EmbeddedServer, writer: Writer, timing: Timing) -> Iterator[Follower]:
    with contextlib.closing(Follower(redis_server.url, NAME, timing=timing)) as following:
        yield following


def read_until(follower: Follower, id_: str, deadline_s: float = 20.0) -> list[str]:
    """Return the ids of what the follower reads up to this one."""
    found: list[str] = []
    deadline = time.monotonic() + deadline_s
    while id_ not in found[-1000:]:
        assert time.monotonic() < deadline, f"read {len(found)} entries, and not {id_}"
        found += [entry.id for entry in follower.read(0.5)]
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


def journal_reads(writer: Writer) -> int:
    """Return how often the server was asked for a part of a journal."""
    asked: int = writer.client.info("commandstats").get("cmdstat_xrange", {}).get("calls", 0)
    return asked


def test_it_reads_what_was_there_and_then_what_comes(follower: Follower, writer: Writer):
    writer.stage(10)
    assert read_until(follower, writer.ids[-1]) == writer.ids
    before = len(writer.ids)

    writer.stage(10)

    assert read_until(follower, writer.ids[-1]) == writer.ids[before:]


def test_a_long_journal_is_read_in_pages(redis_server: EmbeddedServer, writer: Writer):
    writer.stage(99)

    with contextlib.closing(
        Follower(redis_server.url, NAME, timing=Timing(follow_silence_s=1000), page_count=10)
    ) as follower:
        pages = [follower.read(1) for _ in range(10)]

    assert [len(page) for page in pages] == [10] * 10
    assert [entry.id for page in pages for entry in page] == writer.ids


def test_from_now_leaves_out_what_was(redis_server: EmbeddedServer, writer: Writer):
    writer.stage(10)

    with contextlib.closing(Follower(redis_server.url, NAME, from_start=False)) as follower:
        assert follower.read(0) == []
        writer.stage(1)
        assert read_until(follower, writer.ids[-1]) == writer.ids[-1:]


def test_while_nothing_is_lost_it_lives_on_messages_alone(follower: Follower, writer: Writer):
    listening(follower, writer)
    before = len(writer.ids)
    writer.stage(300)
    ids, asked = writer.ids, journal_reads(writer)

    assert read_until(follower, ids[-1]) == ids[before:]
    assert journal_reads(writer) == asked


def test_a_message_that_comes_again_is_not_read_again(follower: Follower, writer: Writer):
    writer.stage(3)
    listening(follower, writer)
    ids = writer.ids
    for before, id_ in itertools.pairwise(ids):
        writer.client.publish(KEYS.metrics, f"{id_} {before} ".encode() + b"old")

    writer.stage(1)
    newest, asked = writer.ids[-1], journal_reads(writer)

    assert read_until(follower, newest) == [newest]
    assert journal_reads(writer) == asked


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


@pytest.mark.parametrize("timing", [Timing(follow_silence_s=0.1)])
def test_what_messages_lose_is_read_from_the_journal(follower: Follower, writer: Writer, lost: list[Any]):
    listening(follower, writer)
    before = len(writer.ids)
    thread = threading.Thread(target=writer.stage, args=(299,))

    thread.start()
    found: list[str] = []
    deadline = time.monotonic() + 20
    while (thread.is_alive() or len(found) < 299) and time.monotonic() < deadline:
        found += [entry.id for entry in follower.read(0.2)]
    thread.join()

    assert lost
    assert found == writer.ids[before:]


@pytest.mark.parametrize("timing", [Timing(follow_silence_s=0.1)])
def test_a_last_message_that_is_lost_is_noticed_by_the_silence_after_it(
    follower: Follower, writer: Writer, lost: list[Any]
):
    listening(follower, writer)
    before = len(writer.ids)
    writer.stage(3)
    assert read_until(follower, writer.ids[-1]) == writer.ids[before:]
    assert len(lost) == 1


@pytest.mark.parametrize("timing", [Timing(follow_silence_s=1000)])
def test_connections_that_are_cut_again_and_again_lose_nothing(follower: Follower, writer: Writer):
    done = threading.Event()
    cut = 0

    def write() -> None:
        for _ in range(100):
            writer.stage(20)
        done.set()

    thread = threading.Thread(target=write)
    found: list[str] = []
    thread.start()
    while not done.is_set():
        found += [entry.id for entry in follower.read(0.005)]
        cut += writer.client.client_kill_filter(_type="pubsub")
    thread.join()
    if found[-1] != writer.ids[-1]:
        found += read_until(follower, writer.ids[-1])

    assert cut > 3
    assert found == writer.ids


def test_a_follower_that_is_too_slow_is_cut_off_and_catches_up(follower: Follower, writer: Writer):
    listening(follower, writer)
    before = len(writer.ids)
    limit = writer.client.config_get("client-output-buffer-limit")["client-output-buffer-limit"]
    writer.client.config_set("client-output-buffer-limit", "pubsub 32kb 0 0")
    try:
        writer.stage(300, padding="x" * 50_000)
        assert writer.client.pubsub_numsub(KEYS.metrics) == [(KEYS.metrics.encode(), 0)]

        assert read_until(follower, writer.ids[-1]) == writer.ids[before:]
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


def test_an_experiment_that_ended_and_went_on_is_followed_to_its_last_end(redis_server: EmbeddedServer, writer: Writer):
    for _ in range(2):
        writer.stage(3)
        writer.end()

    seen = [*follow(redis_server.url, NAME)]

    assert len(seen) == 1 + 3 + 1 + 3 + 1
    assert [*follow(redis_server.url, NAME, from_start=False)] == []


def test_an_experiment_that_the_broker_does_not_have_is_named_beside_those_it_has(
    redis_server: EmbeddedServer, writer: Writer
):
    with pytest.raises(ConfigurationError, match=rf"no experiment 'other' on .*; there is '{NAME}'"):
        next(follow(redis_server.url, "other"))


def test_a_server_that_goes_away_ends_the_following_after_a_while(tmp_path: Path):
    with EmbeddedServer.start(tmp_path) as server, contextlib.closing(connect(server.url)) as client:
        writer = Writer(client)
        writer.stage(1)
        with contextlib.closing(Follower(server.url, NAME, patience_s=0.2)) as follower:
            listening(follower, writer)
            server.stop()

            with pytest.raises(BrokerUnavailable):
                read_until(follower, "9-9")


def test_a_server_that_comes_back_is_followed_on(tmp_path: Path):
    with RestartableRedis(tmp_path) as server:
        writer = Writer(server.client)
        writer.stage(3)
        with contextlib.closing(Follower(server.url, NAME, patience_s=20)) as follower:
            listening(follower, writer)
            before = len(writer.ids)

            server.restart()
            writer.stage(3)

            assert read_until(follower, writer.ids[-1]) == writer.ids[before:]


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
