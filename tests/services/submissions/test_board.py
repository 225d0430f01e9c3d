"""Submissions on a real server: one worker at a time runs a script, until it has ended."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis
from servers import EACH_SERVER, started_on
from waiting import eventually

from mqtune.backends import EmbeddedServer
from mqtune.core.errors import BrokerFull, CodeRefused, NameTaken
from mqtune.core.keys import ExperimentKeys
from mqtune.core.owner import Owner
from mqtune.core.submission import Submission
from mqtune.core.timing import Timing
from mqtune.journal import RedisClient, RedisJournal, connect, experiments_on
from mqtune.services.submissions.board import MOST_SHORT, Submissions
from mqtune.trainable import Bundle, File

KEY = "the key of this test's workers"
BUNDLE = Bundle.of({"tune.py": File(b"print(1)")})
_tokens = map(str, itertools.count(1))


@pytest.fixture(scope="module", params=EACH_SERVER)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedServer.start(tmp_path_factory.mktemp("submissions"), binary=started_on(request)) as server:
        yield server.url


@pytest.fixture
def client(url: str) -> Iterator[RedisClient]:
    with contextlib.closing(connect(url)) as found:
        found.flushdb()
        yield found


@pytest.fixture
def there(client: redis.Redis) -> Submissions:
    return Submissions(client, patience_s=5)


def submission(name: str = "sweep", **changed: Any) -> Submission:
    parts = {"script": "tune.py", "arguments": ("--epochs", "5"), "bundle": BUNDLE.digest, **changed}
    return Submission(name=name, owner=Owner("a", "ada", "laptop"), at=1.0, **parts)


def submit(there: Submissions, name: str = "sweep") -> None:
    there.submit(submission(name), BUNDLE, KEY)


def take(there: Submissions, worker: str = "w1", name: str = "sweep") -> tuple[Any, str]:
    token = next(_tokens)
    taken = there.take(name, worker, token)
    assert taken is not None
    return taken, token


def state(there: Submissions, name: str = "sweep") -> Any:
    found = there.state(name)
    assert found is not None
    return found


def test_a_submission_waits_is_taken_once_and_ends_with_its_run(there: Submissions, client: redis.Redis):
    submit(there, "first")
    submit(there)
    assert there.due() == ["first", "sweep"]
    assert sorted(experiments_on(client, patience_s=5)) == ["first", "sweep"]
    waiting = state(there)
    assert (waiting.submission, waiting.state, waiting.is_kept) == (submission(), "waiting", False)

    taken, token = take(there)

    assert (taken.run, taken.is_first, taken.submission(KEY)) == (1, True, submission())
    assert there.bundle("sweep", BUNDLE.digest) == BUNDLE
    assert there.take("sweep", "w1", token) == taken
    assert there.take("sweep", "w2", "another") is None
    assert (there.due(), there.keep("sweep", token)) == (["first"], "")
    there.leave("sweep", token, "failed", code=3, reason="exit code 3", output="…")
    ended = state(there)
    assert (ended.state, ended.how, ended.code) == ("ended", "failed", 3)
    assert (ended.reason, ended.output) == ("exit code 3", "…")
    assert there.keep("sweep", token) == "over"
    assert there.take("sweep", "w2", "another") is None
    submit(there)
    assert (there.halt("sweep", "by ada"), there.halt("sweep", "by bob")) == ("stopped", "ended")
    ended = state(there)
    assert (ended.how, ended.reason, there.due()) == ("stopped", "by ada", ["first"])


def test_a_lost_submission_runs_elsewhere_and_fences_its_first_worker(there: Submissions, client: RedisClient):
    # For workers whose hold runs out soon.
    client.timing = Timing(lock_s=0.05)
    briefly = Submissions(client, patience_s=5)
    submit(there)
    _, lost = take(briefly)
    eventually(lambda: there.due() == ["sweep"])
    # A late renewal counts if no other worker has taken the submission.
    assert (briefly.keep("sweep", lost), there.due()) == ("", [])
    eventually(lambda: there.due() == ["sweep"])
    taken, token = take(there, "w2")
    assert (taken.run, taken.is_first) == (2, False)
    assert there.keep("sweep", lost) == "over"
    there.leave("sweep", lost, "failed", code=1, reason="", output="")
    assert (state(there).state, state(there).run, state(there).how) == ("running", 2, "")
    assert there.keep("sweep", token) == ""


def test_quickly_lost_runs_end_a_submission_and_returned_runs_do_not(there: Submissions, client: RedisClient):
    submit(there)
    for _ in range(2 * MOST_SHORT):
        there.leave("sweep", take(there)[1], "again", code=None, reason="drained", output="")
    for _ in range(MOST_SHORT - 1):
        there.leave("sweep", take(there)[1], "lost", code=-9, reason="killed", output="")
    # A long run is no sign of a bad script.
    client.timing = Timing(short_run_s=0.0)
    there.leave("sweep", take(Submissions(client, patience_s=5))[1], "lost", code=-9, reason="killed", output="the end")
    for _ in range(MOST_SHORT - 1):
        there.leave("sweep", take(there)[1], "lost", code=-9, reason="killed", output="the end")
    assert there.due() == ["sweep"]
    assert there.take("sweep", "w1", "t") is None
    found = state(there)
    assert (found.how, found.output, there.due()) == ("failed", "the end", [])
    assert found.reason == "it was lost 3 times in a row soon after it began, at last as killed"


def test_what_somebody_drives_is_neither_submitted_nor_taken(there: Submissions, client: redis.Redis):
    submit(there)
    journal = RedisJournal(client, "sweep")
    journal.lock("a person", "process 1", 20)
    assert there.take("sweep", "w1", "t") is None
    assert there.due() == ["sweep"]
    journal.unlock("a person")
    _, token = take(there)
    # The lock of a driver that was not this run stays.
    RedisJournal(client, "sweep").lock("holder", "process 1 on laptop", 600)
    there.leave("sweep", token, "again", code=None, reason="", output="", process="process 2 on w")
    assert there.take("sweep", "w2", "other") is None
    RedisJournal(client, "other").lock("a person", "process 1", 20)
    with pytest.raises(NameTaken, match="somebody drives experiment 'other'"):
        submit(there, "other")


def test_who_may_write_to_the_server_and_has_no_key_has_nothing_else_run(there: Submissions, client: Any):
    key = ExperimentKeys("sweep").submission
    submit(there)
    submit(there, "other")
    parts = ("description", "signature")
    signed: dict[str, bytes] = dict(zip(parts, client.hmget(key, *parts), strict=True))
    changed = submission(arguments=("--evil",)).encode()
    for fields in ({"description": changed}, {"signature": "00"}):
        client.hset(key, mapping=fields)
        with pytest.raises(CodeRefused, match="not signed with the MQTUNE_CODE_KEY"):
            take(there)[0].submission(KEY)
        client.hset(key, mapping={"state": "waiting", **signed})
    with pytest.raises(CodeRefused, match="not signed"):
        take(there)[0].submission(KEY[::-1])
    # A signature is for one name alone.
    client.hset(ExperimentKeys("other").submission, mapping=signed)
    with pytest.raises(CodeRefused, match="its description is of 'sweep'"):
        take(there, name="other")[0].submission(KEY)


def test_workers_that_may_not_run_a_submission_are_known_until_it_runs(there: Submissions, client: redis.Redis):
    def refused() -> tuple[tuple[str, ...], str]:
        found = state(there)
        assert (found.state, found.run) == ("waiting", 0)
        return found.refused_by, found.refusal

    submit(there)
    signed = there.signed("sweep")
    assert signed is not None
    assert signed.submission(KEY) == submission()
    assert refused() == ((), "")

    there.refuse(signed, "w1", "no key")
    there.refuse(signed, "w1", "no key")
    assert refused() == (("w1",), "no key")
    workers = tuple(f"w{number}" for number in range(2, 30))
    for worker in workers:
        there.refuse(signed, worker, "another key")
    last, _ = refused()
    assert last == workers[-len(last) :] != workers, "the last ones are kept, and no more"
    assert there.due() == ["sweep"]
    # A newer submission of the name is another one.
    there.refuse(replace(signed, signature="00"), "w4", "late")
    assert refused() == (last, "another key")

    _, token = take(there, "w5")
    found = state(there)
    assert (found.state, found.refused_by, found.refusal) == ("running", (), "")
    there.leave("sweep", token, "done", code=0, reason="", output="")
    there.refuse(signed, "w1", "no key")
    found = state(there)
    assert found.refused_by == ()
    assert there.signed("gone") is None


def test_a_full_server_keeps_ends_and_stops_submissions_but_takes_none(there: Submissions, client: redis.Redis):
    submit(there, "ended")
    there.leave("ended", take(there, name="ended")[1], "failed", code=1, reason="exit code 1", output="")
    for name in ("kept", "ends", "stops"):
        submit(there, name)
    tokens = {name: take(there, name=name)[1] for name in ("kept", "ends", "stops")}
    submit(there, "waits")
    waiting = there.signed("waits")
    assert waiting is not None
    client.config_set("maxmemory", 1)
    try:
        assert there.keep("kept", tokens["kept"]) == ""
        there.leave("ends", tokens["ends"], "done", code=0, reason="", output="")
        there.refuse(waiting, "w", "no key")
        assert there.halt("stops", "by ada") == "told"
        for name in ("ended", "new"):
            with pytest.raises(BrokerFull, match="Redis is full"):
                Submissions(client, patience_s=0.1).submit(submission(name), BUNDLE, KEY)
    finally:
        client.config_set("maxmemory", 0)
    assert (state(there, "ended").how, there.state("new")) == ("failed", None)
