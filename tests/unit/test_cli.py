"""What commands say before they do anything."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import msgpack
import pytest
from book import Book
from click.testing import CliRunner

import mqtune
from mqtune.cli import COMMANDS, group
from mqtune.core.errors import ConfigurationError
from mqtune.journal.copy import JOURNAL_FILE

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


def curve(config: dict[str, float]) -> list[tuple[float, dict[str, float]]]:
    return [(1.0, {"loss": config["lr"] / step}) for step in (1, 2, 3)]


def said(*arguments: str) -> str:
    done = CliRunner().invoke(group, [*arguments])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


@pytest.fixture
def _mine(mqtune_home: Path) -> None:
    """An experiment that is under way: one trial has ended, one runs, and their names and metrics would steer a terminal."""
    book = Book(mqtune_home / "mine")
    book.run("0001", 0.5, 0.25, config={"lr": 0.1, "note": "\x1b[2J"})
    book.stage("0002", {"lr": 0.2, "note": "plain"})
    book.report("0002", {"loss": 0.125, "a\x9b2Jb": 1.0})
    book.save()


@pytest.mark.usefixtures("_mine")
def test_trials_are_filtered_sorted_and_limited() -> None:
    def ids(*options: str) -> list[str]:
        return [each["trial"] for each in json.loads(said("trials", "mine", "--json", *options))]

    assert ids() == ["0001", "0002"]
    assert ids("--sort", "loss") == ["0002", "0001"]
    assert ids("--sort", "loss", "--reverse", "--limit", "1") == ["0001"]
    assert ids("--status", "running") == ["0002"]
    assert ids("--where", "lr<0.15 and loss<1") == ["0001"]
    assert ids("--where", "lr>9") == []
    assert [line[:4] for line in said("trials", "mine").splitlines()] == ["tria", "0001", "0002"]


@pytest.mark.usefixtures("_mine")
@pytest.mark.parametrize("arguments", [["trials", "mine"], ["compare", "mine"], ["show", "mine", "2"], ["list"]])
def test_what_a_trial_chose_does_not_steer_a_terminal(arguments: list[str]) -> None:
    shown = said(*arguments)

    assert "\x1b" not in shown
    assert "\x9b" not in shown


@pytest.mark.usefixtures("_mine")
def test_an_export_has_a_row_for_each_trial_attempt_or_report(tmp_path: Path) -> None:
    assert said("export", "mine").count("\n") == 3
    assert said("export", "mine", "--rows", "reports", "--format", "jsonl").count("\n") == 3
    said("export", "mine", "--rows", "attempts", "-o", str(tmp_path / "a.csv"))
    assert (tmp_path / "a.csv").read_text().startswith("trial,attempt,")
    assert (
        "for a terminal; give --output FILE"
        in CliRunner().invoke(group, ["export", "mine", "--format", "optuna"]).output
    )


def test_an_export_for_optuna_is_a_study_of_the_same_name_and_replaces_nothing(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    path = tmp_path / "study.log"
    space = {"lr": mqtune.uniform(0, 1)}
    simulated = mqtune.Simulated(curve)
    tuner = mqtune.Tuner(curve, space, metric="loss", mode="min", max_trials=2, name="mine", backend=simulated)
    best = tuner.run().best.value
    said("export", "mine", "-o", str(path))

    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    study = optuna.load_study(study_name="mine", storage=storage)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "COMPLETE"]
    assert study.best_value == best
    with pytest.raises(ConfigurationError, match="is there already"):
        CliRunner().invoke(group, ["export", "mine", "-o", str(path)], catch_exceptions=False)


def test_an_experiment_that_another_process_writes_is_watched_to_its_end(mqtune_home: Path) -> None:
    book = Book(mqtune_home / "mine")
    book.stage("0001", {"lr": 0.1})
    book.save()
    path, known = mqtune_home / "mine" / JOURNAL_FILE, len(book.entries)

    def go_on() -> None:
        book.report("0001", {"loss": 0.5})
        book.end("0001")
        book.finish()
        with path.open("ab") as file:
            file.write(b"".join(msgpack.packb([*entry]) for entry in book.entries[known:]))

    timer = threading.Timer(0.3, go_on)
    timer.start()
    shown = [json.loads(line) for line in said("watch", "mine", "--json").splitlines()]
    timer.join()

    assert [(each["trial"], each["status"]) for each in shown] == [
        ("0001", "running"),
        ("0001", "completed"),
    ]
    assert "1 completed" in said("watch", "mine")
