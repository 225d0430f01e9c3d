"""``mqtune gc`` deletes orphans and leaves everything that may have an owner."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from accounts import Accounts
from book import Book
from click.testing import CliRunner
from waiting import ended_process

from mqtune.backends import EmbeddedServer, ServerBinary
from mqtune.checkpoints import CheckpointStore, Tenant, experiment_url, open_store
from mqtune.cli import group
from mqtune.core.codec import encode_value
from mqtune.core.errors import AccessDenied
from mqtune.core.keys import EXPERIMENTS, TASK_NAME, ExperimentKeys
from mqtune.core.machine import process_mark, started_at
from mqtune.core.timing import Timing
from mqtune.core.trial import checkpoint_id
from mqtune.driver import claim
from mqtune.journal import RedisJournal, connect
from mqtune.services.upkeep.garbage import garbage_on
from mqtune.services.upkeep.marks import give_to_archive

QUEUE = "mqtune-0-2-cpu1"


def run(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(group, ["gc", *arguments])
    if isinstance(done.exception, AccessDenied):
        raise done.exception
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def begin(client: Any, name: str, definition: bytes | None = None) -> None:
    """Have a driver that has written nothing yet, or one with a definition that has ended."""
    journal = RedisJournal(client, name, patience_s=5)
    journal.lock(f"{name}'s", "somebody elsewhere", Timing().lock_s)
    if definition is not None:
        journal.record(b"event", definition=definition)
        journal.unlock(f"{name}'s")


def message(task_id: str, task: str = TASK_NAME) -> str:
    return json.dumps({"headers": {"id": task_id, "task": task}})


@pytest.fixture(autouse=True)
def home(mqtune_home: Path) -> Path:
    return mqtune_home


@pytest.fixture
def _left(redis_client: Any, redis_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server with orphans of interrupted deletions, beside owned keys that look like them."""
    monkeypatch.setenv("MQTUNE_BROKER", redis_server.url)
    begin(redis_client, "cut")
    RedisJournal(redis_client, "cut").unlock("cut's")
    begin(redis_client, "begins")
    begin(redis_client, "written", b"definition")
    # A server that evicts keys may have lost its name alone.
    begin(redis_client, "unlisted", b"definition")
    redis_client.zrem(EXPERIMENTS, "unlisted")
    for name in ("gone", "written", "begins", "unlisted", "comes-back"):
        redis_client.hset(ExperimentKeys(name).trial("0001"), "attempt", "1")
        redis_client.rpush(QUEUE, message(f"{name}/0001/1"))
    redis_client.hset(ExperimentKeys("gone").checkpoints, "0001-1-1", b"x" * 5000)
    # A driver restores the server's lost entries.
    redis_client.xadd(ExperimentKeys("comes-back").restored("mark"), {"e": b"event"})
    redis_client.rpush(QUEUE, message("gone/0001/1", "another.task"), "no json")


def names_and_keys(client: Any) -> set[str]:
    names = {name.decode() for name in client.zrange(EXPERIMENTS, 0, -1)}
    return names | {key.decode() for key in client.scan_iter("mqtune:x:*")}


@pytest.mark.usefixtures("_left")
def test_what_belongs_to_nothing_goes_and_all_else_stays(redis_client: Any) -> None:
    before = names_and_keys(redis_client)
    gone, cut = ExperimentKeys("gone"), ExperimentKeys("cut")

    planned = run("--dry-run")
    assert "can't ask for confirmation without a terminal; pass --yes" in run(code=2)
    assert names_and_keys(redis_client) == before
    assert redis_client.llen(QUEUE) == 7
    done = run("--yes")

    assert "would delete  cut: its name alone" in planned
    assert "would delete  gone: 1 messages in queues of workers, 0.1 KiB" in planned
    assert "would delete  gone: 2 keys, 5." in planned
    assert done.endswith("4 of 4 deleted\n")
    assert before - names_and_keys(redis_client) == {"cut", cut.driver, cut.meta, gone.trial("0001"), gone.checkpoints}
    queued = [json.loads(each)["headers"]["id"] for each in redis_client.lrange(QUEUE, 0, -1)[:-1]]
    assert queued == [f"{name}/0001/1" for name in ("written", "begins", "unlisted", "gone")]
    assert run("--yes") == "there is nothing to delete\n"


@pytest.mark.usefixtures("_left")
def test_what_somebody_begins_to_use_meanwhile_is_kept(redis_client: Any, redis_server: EmbeddedServer) -> None:
    with garbage_on(redis_server.url) as (found, _):
        begin(redis_client, "gone")
        redis_client.hset(ExperimentKeys("cut").meta, "definition", b"definition")
        before = names_and_keys(redis_client)
        kept = [each.experiment for each in found if not each.delete()]

    assert kept == ["cut", "gone", "gone"]
    assert names_and_keys(redis_client) == before
    assert redis_client.llen(QUEUE) == 6


@pytest.mark.usefixtures("_left")
def test_an_account_deletes_its_own_and_hears_what_is_hidden(redis_client: Any, redis_server: EmbeddedServer) -> None:
    before = names_and_keys(redis_client)
    with contextlib.closing(Accounts(redis_server.url)) as accounts:
        monitor, driver = accounts.make("monitor"), accounts.make("driver")

        with pytest.raises(AccessDenied):
            run("--yes", "--broker", monitor)
        assert names_and_keys(redis_client) == before
        done = run("--yes", "--broker", driver)

    assert "not searched: keys, and messages in queues without a worker: this account may not see them; " in done
    assert "one of mqtune fleet acl driver --all-keys may" in done
    assert "cut" not in names_and_keys(redis_client)
    assert ExperimentKeys("gone").trial("0001") in names_and_keys(redis_client)


def test_orphaned_checkpoints_go(redis_client: Any, redis_server: EmbeddedServer, home: Path, tmp_path: Path) -> None:
    place = tmp_path / "shared"

    def saved(name: str, *tenants: Tenant) -> CheckpointStore:
        store = open_store(experiment_url(place, name))
        store.create()
        if not tenants:
            claim(store, redis_client, name, patience_s=5)
        for tenant in tenants:
            store.claim(tenant)
        (tmp_path / "model").mkdir(exist_ok=True)
        store.save(checkpoint_id("0001", 1, 1, in_memory=False), tmp_path / "model", {})
        return store

    (place / "somebodys").mkdir(parents=True)
    gone, known, archived = saved("gone"), saved("known"), saved("archived")
    mine = gone.tenants()[0]
    saved("of-both", Tenant("another", "of-both"), Tenant(mine.broker, "of-both", *mine[2:]))
    saved("of-another", Tenant("another", "of-another"))
    begin(redis_client, "known", b"definition")
    give_to_archive(archived, Tenant(mine.broker, "archived", *mine[2:]))
    Book(home / "is-here").save()
    saved("is-here")
    # From before anybody said whose they are.
    unsaid = saved("unsaid")
    unsaid.release(Tenant(mine.broker, "unsaid", *mine[2:]))
    claim(unsaid, redis_client, "unsaid", patience_s=5)
    taken = ("--broker", redis_server.url, "--checkpoints", str(place))

    assert run(*taken, "--yes") == "there is nothing to delete\n", "nothing is old enough"
    assert "needs the broker" in run("--checkpoints", str(place), code=2)
    planned = run(*taken, "--min-age", "0", "--dry-run")
    kept = gone.ids()
    done = run(*taken, "--min-age", "0", "--yes")

    assert planned == f"would delete  {place}/gone: 1 checkpoints of an experiment that the broker no longer has\n"
    assert kept
    assert done.endswith("1 of 1 deleted\n")
    assert {path.name for path in place.iterdir()} == {
        "archived", "is-here", "known", "of-another", "of-both", "somebodys", "unsaid",
    }  # fmt: skip
    assert known.ids()
    assert "gone" not in names_and_keys(redis_client)
    assert "not searched: " in run(*taken[:3], str(tmp_path / "absent"), "--yes")


def test_deleting_on_a_copy_of_a_server_leaves_the_checkpoints_to_the_original(
    redis_client: Any, redis_server: EmbeddedServer, tmp_path: Path, server_binary: ServerBinary
) -> None:
    store = open_store(experiment_url(tmp_path / "shared", "moved"))
    store.create()
    claim(store, redis_client, "moved", patience_s=5)
    begin(redis_client, "moved", encode_value({"store": store.url}))
    (folder := store.staging()).joinpath("model").write_text("weights")
    store.save(checkpoint_id("0001", 1, 1, in_memory=False), folder, {})

    # As a copy of the server's file would have it.
    copy = EmbeddedServer.start(tmp_path / "copy", binary=server_binary)
    with copy, contextlib.closing[Any](connect(copy.url)) as client:
        for key in redis_client.scan_iter("*"):
            client.restore(key, 0, redis_client.dump(key))
        done = CliRunner().invoke(group, ["delete", "moved", "--yes", "--broker", copy.url])
        assert names_and_keys(client) == set()

    assert done.exit_code == 0, (done.output, done.exception)
    assert f"the checkpoints in {store.url.partition('#')[0]} are kept: " in done.output
    assert len(store.ids()) == 1
    assert CliRunner().invoke(group, ["delete", "moved", "--yes", "--broker", redis_server.url]).exit_code == 0
    assert not Path(store.describe()).exists()


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        ({"run": "r1"}, True),
        ({"place": "head:6379/0"}, True),
        ({"place": "head:6379/0 10.0.0.2"}, False),
        ({"place": "spare:6379/0 10.0.0.1"}, False),
        ({}, False),
        ({"run": "r1", "broker": "b2"}, False),
        ({"run": "r1", "experiment": "other"}, False),
    ],
)
def test_a_server_is_the_same_if_its_id_and_its_process_or_its_address_are(other: dict[str, str], *, is_same: bool):
    mine = Tenant("b1", "x", "r1", "head:6379/0 10.0.0.1")
    found = Tenant(**{"broker": "b1", "experiment": "x", **other})

    assert (mine.is_same(found), found.is_same(mine)) == (is_same, is_same)
    assert Tenant.decode(found.encode()) == found


def test_what_killed_processes_left_here_goes_and_what_living_ones_have_stays(home: Path, server_binary: ServerBinary):
    for name in ("killed", "runs"):
        Book(home / name).save()
    (home / "killed" / "redis" / "appendonlydir").mkdir(parents=True)
    for name in ("lock", "url", "server.conf", "server.log"):
        (home / "killed" / "redis" / name).write_text("x")
    place, began = process_mark().split(".")
    gone = home / ".scratch" / f"here.{ended_process()}.{place}.{began}"
    lives = home / ".scratch" / f"here.{os.getppid()}.{place}.{started_at(os.getppid())}"
    for worker in (gone, lives):
        (worker / "attempt").mkdir(parents=True)
        (worker / "attempt" / "big").write_bytes(b"x" * 10_000)

    with EmbeddedServer.start(home / "runs", binary=server_binary) as server:
        planned = run("--dry-run")
        assert gone.exists()
        done = run("--yes")
        assert EmbeddedServer.running_url(home / "runs") == server.url

    assert f"{home / 'killed' / 'redis'}: 2 files of a server that has ended, 0.0 KiB\n" in planned
    assert f"{gone}: temporary files of a worker that has ended" in planned
    assert done.endswith("2 of 2 deleted\n")
    assert {path.name for path in (home / "killed" / "redis").iterdir()} == {"lock", "server.log", "appendonlydir"}
    assert (lives / "attempt" / "big").exists()
    assert not gone.exists()
    assert run("--yes") == "there is nothing to delete\n"
