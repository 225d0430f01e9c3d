"""Which experiment ``mqtune demo`` begins or continues."""

from __future__ import annotations

import fcntl
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from book import Book
from click.testing import CliRunner

import mqtune.cli
from mqtune.core.machine import SERVER_FOLDER
from mqtune.journal import JOURNAL_FILE


@pytest.fixture
def demos(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the demos that began or continued."""
    names: list[str] = []
    # The demo's own module imports scikit-learn, which takes longer than these tests.
    monkeypatch.setitem(sys.modules, "mqtune.cli.digits", SimpleNamespace(main=names.append))
    monkeypatch.delenv("MQTUNE_BROKER", raising=False)
    return names


def run_demo(*options: str) -> None:
    done = CliRunner().invoke(mqtune.cli.group, ["demo", *options])
    assert done.exit_code == 0, done.output


def write_demo(home: Path, name: str, outcome: str, *, has_server: bool = True) -> None:
    book = Book(home / name)
    if outcome:
        book.finish(outcome)
    book.save()
    if has_server:
        (home / name / SERVER_FOLDER).mkdir()


@pytest.mark.parametrize(
    ("written", "options", "name"),
    [
        ({}, [], "demo-1"),
        *(({"demo-7": outcome}, [], "demo-7") for outcome in ("interrupted", "failed", "")),
        ({"demo-1": "finished"}, [], "demo-2"),
        # Only the newest one continues.
        ({"demo-1": "interrupted", "demo-2": "finished"}, [], "demo-3"),
        ({"demo-1": "interrupted"}, ["--name", "shown"], "shown"),
    ],
)
def test_an_unfinished_demo_continues_and_else_a_new_one_begins(
    demos: list[str], mqtune_home: Path, written: dict[str, str], options: list[str], name: str
) -> None:
    for earlier, outcome in written.items():
        write_demo(mqtune_home, earlier, outcome)

    run_demo(*options)

    assert demos == [name]


def test_a_demo_on_a_broker_is_left_alone(demos: list[str], mqtune_home: Path) -> None:
    write_demo(mqtune_home, "demo-1", "interrupted", has_server=False)

    run_demo()

    assert demos == ["demo-2"]


def test_a_demo_with_a_driver_is_left_alone(demos: list[str], mqtune_home: Path) -> None:
    write_demo(mqtune_home, "demo-1", "")

    with (mqtune_home / "demo-1" / JOURNAL_FILE).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        run_demo()

    assert demos == ["demo-2"]
