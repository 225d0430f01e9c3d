"""Which experiment ``mqtune demo`` begins or continues."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest
from book import Book
from click.testing import CliRunner

import mqtune.cli.digits
from mqtune.core.machine import SERVER_FOLDER
from mqtune.journal import JOURNAL_FILE


@pytest.fixture
def demos(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the demos that began or continued."""
    names: list[str] = []
    monkeypatch.setattr(mqtune.cli.digits, "main", names.append)
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


def test_a_first_demo_has_the_number_1(demos: list[str]) -> None:
    run_demo()

    assert demos == ["demo-1"]


@pytest.mark.parametrize("outcome", ["interrupted", "failed", ""])
def test_an_unfinished_demo_continues(outcome: str, demos: list[str], mqtune_home: Path) -> None:
    write_demo(mqtune_home, "demo-7", outcome)

    run_demo()

    assert demos == ["demo-7"]


def test_after_a_finished_demo_a_new_one_begins(demos: list[str], mqtune_home: Path) -> None:
    write_demo(mqtune_home, "demo-1", "finished")

    run_demo()

    assert demos == ["demo-2"]


def test_only_the_newest_demo_continues(demos: list[str], mqtune_home: Path) -> None:
    write_demo(mqtune_home, "demo-1", "interrupted")
    write_demo(mqtune_home, "demo-2", "finished")

    run_demo()

    assert demos == ["demo-3"]


def test_a_demo_with_a_driver_is_left_alone(demos: list[str], mqtune_home: Path) -> None:
    write_demo(mqtune_home, "demo-1", "")

    with (mqtune_home / "demo-1" / JOURNAL_FILE).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        run_demo()

    assert demos == ["demo-2"]


def test_a_demo_on_a_broker_is_left_alone(demos: list[str], mqtune_home: Path) -> None:
    write_demo(mqtune_home, "demo-1", "interrupted", has_server=False)

    run_demo()

    assert demos == ["demo-2"]


def test_a_demo_has_the_given_name(demos: list[str], mqtune_home: Path) -> None:
    write_demo(mqtune_home, "demo-1", "interrupted")

    run_demo("--name", "shown")

    assert demos == ["shown"]
