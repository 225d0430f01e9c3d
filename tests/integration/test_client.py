"""Steering an experiment from outside: requests reach whoever drives it, once, and the answer comes back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from click.testing import CliRunner
from losing import set_back_redis, snapshot_of_redis
from waiting import DEADLINE_S, eventually

import mqtune
from mqtune.backends import EmbeddedServer
from mqtune.cli import group
from mqtune.cli.ui.places import Places
from mqtune.client import Answer, ExperimentHandle
from mqtune.core.codec import encode_value
from mqtune.core.errors import BrokerUnavailable, ConfigurationError, MessageVersionError, RequestRefused
from mqtune.core.events import (
    START,
    AttemptStarted,
    Cursor,
    DriverStarted,
    ExperimentCreated,
    RequestAnswered,
    Requested,
    TrialStaged,
    decode_event,
)
from mqtune.core.keys import EXPERIMENTS, ExperimentKeys
from mqtune.core.trial import TrialId, TrialStatus
from mqtune.journal import RedisJournal

NAME = "steered"
DEFINITION = {"metric": "loss", "mode": "min", "max_failures": 0, "scheduler": {"scheduler": "fifo"}}


class AnsweringDriver:
    """Drives an experiment of which it does nothing but answer requests, each once; "refuse" it refuses."""

    def __init__(self, client: redis.Redis, name: str = NAME) -> None:
        self.journal = RedisJournal(client, name, patience_s=5)
        self.journal.lock("owner", "a test", 60)
        created = ExperimentCreated(name=name, definition=dict(DEFINITION), at=1.0).encode()
        self.journal.record(created, definition=encode_value(DEFINITION))
        for number in (1, 2):
            staged = TrialStaged(trial=TrialId(f"{number:04d}"), attempt=1, config={}, at=2.0, cursor=START)
            self.journal.record(staged.encode())
        self.seen: list[Requested] = []
        self.is_answering = threading.Event()
        self.is_answering.set()
        self._looking = threading.Lock()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._drive)
        self._thread.start()

    def _drive(self) -> None:
        last = "0-0"
        while not self._ends.wait(0.01):
            with self._looking:
                last = self._look(last)

    def _look(self, last: str) -> str:
        """Answer what was asked for after an entry, and return the last one."""
        for entry in self.journal.read(last, count=100) if self.is_answering.is_set() else []:
            last = entry.id
            event = decode_event(entry.data)
            if isinstance(event, Requested):
                self.seen.append(event)
                self._answer(event, Cursor(entry.id))
        return last

    def be_silent(self) -> None:
        """Answer nothing more, from now on, until ``is_answering`` is set."""
        self.is_answering.clear()
        with self._looking:
            pass

    def _answer(self, event: Requested, cursor: Cursor) -> None:
        reason = "trial 0001 has ended already" if event.action == "fail" else ""
        trial = event.trial or ("0003" if event.action == "add" else "")
        answer = RequestAnswered(id=event.id, done=not reason, reason=reason, trial=trial, at=3.0, cursor=cursor)
        self.journal.record(answer.encode())

    def end(self) -> None:
        """End without giving the lock back, as one that is killed."""
        self._ends.set()
        self._thread.join(DEADLINE_S)

    def leave(self) -> None:
        self.end()
        self.journal.unlock("owner")


@pytest.fixture
def driver(redis_client: redis.Redis) -> Iterator[AnsweringDriver]:
    driver = AnsweringDriver(redis_client)
    yield driver
    driver.end()


@pytest.fixture
def experiment(redis_server: EmbeddedServer, driver: AnsweringDriver) -> Iterator[ExperimentHandle]:
    with mqtune.Client(redis_server.url) as client:
        yield client.experiment(NAME)


def requests_in(client: Any) -> list[Requested]:
    events = [decode_event(fields[b"e"]) for _, fields in client.xrange(ExperimentKeys(NAME).journal)]
    return [event for event in events if isinstance(event, Requested)]


VERBS: dict[str, tuple[Any, dict[str, object]]] = {
    "stop": (lambda trial: trial.stop("enough"), {"reason": "enough"}),
    "pause": (lambda trial: trial.pause(), {}),
    "resume": (lambda trial: trial.resume({"lr": 0.1}), {"config": {"lr": 0.1}}),
    "restart": (lambda t: t.restart(source="0002", checkpoint="best"), {"source": "0002", "checkpoint": "best"}),
    "save": (lambda trial: trial.save(), {}),
    "complete": (lambda trial: trial.complete(), {}),
    "abandon": (lambda trial: trial.abandon("wrong data"), {"reason": "wrong data"}),
}


def test_each_verb_is_a_request_and_returns_the_answer(experiment: ExperimentHandle, driver: AnsweringDriver) -> None:
    answers = [act(experiment.trial("0001")) for act, _ in VERBS.values()]
    added = experiment.add({"lr": 0.1}, source="0001", checkpoint="best", tags=["mine"])
    experiment.set(max_trials=200)
    experiment.end(now=True)

    assert [(each.action, each.trial, each.arguments) for each in driver.seen] == [
        *((action, "0001", arguments) for action, (_, arguments) in VERBS.items()),
        ("add", "", {"config": {"lr": 0.1}, "source": "0001", "checkpoint": "best", "tags": ["mine"]}),
        ("set", "", {"max_trials": 200}),
        ("end", "", {"now": True}),
    ]
    requests = driver.seen[: len(answers)]
    assert answers == [Answer(request.id, is_done=True, trial="0001") for request in requests]
    assert (added.is_done, added.trial) == (True, "0003")


def test_what_can_not_be_sent_or_changes_nothing_is_refused_before_it_is_asked(
    experiment: ExperimentHandle, redis_client: redis.Redis
) -> None:
    with pytest.raises(ConfigurationError, match="restart can't be sent"):
        experiment.trial("0001").restart(checkpoint=object())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="give max_trials, max_concurrent"):
        experiment.set()

    assert requests_in(redis_client) == []


def test_a_request_that_is_repeated_has_the_same_answer_and_is_seen_once(
    experiment: ExperimentHandle, driver: AnsweringDriver
) -> None:
    first = experiment.trial("0001").pause(request_id="mine")
    for _ in range(3):
        assert experiment.trial("0001").pause(request_id="mine") == first

    assert len(driver.seen) == 1
    for _ in range(2):
        with pytest.raises(RequestRefused, match=r"'steered': trial 0001 has ended already"):
            experiment.trial("0001").fail(request_id="refused")
    assert len(driver.seen) == 2
    driver.leave()
    assert experiment.trial("0001").pause(request_id="mine") == first


def test_an_answer_is_waited_for_up_to_a_deadline_and_comes_later(
    experiment: ExperimentHandle, driver: AnsweringDriver
) -> None:
    driver.be_silent()

    began = time.monotonic()
    answer = experiment.trial("0001").pause(wait_s=0.3, request_id="late")

    assert 0.25 < time.monotonic() - began < 5
    assert not answer.is_done
    assert answer.reason == "the driver of experiment 'steered' has not answered yet; it will carry the request out"
    # Longer than a look takes.
    threading.Timer(0.5, driver.is_answering.set).start()
    assert experiment.trial("0001").pause(request_id="late").is_done


def test_without_a_driver_the_request_waits_for_the_next_one(
    experiment: ExperimentHandle, driver: AnsweringDriver, redis_client: redis.Redis
) -> None:
    driver.leave()

    began = time.monotonic()
    answer = experiment.trial("0001").pause()

    assert time.monotonic() - began < 5
    assert not answer.is_done
    assert answer.reason == "no driver runs experiment 'steered' now; the next one will carry the request out"
    assert [each.id for each in requests_in(redis_client)] == [answer.request_id]


def test_a_request_that_the_server_loses_is_made_again_by_who_waits(
    experiment: ExperimentHandle, driver: AnsweringDriver, redis_client: redis.Redis
) -> None:
    driver.be_silent()
    before = snapshot_of_redis(redis_client)
    answers: list[Answer] = []
    asking = threading.Thread(target=lambda: answers.append(experiment.trial("0001").pause(request_id="mine")))
    asking.start()
    eventually(lambda: requests_in(redis_client))

    redis_client.flushdb()
    set_back_redis(redis_client, before)
    eventually(lambda: requests_in(redis_client))
    driver.is_answering.set()
    asking.join(DEADLINE_S)

    assert [answer.is_done for answer in answers] == [True]
    assert len(driver.seen) == 1


def test_experiments_and_trials_are_listed(
    redis_server: EmbeddedServer, redis_client: redis.Redis, experiment: ExperimentHandle
) -> None:
    time.sleep(0.002)
    AnsweringDriver(redis_client, "newer").end()
    with mqtune.Client(redis_server.url) as client:
        assert [each.name for each in client.experiments()] == ["newer", NAME]
        with pytest.raises(ConfigurationError, match=r"no experiment 'steerd' on .*; there are 'newer', 'steered'"):
            client.experiment("steerd")

    assert [trial.id for trial in experiment.trials()] == ["0001", "0002"]
    assert [trial.id for trial in experiment.trials(TrialStatus.QUEUED)] == ["0001", "0002"]
    assert experiment.trials(TrialStatus.RUNNING) == []
    state = experiment.state()
    assert state is not None
    assert (state.name, state.metric, state.is_driven, state.outcome) == (NAME, "loss", True, "")


Spoil = Callable[[Any, ExperimentKeys], str]


def _other_entry(client: Any, keys: ExperimentKeys) -> str:
    # Nothing of mqtune's writes another field than e; an account that may append entries may.
    entry = client.xadd(keys.journal, {"z": b"1"}).decode()
    return f"entry {entry} of the journal holds b'1', which is not an event"


def _other_journal(client: Any, keys: ExperimentKeys) -> str:
    client.set(keys.journal, "none")
    return f"the Redis key {keys.journal} has the wrong type"


def _other_meta(client: Any, keys: ExperimentKeys) -> str:
    _created(client, keys, DEFINITION)
    client.set(keys.meta, "none")
    return f"the Redis key {keys.meta} has the wrong type"


def _no_definition(client: Any, keys: ExperimentKeys) -> str:
    _created(client, keys, {})
    return "experiment 'odd' has a definition that can't be read: KeyError: 'mode'"


def _odd_place(client: Any, keys: ExperimentKeys) -> str:
    _created(client, keys, DEFINITION)
    started = DriverStarted(driver="d", version="1", at=2.0, cursor=Cursor("later")).encode()
    entry = client.xadd(keys.journal, {"e": started}).decode()
    return f"entry {entry} of the journal holds a broken 'driven' event: cursor=['later', 0]"


def _created(client: Any, keys: ExperimentKeys, definition: dict[str, object]) -> None:
    client.xadd(keys.journal, {"e": ExperimentCreated(name="odd", definition=definition, at=1.0).encode()})


@pytest.mark.parametrize("spoil", [_other_entry, _other_journal, _other_meta, _no_definition, _odd_place])
def test_an_experiment_with_something_that_is_none_of_mqtunes_is_named_and_hides_no_other(
    redis_server: EmbeddedServer, redis_client: Any, driver: AnsweringDriver, spoil: Spoil
) -> None:
    started = AttemptStarted(trial=TrialId("0001"), attempt=1, worker="w@h", host="h", devices=[], at=2.0)
    driver.journal.record(started.encode())
    redis_client.zadd(EXPERIMENTS, {"odd": 1})
    named = spoil(redis_client, ExperimentKeys("odd"))

    listed = CliRunner().invoke(group, ["list", "--broker", redis_server.url])
    fleet = CliRunner().invoke(group, ["fleet", "--broker", redis_server.url])
    shown = CliRunner().invoke(group, ["show", "odd", "--broker", redis_server.url])
    page = {each["name"]: each for each in Places([], redis_server.url, broker_alone=True).listed().rows}

    rows = {line.split()[0]: line for line in listed.stdout.splitlines() if line.startswith((NAME, "odd"))}
    assert f"can't be read: {named}" in rows["odd"]
    assert "running" in rows[NAME]
    assert fleet.exit_code == 0, fleet.output
    assert f"odd can't be read: {named}" in fleet.stderr
    assert [NAME in line for line in fleet.stdout.splitlines() if line.startswith("w@h")] == [True]
    assert isinstance(shown.exception, MessageVersionError)
    assert named in str(page["odd"]["error"])
    assert page[NAME]["trials"] == 2


def test_an_experiment_of_which_a_key_is_of_another_type_can_be_deleted_once_that_key_is_gone(
    redis_server: EmbeddedServer, redis_client: Any, driver: AnsweringDriver
) -> None:
    driver.end()
    key = ExperimentKeys(NAME).journal
    redis_client.hset(ExperimentKeys(NAME).meta, "driver_until", 0)
    redis_client.delete(key)
    redis_client.set(key, "none")
    delete = ["delete", NAME, "--yes", "--broker", redis_server.url]

    refused = CliRunner().invoke(group, delete).exception
    redis_client.delete(key)
    done = CliRunner().invoke(group, delete)

    assert isinstance(refused, MessageVersionError)
    assert f"the Redis key {key} has the wrong type" in str(refused)
    assert done.exit_code == 0, done.output
    assert not list(redis_client.scan_iter("mqtune:x:*"))


def test_a_broker_that_goes_away_says_how_to_make_the_request_again(
    experiment: ExperimentHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RedisJournal, "request", Mock(side_effect=BrokerUnavailable("Redis gave no answer for 5 s")))

    with pytest.raises(BrokerUnavailable, match=r"make it again with request_id='mine', which carries it out once"):
        experiment.trial("0001").pause(request_id="mine")
