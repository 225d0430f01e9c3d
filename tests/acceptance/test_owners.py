"""Experiments and workers have owners: they are shown, and nobody ends another's without saying so."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import trainables
from accounts import Accounts
from click.testing import CliRunner
from fleets import worker

import mqtune
from mqtune.backends.local.server import EmbeddedServer, find_binary
from mqtune.cli import group
from mqtune.core.errors import ConfigurationError, MqtuneError
from mqtune.core.events import AttemptStarted, DriverStarted, Requested, decode_event
from mqtune.core.trial import TrialId
from mqtune.journal.base import Claim, Grant
from mqtune.journal.connection import connect
from mqtune.journal.fleet import Fleet
from mqtune.journal.redis import RedisJournal

HOST = socket.gethostname()
#: How long a worker that says nothing is in the fleet.
GONE_S = 3.0


class Person(NamedTuple):
    """A user of a machine, and the broker's URL with that user's account."""

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
    assert f"of ada@{HOST} (team-a)" in driver_of(team, "of-ada")


def driver_of(team: Team, name: str) -> str:
    with contextlib.closing(connect(team.ada.url)) as client:
        events = [decode_event(entry.data) for entry in RedisJournal(client, name).read("0-0", count=100)]
    return next(event.driver for event in events if isinstance(event, DriverStarted))


@pytest.mark.parametrize(
    "arguments",
    [
        ("delete", "NAME", "--yes"),
        ("delete", "NAME", "--archive", "--yes"),
        ("stop", "NAME", "--experiment", "--timeout", "0"),
    ],
)
def test_nobody_ends_an_experiment_of_another_without_force(
    team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    name = f"ends-{len(arguments)}-{arguments[0]}"
    made(team.ada, name, monkeypatch)
    command = [name if each == "NAME" else each for each in arguments]

    with pytest.raises(ConfigurationError, match=rf"{name}.*ada@{HOST} \(team-a\).*--force"):
        by(team.bob, *command, home=tmp_path / "bob")
    by(team.bob, *command, "--force", home=tmp_path / "bob")


def test_who_owns_an_experiment_and_an_operator_end_it_without_force(
    team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(team.ada, "mine", monkeypatch)

    by(team.ops, "stop", "mine", "--experiment", "--timeout", "0", home=tmp_path)
    by(team.ada, "stop", "mine", "--experiment", "--timeout", "0", home=tmp_path)

    with contextlib.closing(connect(team.ada.url)) as client:
        events = [decode_event(entry.data) for entry in RedisJournal(client, "mine").read("0-0", count=100)]
    asked = [event.by for event in events if isinstance(event, Requested)]
    assert asked == [f"olaf@{HOST} (mqtune-operator)", f"ada@{HOST} (team-a)"]
    by(team.ada, "delete", "mine", "--yes", home=tmp_path)


def test_a_deletion_says_how_many_trials_it_ends(team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(team.ada, "runs", monkeypatch)
    started = AttemptStarted(trial=TrialId("0001"), attempt=1, worker="w", host="h", devices=[], at=1.0)
    with contextlib.closing(connect(team.server)) as client:
        claimed = RedisJournal(client, "runs").claim(Claim(TrialId("0001"), 1, "t"), "w", 60, started.encode())
    assert isinstance(claimed, Grant)

    with pytest.raises(
        ConfigurationError,
        match=r"runs: 1 trials on its server; 1 of them run, without a driver, and end: this is ada@",
    ):
        by(team.bob, "delete", "runs", "--yes", home=tmp_path)
    assert "1 of them run, without a driver" in by(team.ada, "delete", "runs", "--dry-run", home=tmp_path)


def test_a_worker_that_another_has_started_is_drained_with_force_or_by_an_operator(team: Team, tmp_path: Path) -> None:
    with contextlib.closing(connect(team.server)) as client:
        fleet = Fleet(client, patience_s=5)

        def join() -> None:
            # It does not hear, and is gone when nobody keeps it.
            fleet.join(worker(name="gpu@node", account="team-a", user="ada", host=HOST), GONE_S)

        join()
        with pytest.raises(ConfigurationError, match=r"worker gpu@node: this is ada@"):
            by(team.bob, "drain", "gpu@node", home=tmp_path)
        join()
        shown = json.loads(by(team.bob, "fleet", "--only", "workers", "--owner", "ada", "--json", home=tmp_path))
        assert [each["user"] for each in shown["workers"]] == ["ada"]
        assert json.loads(by(team.bob, "fleet", "--only", "workers", "--owner", "me", "--json", home=tmp_path)) == {
            "workers": []
        }
        for who, options in ((team.bob, ["--force"]), (team.ops, [])):
            join()
            assert "gpu@node has shut down" in by(who, "drain", "gpu@node", *options, home=tmp_path)
