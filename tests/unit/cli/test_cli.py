"""What commands say before they do anything."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from book import Book
from click.testing import CliRunner
from simulation import tuner_on

import mqtune
from mqtune.cli import COMMANDS, group
from mqtune.core.errors import ConfigurationError, MqtuneError
from mqtune.core.events import AttemptStarted
from mqtune.core.trial import TrialId
from mqtune.journal import made_mark, output_path


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_text_alone(command: str) -> None:
    shown = CliRunner().invoke(group, [command, "--help"])

    assert shown.exit_code == 0
    assert "\\" not in shown.output
    assert "\b" not in shown.output


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("pauze", "Did you mean 'pause'?"),
        ("top", "Did you mean 'fleet' or 'show --follow'?"),
        ("frobnicate", "mqtune --help"),
    ],
)
def test_a_verb_that_there_is_not_leads_to_those_that_there_are(typed: str, said: str) -> None:
    shown = CliRunner().invoke(group, [typed, "mine"])

    assert shown.exit_code == 2
    assert f"No such command {typed!r}" in shown.output
    assert said in shown.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["list", "--compare"], "--compare needs experiments"),
        (["show", "mine", "1", "--all"], "the options for the table are not for TRIAL or --follow"),
        (["show", "mine", "1", "--follow"], "mqtune logs mine 1 --follow"),
        (["show", "mine", "--reverse"], "--reverse is for --sort"),
        (["stop", "mine"], "--all, --where or --status; to end the experiment, give --experiment"),
        (["stop", "mine", "1", "--now"], "--now is for --experiment"),
        (["stop", "mine", "1", "--experiment"], "leave out the trials and the options for trials"),
        (["resume", "mine"], "name the trials, or give --all, --where or --status"),
        (["label", "mine", "1"], "give --tag, --untag or --note"),
        (["label", "mine", "--tag", "a", "--replace"], "--replace is for --note"),
        (["export", "mine", "1"], "TRIAL and --json are for --code"),
        (["export", "mine", "--code", "--rows", "trials"], "leave out --format, --rows and --to"),
        (["export", "mine", "--format", "mqtune"], "mqtune is not for a terminal; give --output FILE"),
        (["export", "mine", "--format", "optuna"], "optuna is not for a terminal; give --output FILE"),
        (["export", "mine", "-o", "t.xlsx"], "t.xlsx: there is no format for names that end with .xlsx"),
        (["export", "mine", "-o", "t.json"], "give .csv, .jsonl or .parquet, or --format"),
        (["delete"], "give the NAME of an experiment; or --unused"),
        (["delete", "mine", "--unused"], "leave out NAME, --here, --archive, --ended and --force"),
        (["delete", "mine", "--json"], "--checkpoints, --unused-days and --json are for --unused"),
        (["delete", "mine", "--archive", "--dry-run"], "leave out --here and --dry-run"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(mqtune_home: Path, arguments: list[str], said: str) -> None:
    Book(mqtune_home / "mine").save()

    shown = CliRunner().invoke(group, arguments, env={"COLUMNS": "200"})

    assert shown.exit_code == 2
    assert said in shown.output


def test_show_prints_no_file_but_the_trials_output_whatever_its_journal_says(mqtune_home: Path, tmp_path: Path) -> None:
    # An account that may append to the journal chooses the path, the host and the mark there.
    (tmp_path / "id_rsa").write_text("secret")
    root = mqtune_home / "logs"
    printed = output_path(root, "mine", "0002", 1, "stdout")
    printed.parent.mkdir(parents=True)
    printed.write_text("printed by the trial")
    book = Book(mqtune_home / "mine")
    for trial, path in (("0001", tmp_path / "id_rsa"), ("0002", printed)):
        book.stage(trial, start=False)
        output = {
            "stdout_path": str(path),
            "stderr_path": str(root / ".." / ".." / "id_rsa"),
            "log_mark": made_mark(root),
        }
        place = {"worker": "w1@host", "host": socket.gethostname(), "devices": ["0"], "at": book.now}
        book.write(AttemptStarted(trial=TrialId(trial), attempt=1, **place, **output).encode())
    book.save()

    assert "secret" not in said("show", "mine", "1")
    assert "printed by the trial" in said("show", "mine", "2")


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
@pytest.mark.parametrize(
    ("options", "pieces", "told"),
    [
        ([], [], "trial 1 has printed nothing to stdout; its stderr: --stderr\n"),
        (["--stderr"], [b""], "trial 1 has printed nothing to stderr; leave out --stderr for its stdout\n"),
        ([], [b"a line\n"], ""),
        (["--offset", "5"], [], ""),
    ],
)
def test_logs_of_a_silent_trial_say_that_it_printed_nothing(
    monkeypatch: pytest.MonkeyPatch, options: list[str], pieces: list[bytes], told: str
) -> None:
    monkeypatch.setattr("mqtune.results.logs.follow_log", lambda *_, **__: iter(pieces))

    done = CliRunner().invoke(group, ["logs", "mine", "1", *options])

    assert (done.exit_code, done.stdout_bytes, done.stderr) == (0, b"".join(pieces), told)


@pytest.mark.parametrize("arguments", [["stop", "b", "1"], ["pause", "b", "1"], ["delete", "b"]])
def test_an_imported_experiment_has_no_broker_and_is_deleted_here(
    mqtune_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.delenv("MQTUNE_BROKER", raising=False)
    (tmp_path / "b.csv").write_text("lr,loss\n0.1,0.5\n")
    said("import", str(tmp_path / "b.csv"), "--metric", "loss", "--mode", "min")

    done = CliRunner().invoke(group, arguments)

    assert isinstance(done.exception, ConfigurationError)
    assert "alone, as it was imported, archived or ran in virtual time" in str(done.exception)
    assert str(done.exception).endswith("To delete it: mqtune delete b --here")
    missing = CliRunner().invoke(group, ["logs", "b", "1"]).exception
    assert "was imported, archived or ran in virtual time: it has no output of trial 0001" in str(missing)


def test_without_a_home_folder_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("MQTUNE_HOME")
    monkeypatch.setattr(Path, "home", home)

    with pytest.raises(ConfigurationError, match="set MQTUNE_HOME to a folder that you may write to"):
        CliRunner().invoke(group, ["list"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("options", "typed", "code", "stopped"),
    [
        (["--all"], None, 2, []),
        (["--all", "--yes"], None, 0, ["0001", "0002", "0003"]),
        (["--all"], "n\n", 0, []),
        (["--all"], "y\n", 0, ["0001", "0002", "0003"]),
        (["1", "2", "--as", "abandoned"], None, 2, []),
        (["--where", "lr>0.25"], None, 0, ["0003"]),
        (["--where", "lr>0.1 AND lr<0.25"], None, 0, ["0002"]),
        (["--where", "lr>0.1, lr<0.25"], None, 2, []),
    ],
)
def test_a_destructive_verb_asks_before_it_is_done_to_several_trials(
    mqtune_home: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], typed: str | None, code: int, stopped: Any
) -> None:
    book = Book(mqtune_home / "mine")
    for number in range(1, 4):
        book.stage(f"000{number}", {"lr": number / 10})
    book.run("0004", 1.0)
    book.save()
    asked: list[str] = []

    def trial(name: str) -> SimpleNamespace:
        """Stand for a trial that its driver stops."""
        answer = SimpleNamespace(trial=name, is_done=True, reason="", request_id="r", config=None)
        return SimpleNamespace(stop=lambda **_: asked.append(name) or answer)

    handle = SimpleNamespace(name="mine", trial=trial)
    monkeypatch.setattr("mqtune.cli.steer.steered", lambda _, force: contextlib.nullcontext(handle))
    monkeypatch.setattr("mqtune.cli.steer.experiment_of", lambda _: mqtune.Results.load("mine").experiment)

    with CliRunner().isolation(input=typed) as (_, err, _both):
        if typed is not None:
            monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
        try:
            exit_code = group.main(["stop", "mine", *options], standalone_mode=True)
        except SystemExit as error:
            exit_code = error.code
        told = err.getvalue().decode()

    assert (exit_code or 0, asked) == (code, stopped)
    count = len(stopped) or (2 if "1" in options else 3)
    asks = "--yes" not in options and "--where" not in options
    assert (f"{count} of the 4 trials of mine: 0001, 0002" in told) == asks
    assert ("can't ask for confirmation without a terminal; give --yes" in told) == (asks and typed is None)


@pytest.fixture
def _odd() -> None:
    """An experiment whose values are of several kinds."""

    def odd(config: dict[str, Any]) -> Iterator[tuple[float, dict[str, Any]]]:
        for step in (1, 2):
            yield 1.0, {"loss": config["lr"], "per_class": [1, 2], "note": "low" if config["lr"] < 0.5 else step}

    points = [{"lr": 0.1, "kind": "a"}, {"lr": 0.7, "kind": 3}, {"lr": 0.9, "kind": [1]}]
    space = {"lr": mqtune.uniform(0, 1), "kind": mqtune.choice(["a", 3, [1]])}
    tuner_on(mqtune.Simulated(odd), curve, space, max_trials=3, name="odd", searcher=mqtune.InitialPoints(points)).run()


@pytest.mark.usefixtures("_odd")
def test_a_parquet_file_has_columns_of_one_type(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    pandas = pytest.importorskip("pandas")
    for rows, count in (("trials", 3), ("attempts", 3), ("reports", 6)):
        said("export", "odd", "--rows", rows, "-o", str(tmp_path / f"{rows}.parquet"))
        assert len(pandas.read_parquet(tmp_path / f"{rows}.parquet")) == count

    trials = pandas.read_parquet(tmp_path / "trials.parquet")
    assert [*trials["config.kind"]] == ["a", "3", "[1]"]
    assert [*trials["config.lr"]] == [0.1, 0.7, 0.9]
    assert "metrics" not in pandas.read_parquet(tmp_path / "reports.parquet")


@pytest.mark.usefixtures("_odd")
def test_an_export_to_a_logger_writes_what_the_tool_lacks(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    for _ in range(2):
        told = CliRunner().invoke(group, ["export", "odd", "--to", f"tensorboard={tmp_path}"])
        assert (told.exit_code, told.stdout) == (0, "odd: 3 trials are in TensorBoard\n")

    assert sorted(each.name for each in (tmp_path / "odd").iterdir()) == ["0001", "0002", "0003"]
    assert all(len([*run.glob("*.mqtune")]) == 1 for run in (tmp_path / "odd").iterdir())
    unknown = CliRunner().invoke(group, ["export", "odd", "--to", "x"]).stderr
    assert "there are mlflow, opentelemetry, tensorboard, wandb" in unknown
    (tmp_path / "file").touch()
    with pytest.raises(MqtuneError, match=r"TensorBoard: .*file"):
        CliRunner().invoke(group, ["export", "odd", "--to", f"tensorboard={tmp_path}/file"], catch_exceptions=False)
    both = CliRunner().invoke(group, ["export", "odd", "--to", "tensorboard", "-o", "x.csv"])
    assert both.exit_code == 2
