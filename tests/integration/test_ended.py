"""``mqtune archive --ended`` and ``gc --ended`` remove experiments that ended long ago from a broker, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner

import mqtune
from mqtune.backends import EmbeddedServer
from mqtune.checkpoints.directory import DirectoryStore
from mqtune.cli import group
from mqtune.core.codec import encode_value
from mqtune.core.events import START, ExperimentCreated
from mqtune.core.keys import ExperimentKeys
from mqtune.journal import JOURNAL_FILE, Chapter, RedisJournal, cut_chapters, experiments_on, keep_chapter
from mqtune.results.results import Results

DAY_MS = 86_400_000


def nothing(config: dict[str, Any]) -> None:
    """Runs nowhere."""


class Broker:
    """A server, and the experiments on it."""

    def __init__(self, url: str, client: redis.Redis, home: Path, elsewhere: Path) -> None:
        self.url, self.home, self._elsewhere = url, home, elsewhere
        self.client: Any = client

    def finished(self, name: str, *, days: int, store: Path | None = None) -> Path:
        """An experiment that finished so long ago; return its driver's folder, which is on another machine."""
        checkpoints = mqtune.Checkpoints(store=store)
        options = mqtune.RunOptions(progress=False)
        tuner = mqtune.Tuner(nothing, None, metric="loss", mode="min", backend=self.url, name=name,
                             checkpoints=checkpoints, run=options)  # fmt: skip
        tuner.finish("enough")
        tuner.close()
        self.make_older(name, days)
        return (self.home / name).rename(self._elsewhere / f"elsewhere-{name}")

    def make_older(self, name: str, days: int) -> None:
        key = ExperimentKeys(name).journal
        found = self.client.xrange(key)
        self.client.delete(key)
        for id_, fields in found:
            time, _, number = id_.decode().partition("-")
            self.client.xadd(key, fields, id=f"{int(time) - days * DAY_MS}-{number}")

    def make_unreadable(self, name: str) -> None:
        key = ExperimentKeys(name).journal
        (first, fields), *_ = self.client.xrange(key)
        self.client.delete(key)
        self.client.xadd(key, dict.fromkeys(fields, b"no event"), id=first)

    def journal(self, name: str) -> RedisJournal:
        return RedisJournal(self.client, name, patience_s=1.0)

    def names(self) -> set[str]:
        return set(experiments_on(self.client, patience_s=1.0))

    def said(self, verb: str, *arguments: str, code: int = 0) -> str:
        """Remove ended experiments by a command, and return its output."""
        done = CliRunner().invoke(group, [verb, *arguments, "--broker", self.url])
        assert done.exit_code == code, (done.output, done.exception)
        return done.output


@pytest.fixture
def broker(redis_server: EmbeddedServer, redis_client: redis.Redis, tmp_path: Path, mqtune_home: Path) -> Broker:
    return Broker(redis_server.url, redis_client, mqtune_home, tmp_path)


def test_what_finished_long_ago_is_archived_and_leaves_and_what_has_not_stays(broker: Broker) -> None:
    broker.finished("old", days=40)
    broker.finished("recent", days=20)
    broker.finished("driven", days=40)
    broker.journal("driven").lock("somebody", "process 1 on head", 60)
    created = ExperimentCreated(name="begun", definition={"metric": "loss"}, at=1.0)
    begun = broker.journal("begun")
    begun.lock("somebody", "process 1 on head", 60)
    begun.record(created.encode(), definition=encode_value(created.definition))
    begun.unlock("somebody")
    broker.make_older("begun", 40)

    planned = broker.said("archive", "--ended", "30d", "--dry-run")
    assert [line.split()[2] for line in planned.splitlines()] == ["old:"]
    assert broker.names() == {"old", "recent", "driven", "begun"}

    assert "old is archived" in broker.said("archive", "--ended", "30d", "--yes")

    assert broker.names() == {"recent", "driven", "begun"}
    assert not broker.client.keys("mqtune:x:{old}:*")
    assert Results.load("old").outcome == "finished"
    assert "no experiment ended that long ago" in broker.said("archive", "--ended", "30d", "--yes")


def test_what_can_not_be_archived_stays_is_named_and_holds_up_no_other(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    copies = {name: broker.finished(name, days=40, store=tmp_path / "store") for name in ("one", "two", "three")}
    # The oldest entries of one are in a chapter, which somebody has deleted.
    store = DirectoryStore(tmp_path / "store" / "two")
    store.check()
    [cut, *_] = cut_chapters(copies["two"] / JOURNAL_FILE, 0, 1)
    keep_chapter(store, cut)
    journal = broker.journal("two")
    journal.lock("driver", "", 60)
    entry = journal.read(START.entry, count=1)[0]
    chapter = Chapter(cut.chapter.id, entry.id, entry.id, cut.chapter.entries, cut.chapter.size)
    assert journal.trim(chapter, "") is not None
    journal.unlock("driver")
    store.delete(chapter.id)
    (broker.home / "three").write_bytes(b"no folder")

    said = broker.said("archive", "--ended", "30d", "--yes", code=1)

    assert broker.names() == {"two", "three"}
    assert "kept: two" in said
    assert chapter.id in said
    assert "kept: three" in said
    assert Results.load("one").outcome == "finished"

    # Deleting needs no chapter.
    broker.said("gc", "--ended", "30d", "--yes")
    assert broker.names() == set()


def test_an_unreadable_experiment_is_named_and_does_not_stop_the_others(broker: Broker) -> None:
    for name in ("old", "unreadable"):
        broker.finished(name, days=40)
    broker.make_unreadable("unreadable")

    said = broker.said("archive", "--ended", "30d", "--yes", code=1)

    assert "kept: unreadable can't be read" in said
    assert broker.names() == {"unreadable"}


@pytest.mark.parametrize("verb", ["archive", "gc"])
def test_an_experiment_that_continues_before_its_turn_is_kept(
    verb: str, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("continued", "old"):
        broker.finished(name, days=40)

    def confirm(*_: object, **__: object) -> bool:
        broker.make_older("continued", -39)
        return True

    monkeypatch.setattr(f"mqtune.cli.{verb}.is_wanted", confirm)

    assert "kept: continued has continued" in broker.said(verb, "--ended", "30d", code=1)
    assert broker.names() == {"continued"}


def test_experiments_of_others_are_kept_without_force(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.finished("old", days=40)
    monkeypatch.setenv("LOGNAME", "somebody-else")

    for verb in ("archive", "gc"):
        assert "kept: old: this is " in broker.said(verb, "--ended", "30d", "--yes")
        assert broker.names() == {"old"}
    broker.said("gc", "--ended", "30d", "--yes", "--force")
    assert broker.names() == set()


def test_a_dry_run_removes_nothing(broker: Broker) -> None:
    broker.finished("old", days=40)

    assert "would archive  old" in broker.said("archive", "old", "--dry-run")
    assert "would archive  old" in broker.said("archive", "--ended", "30d", "--dry-run", "--yes")
    assert "would delete  old" in broker.said("gc", "--ended", "30d", "--dry-run", "--yes")
    assert '"deleted": false' in broker.said("gc", "--ended", "30d", "--dry-run", "--yes", "--json")
    assert broker.names() == {"old"}


def test_a_name_narrows_down_the_ended_experiments(broker: Broker) -> None:
    for name, days in (("old", 40), ("older", 50), ("recent", 20), ("unreadable", 40)):
        broker.finished(name, days=days)
    broker.make_unreadable("unreadable")

    assert "no experiment ended that long ago" in broker.said("archive", "recent", "--ended", "30d", "--yes")
    assert "older is archived" in broker.said("archive", "older", "--ended", "30d", "--yes")
    assert broker.names() == {"old", "recent", "unreadable"}


def test_an_invalid_time_is_refused(broker: Broker) -> None:
    for verb in ("archive", "gc"):
        assert "'soon' is not a time" in broker.said(verb, "--ended", "soon", code=2)
