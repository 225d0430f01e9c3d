"""What docs/cli.md says is so: its commands, and those of docs/clean-up.md, run or parse; its tables are the code's."""

from __future__ import annotations

import html
import inspect
import json
import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Final

import pytest
from book import Book
from built_site import built_site
from cli_page import PAGE, find_command
from click.testing import CliRunner
from pages import ROOT

from mqtune.cli import CAUSES, SECTIONS, Outcome, Reason, group
from mqtune.core.worker_info import WorkerInfo

EXAMPLES: Final = [
    example
    for page in (PAGE, ROOT / "docs" / "clean-up.md")
    for example in re.findall(r"^\$ mqtune (.*)$", page.read_text(), re.MULTILINE)
]
#: Verbs that need no server, as what they read is on this machine.
OFFLINE: Final = {"list", "show", "export"}
#: Options that need a server.
ON_A_SERVER: Final = {"study.optuna", "mqtune"}
#: Verbs of the fleet that need no server.
SERVERLESS: Final = {"acl"}


@pytest.fixture
def _digits(mqtune_home: Path) -> None:
    """An experiment of the name that the page's examples have, with nine trials."""
    for name in ("digits", "digits-2"):
        book = Book(mqtune_home / name)
        for number in range(1, 10):
            book.run(f"{number:04d}", 1 / number, config={"lr": number / 10, "optimizer": "sgd"})
        book.finish()
        book.save()


def fields_of(title: str) -> set[str]:
    """The fields of a table, by what the sentence above it begins with."""
    text = PAGE.read_text().partition(f"{title}** (")[2].partition("\n\n|")[2].partition("\n\n")[0]
    rows = [line.strip("|").split("|")[0] for line in text.splitlines()[2:]]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


@pytest.mark.usefixtures("_digits")
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_runs(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MQTUNE_BROKER", "")
    verb, *words = shlex.split(example)
    command, arguments = find_command([verb, *words])
    is_of_fleet = any(f" {verb}".endswith(f" {each.split()[0]}") for each in SECTIONS["Fleet"])
    broker = ["--broker", "redis://h"] if is_of_fleet and command.name not in SERVERLESS else []

    command.make_context(verb, [*arguments, *broker])
    if verb in OFFLINE and not ON_A_SERVER & {*arguments}:
        done = CliRunner().invoke(group, [verb, *arguments])
        assert (done.exit_code, done.stderr) == (0, "")
        assert done.stdout or [*tmp_path.iterdir()]


def test_the_site_has_each_verb_and_each_cause(tmp_path_factory: pytest.TempPathFactory) -> None:
    page = (built_site(tmp_path_factory.getbasetemp()) / "cli.html").read_text()

    names = [*CAUSES, *(verb for verbs in SECTIONS.values() for verb in verbs)]
    assert [name for name in names if f"<td><code>{name}" not in page] == []
    assert [cause.meaning for cause in CAUSES.values() if html.escape(cause.meaning, quote=False) not in page] == []


@pytest.mark.usefixtures("_digits")
def test_the_schema_is_the_one_that_is_printed() -> None:
    def shown(*arguments: str) -> dict[str, object]:
        found = json.loads(CliRunner().invoke(group, [*arguments, "--json"]).stdout)
        return found if isinstance(found, dict) else found[0]

    experiment = fields_of("An **experiment") - {"pareto_front"}
    table = shown("show", "digits")["table"]

    assert set(shown("show", "digits")) == experiment | {"table"}
    assert set(shown("list")) == experiment
    assert set(shown("list", "digits", "--compare")) == experiment
    assert set(shown("show", "digits", "1")) == fields_of("A **trial") | {"best_checkpoint"}
    assert isinstance(table, list)
    assert set(table[0]) == fields_of("A **trial")
    assert {each.name for each in fields(WorkerInfo)} == fields_of("A **worker")
    assert {*inspect.signature(Reason).parameters} == fields_of("A **reason")
    assert {*inspect.signature(Outcome).parameters} == fields_of("An **outcome")
