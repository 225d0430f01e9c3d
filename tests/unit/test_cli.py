"""What commands say before they do anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from book import Book
from click.testing import CliRunner

from mqtune.cli import COMMANDS, group

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_text_alone(command: str) -> None:
    shown = CliRunner().invoke(group, [command, "--help"])

    assert shown.exit_code == 0
    assert "\\" not in shown.output
    assert "\b" not in shown.output


def test_two_formats_at_once_are_refused(mqtune_home: Path) -> None:
    Book(mqtune_home / "mine").save()

    shown = CliRunner().invoke(group, ["show", "mine", "--csv", "--jsonl"])

    assert shown.exit_code == 2
    assert "--csv prints one row per trial and --jsonl one object per report; give only one of them" in shown.output


def test_the_example_that_follows_takes_the_broker_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQTUNE_BROKER", "redis://127.0.0.1:1/0")

    done = subprocess.run([sys.executable, str(EXAMPLES / "follow.py"), "mine"], capture_output=True, text=True)

    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr
