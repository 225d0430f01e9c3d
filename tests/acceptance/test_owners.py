"""Experiments and workers have owners: they are shown, nobody changes another's without --force, and changes are kept."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trainables
from accounts import Accounts
from click.testing import CliRunner
from fleets import worker

import mqtune
from mqtune.backends import EmbeddedServer, find_binary
from mqtune.cli import group
from mqtune.cli.ui.places import Places
from mqtune.cli.ui.steering import steer
from mqtune.core.errors import ConfigurationError, MqtuneError
from mqtune.core.events import DriverStarted, Requested, decode_event
from mqtune.journal import Fleet, RedisJournal, connect
from mqtune.services.ownership.audit import newest_entries

HOST = socket.gethostname()
#: How long a worker that says nothing is in the fleet.
GONE_S = 3.0
LONG_S = 60.0


class Person(NamedTuple):
    name: str
    url: str


class Team(NamedTuple):
    server: str
    ada: Person
    bob: Person
    #: With an operator's account.
    ops: Person


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    with (
        EmbeddedServer.start(tmp_path_factory.mktemp("owners"), binary=find_binary()) as server,
        contextlib.closing(Accounts(server.url)) as accounts,
    ):
        yield Team(
            server.url,
            Person("ada", accounts.make("driver", "team-a")),
            Person("bob", accounts.make("driver", "team-b")),
            Person("olaf", accounts.make("operator")),
        )


def made(person: Person, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a person begin an experiment, of which one trial waits, and leave."""
    monkeypatch.setenv("LOGNAME", person.name)
    tuner = mqtune.Tuner(
        trainables.steady, {"x": mqtune.uniform(0, 1)}, metric="loss", mode="min", name=name, backend=person.url
    )
    with contextlib.closing(tuner):
        tuner.add({"x": 0.5})
    monkeypatch.undo()


def by(person: Person, *arguments: str, home: Path) -> str:
    """Return what a command says to a person, on a machine that has nothing of any experiment."""
    environment = {"LOGNAME": person.name, "MQTUNE_BROKER": person.url, "MQTUNE_HOME": str(home)}
    done = CliRunner().invoke(group, arguments, env=environment)
    if isinstance(done.exception, MqtuneError):
        raise done.exception
    # 3: what was requested waits for a driver.
    assert done.exit_code in (0, 3), done.output
    return done.output


def events_of(team: Team, name: str, kind: type) -> list[Any]:
    with contextlib.closing(connect(team.server)) as client:
        events = [decode_event(entry.data) for entry in RedisJournal(client, name).read("0-0", count=100)]
    return [event for event in events if isinstance(event, kind)]


def test_the_owner_is_shown_where_experiments_are_and_filters_them(
    team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(team.ada, "of-ada", monkeypatch)
    made(team.bob, "of-bob", monkeypatch)

    def listed(*options: str) -> dict[str, dict[str, str]]:
        return {
            each["name"]: each["owner"] for each in json.loads(by(team.bob, "list", "--json", *options, home=tmp_path))
        }

    ada = {"account": "team-a", "user": "ada", "host": HOST}
    assert listed()["of-ada"] == ada
    assert [*listed("--owner", "me")] == ["of-bob"]
    for owner in ("ada", "team-a", f"ada@{HOST}"):
        assert {"of-ada", "of-bob"} & listed("--owner", owner).keys() == {"of-ada"}
    assert f"ada@{HOST} (team-a)" in by(team.bob, "list", home=tmp_path)
    assert f"bob@{HOST}" not in by(team.bob, "list", "--owner", "me", home=tmp_path)
    assert f"by ada@{HOST} (team-a)" in by(team.bob, "show", "of-ada", home=tmp_path)
    assert f"of ada@{HOST} (team-a)" in events_of(team, "of-ada", DriverStarted)[0].driver


@pytest.mark.parametrize(
    "arguments",
    [
        ("delete", "NAME", "--yes"),
        ("end", "NAME", "--wait", "0"),
        ("stop", "NAME", "1", "--as", "failed", "--wait", "0"),
        ("set", "NAME", "max_concurrent=1", "--wait", "0"),
        ("tell", "NAME", "--config", "x=0.1", "loss=1", "--wait", "0"),
    ],
)
def test_nobody_changes_an_experiment_of_another_without_force(
    team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    name = "-".join(re.findall("[a-z]+", " ".join(arguments)))
    made(team.ada, name, monkeypatch)
    command = [name if each == "NAME" else each for each in arguments]

    with pytest.raises(ConfigurationError, match=rf"{name}.*ada@{HOST} \(team-a\).*--force"):
        by(team.bob, *command, home=tmp_path / "bob")
    assert not events_of(team, name, Requested)
    by(team.bob, *command, "--force", home=tmp_path / "bob")

    with contextlib.closing(connect(team.ops.url)) as client:
        kept = newest_entries(client, 1_000)
    entry = [entry for entry in kept if name in entry.target and entry.action == "force"][-1]
    assert entry.by == f"bob@{HOST} (team-b)"
    assert f"of ada@{HOST} (team-a)" in entry.detail
    if arguments[0] == "set":
        rows = json.loads(by(team.ada, "events", name, "--json", home=tmp_path))
        assert [(row["by"], row["done"]) for row in rows if row["action"] == "set"] == [(entry.by, None)]


def test_a_client_changes_an_experiment_of_another_only_with_force(
    team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(team.ada, "by-code", monkeypatch)
    monkeypatch.setenv("LOGNAME", "bob")

    with mqtune.Client(team.bob.url) as client:
        (listed,) = (each for each in client.experiments() if each.name == "by-code")
        for change in (partial(listed.end, now=True), listed.trial("0001").stop, partial(listed.set, max_trials=1)):
            with pytest.raises(ConfigurationError, match=r"'by-code': this is ada@.*force=True"):
                change(wait_s=0)
        assert not events_of(team, "by-code", Requested)
        assert client.experiment("by-code", force=True).end(now=True, wait_s=0).reason.startswith("no driver")
    assert [request.action for request in events_of(team, "by-code", Requested)] == ["end"]

    with pytest.raises(ConfigurationError, match=r"'by-code': this is ada@"):
        steer(Places([], team.bob.url, broker_alone=True), {"name": "by-code", "verb": "end"})


def test_the_audit_stream_says_who_drained_set_quotas_and_deleted(
    team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(team.ada, "audited", monkeypatch)
    with contextlib.closing(connect(team.server)) as client:
        Fleet(client, patience_s=5).join(worker(name="audited@gpu", user="olaf", host=HOST), GONE_S)
    with pytest.raises(ConfigurationError, match="no worker 'audite' is connected"):
        by(team.ops, "fleet", "drain", "all", "audite", home=tmp_path)
    by(team.ops, "fleet", "drain", "audited@gpu", "audited", home=tmp_path)
    by(team.ops, "fleet", "quota", "audit*", "3", "--priority", "low", home=tmp_path)
    by(team.ops, "fleet", "quota", "audit*", "none", home=tmp_path)
    by(team.ada, "delete", "audited", "--yes", home=tmp_path)

    rows = json.loads(by(team.ops, "events", "--json", home=tmp_path))

    olaf = f"olaf@{HOST} (mqtune-operator)"
    mine = [row for row in rows if "audit" in row["target"]]
    assert [(row["action"], row["target"], row["by"], row["detail"]) for row in mine] == [
        ("drain", "audited@gpu", olaf, ""),
        ("quota", "audit*", olaf, "3 slots"),
        ("cap", "audit*", olaf, "priority=low"),
        ("drop-quota", "audit*", olaf, ""),
        ("delete", "audited", f"ada@{HOST} (team-a)", f"1 trials, of ada@{HOST} (team-a)"),
    ]
    assert "audited@gpu" in by(team.ops, "events", home=tmp_path)


def test_a_worker_that_another_has_started_is_drained_with_force_or_by_an_operator(team: Team, tmp_path: Path) -> None:
    with contextlib.closing(connect(team.server)) as client:
        fleet = Fleet(client, patience_s=5)

        def join() -> None:
            # It does not hear, and is gone when nobody keeps it.
            fleet.join(worker(name="gpu@node", account="team-a", user="ada", host=HOST), GONE_S)

        join()
        with pytest.raises(ConfigurationError, match=r"worker gpu@node: this is ada@"):
            by(team.bob, "fleet", "drain", "gpu@node", home=tmp_path)
        for who, options in ((team.bob, ["--force"]), (team.ops, [])):
            join()
            assert "gpu@node has shut down" in by(who, "fleet", "drain", "gpu@node", *options, home=tmp_path)


def test_a_device_of_a_worker_that_another_has_started_is_drained_with_force_or_by_an_operator(
    team: Team, tmp_path: Path
) -> None:
    with contextlib.closing(connect(team.server)) as client:
        info = worker(name="two@node", account="team-a", user="ada", host=HOST, devices=["0", "1"])
        Fleet(client, patience_s=5).join(info, LONG_S)
        for verb, doing in (("drain", "disable"), ("undrain", "enable")):
            with pytest.raises(ConfigurationError, match=r"worker two@node: this is ada@"):
                by(team.bob, "fleet", verb, "two@node:1", home=tmp_path)
            for who, options in ((team.bob, ["--force"]), (team.ops, [])):
                by(who, "fleet", verb, "two@node:1", *options, home=tmp_path)
            rows = json.loads(by(team.ops, "events", "--json", home=tmp_path))
            assert [row["action"] for row in rows if row["target"] == "two@node:1"].count(doing) == 2
        Fleet(client, patience_s=5).leave(info.name)
