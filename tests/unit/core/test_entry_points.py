"""Entry points: found by name, imported when asked for, and otherwise not looked at."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from book import Book

from mqtune.core.entry_points import EXPORTERS, IMPORTERS, LOGGERS, SCHEDULERS, SEARCHERS, load_point, names_in
from mqtune.core.errors import ConfigurationError


def test_mqtunes_own_partners_are_registered_as_those_of_others() -> None:
    assert {group: names_in(group) for group in (SEARCHERS, SCHEDULERS, EXPORTERS, IMPORTERS, LOGGERS)} == {
        SEARCHERS: ["auto", "ax", "optuna"],
        SCHEDULERS: ["ax_early_stopping", "syne_tune"],
        EXPORTERS: ["optuna", "syne-tune"],
        IMPORTERS: ["optuna", "ray", "syne-tune"],
        LOGGERS: ["mlflow", "opentelemetry", "tensorboard", "wandb"],
    }


@pytest.mark.parametrize(
    ("package", "name", "said"),
    [
        ("theirs", "absent", "absent can't be imported (No module named 'not_there'); reinstall theirs"),
        ("mqtune", "optuna", "optuna can't be imported (No module named 'not_there'); pip install"),
        ("theirs", "other", "no installed package adds 'other' to mqtune.tests.theirs.other; there are: present"),
    ],
)
def test_an_entry_point_that_can_not_be_had_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, name: str, said: str
) -> None:
    group = f"mqtune.tests.{package}.{name}"
    info = tmp_path / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    registered = "present" if name == "other" else name
    (info / "entry_points.txt").write_text(f"[{group}]\n{registered} = not_there:Thing\n")
    monkeypatch.syspath_prepend(tmp_path)

    assert names_in(group) == [registered]
    with pytest.raises(ConfigurationError) as raised:
        load_point(group, name)
    assert said in str(raised.value)


@pytest.mark.parametrize("arguments", [["show", "mine"], ["list"], ["export", "mine"]])
def test_a_command_that_needs_no_partner_reads_no_entry_points(tmp_path: Path, arguments: list[str]) -> None:
    Book(tmp_path / "mine").save()
    program = (
        "import importlib.metadata, sys; importlib.metadata.entry_points = None; "
        "from mqtune.cli import main; sys.argv[0] = 'mqtune'; main()"
    )

    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "MQTUNE_HOME": str(tmp_path)},
    )

    assert done.returncode == 0, done.stderr
