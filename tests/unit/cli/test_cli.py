"""The texts of commands before they do anything."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from book import Book
from click.testing import CliRunner
from simulation import tuner_on

import mqtune
from mqtune.cli import SECTIONS, group
from mqtune.core.errors import ConfigurationError, MqtuneError

VERBS: Final = [verb for verbs in SECTIONS.values() for verb in verbs]


@pytest.mark.parametrize("verb", VERBS)
def test_help_is_text_alone(verb: str) -> None:
    shown = CliRunner().invoke(group, [*verb.split(), "--help"])

    assert shown.exit_code == 0
    assert "\\" not in shown.output
    assert "\b" not in shown.output


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("pauze", "Did you mean 'pause'?"),
        ("top", "Did you mean 'fleet' or 'show --follow'?"),
        ("drain", "Did you mean 'fleet drain'?"),
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
        (["show", "mine", "1", "--all"], "can't be combined with TRIAL or --follow"),
        (["show", "mine", "1", "--follow"], "mqtune logs mine 1 --follow"),
        (
            ["stop", "mine"],
            "name trials, or all, or give --where or --status; to end the experiment: mqtune end mine",
        ),
        (["resume", "mine"], "name trials, or all, or give --where or --status"),
        (["label", "mine", "1"], "give --tag, --untag, --note or --notes"),
        (["tell", "mine", "1", "loss=1", "--config", "x=1"], "give either TRIAL or the --config of a new trial"),
        (["logs", "mine", "driver", "--stderr"], "leave out --stderr and --attempt"),
        (["export", "mine", "--format", "mqtune"], "mqtune can't be written to a terminal; give --output FILE"),
        (["export", "mine", "--format", "optuna"], "optuna can't be written to a terminal; give --output FILE"),
        (["export", "mine", "-o", "t.xlsx"], "t.xlsx: no format has the ending .xlsx"),
        (["export", "mine", "-o", "t.json"], "end the name with .csv, .jsonl or .parquet, or give --format"),
        (["archive"], "give the NAME of an experiment, or --ended TIME"),
        (["gc", "--ended", "30d"], "--ended needs the broker that has the experiments"),
        (["fleet", "--only", "queues", "quota"], "options follow the verb: mqtune fleet quota … --only"),
        (["fleet"], "Missing option '--broker'"),
        (["fleet", "drian", "w"], "No such command 'drian'. Did you mean 'drain' or 'undrain'?"),
        (["fleet", "undrain", "w", "--broker", "redis://h"], "'w' names no device, such as w:0"),
        (["fleet", "quota", "--share", "2", "--broker", "redis://h"], "a cap needs a PATTERN of experiments"),
    ],
)
def test_a_wrong_command_is_refused_with_the_right_one(mqtune_home: Path, arguments: list[str], said: str) -> None:
    Book(mqtune_home / "mine").save()

    shown = CliRunner().invoke(group, arguments, env={"COLUMNS": "200", "MQTUNE_BROKER": ""})

    assert shown.exit_code == 2
    assert said in shown.output


def test_the_help_lists_the_verbs_by_purpose() -> None:
    shown = CliRunner().invoke(group, ["--help"], env={"COLUMNS": "80"}).output

    heads = [line.removesuffix(":") for line in shown.splitlines() if line.endswith(":")]
    assert heads == ["Options", "Start", "Inspect", "Control", "Continue", "Data", "Fleet"]
    assert {line.split()[0] for line in shown.splitlines() if line.startswith("  ")} >= {
        verb.split()[0] for verb in VERBS
    }


@pytest.mark.parametrize("verb", ["drain", "undrain", "quota", "acl", "exporter"])
def test_the_fleet_has_verbs_of_its_own(verb: str) -> None:
    shown = CliRunner().invoke(group, ["fleet", verb, "--help"])

    assert shown.exit_code == 0
    assert shown.output.startswith(f"Usage: mqtune fleet {verb} ")
    assert f"  {verb} " in CliRunner().invoke(group, ["fleet", "--help"]).output


def curve(config: dict[str, float]) -> list[tuple[float, dict[str, float]]]:
    return [(1.0, {"loss": config["lr"] / step}) for step in (1, 2, 3)]


def said(*arguments: str) -> str:
    done = CliRunner().invoke(group, [*arguments])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


@pytest.fixture
def _mine(mqtune_home: Path) -> None:
    """A running experiment with an ended trial, and with texts that would steer a terminal."""
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


@pytest.mark.parametrize("verb", ["stop", "pause"])
def test_an_imported_experiment_has_no_driver_and_can_be_deleted(
    mqtune_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.delenv("MQTUNE_BROKER", raising=False)
    (tmp_path / "b.csv").write_text("lr,loss\n0.1,0.5\n")
    said("import", str(tmp_path / "b.csv"), "--metric", "loss", "--mode", "min")

    done = CliRunner().invoke(group, [verb, "b", "1"])

    assert isinstance(done.exception, ConfigurationError)
    assert "was imported, archived or simulated" in str(done.exception)
    assert str(done.exception).endswith("To delete it: mqtune delete b")
    missing = CliRunner().invoke(group, ["logs", "b", "1"]).exception
    assert "was imported, archived or simulated: trial 0001 has no output" in str(missing)
    assert "is deleted" in said("delete", "b", "--yes")
    assert not (mqtune_home / "b").exists()


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
        (["all"], None, 2, []),
        (["all", "--yes"], None, 0, ["0001", "0002", "0003"]),
        (["all"], "n\n", 0, []),
        (["all"], "y\n", 0, ["0001", "0002", "0003"]),
        (["1", "2", "--as", "abandoned"], None, 2, []),
        (["--where", "lr>0.25"], None, 0, ["0003"]),
        (["1", "3", "--where", "lr>0.25"], None, 0, ["0003"]),
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
    assert ("can't ask for confirmation without a terminal; pass --yes" in told) == (asks and typed is None)


def test_experiments_are_compared_by_default_all(mqtune_home: Path) -> None:
    for name, loss in (("one", 0.5), ("two", 0.25)):
        book = Book(mqtune_home / name)
        book.run("0001", loss)
        book.save()
    (mqtune_home / "broken").mkdir()
    (mqtune_home / "broken" / "journal.msgpack").write_bytes(b"no journal")

    done = CliRunner().invoke(group, ["list", "--compare"])

    assert done.exit_code == 0
    assert {row.split()[0] for row in done.stdout.splitlines()[1:]} == {"one", "two"}
    assert "mqtune: broken can't be read: " in done.stderr


@pytest.mark.usefixtures("_mine")
def test_the_table_is_reversed_also_without_a_column() -> None:
    def trials(*options: str) -> list[str]:
        return [each["trial"] for each in json.loads(said("show", "mine", "--json", *options))["table"]]

    assert trials("--reverse") == [*reversed(trials())]


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
    assert "unknown tool 'x'; tools are mlflow, opentelemetry, tensorboard, wandb" in unknown
    (tmp_path / "file").touch()
    with pytest.raises(MqtuneError, match=r"TensorBoard: .*file"):
        CliRunner().invoke(group, ["export", "odd", "--to", f"tensorboard={tmp_path}/file"], catch_exceptions=False)
    both = said("export", "odd", "--to", f"tensorboard={tmp_path}", "-o", str(tmp_path / "x.csv"))
    assert both.splitlines()[-1] == f"{tmp_path / 'x.csv'}: the trials of odd as csv"
