"""``mqtune show`` and ``mqtune list``, on experiments that real workers ran."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from book import Book
from click.testing import CliRunner
from terminal import terminal
from waiting import eventually

import mqtune
from mqtune.cli import group
from mqtune.core.errors import MqtuneError
from mqtune.core.trial import AttemptEnd, TrialStatus
from mqtune.results.results import Results

Tune = Callable[..., mqtune.Tuner]
MQTUNE = (sys.executable, "-m", "mqtune")

IMPORTS = """
import sys
from mqtune.cli import group
try:
    group(sys.argv[1:])
except SystemExit as end:
    assert not end.code
print(*(name for name in ("celery", "redis", "sklearn", "numpy") if name in sys.modules), file=sys.stderr)
"""


def run(*arguments: str, code: int = 0) -> str:
    """Return what the command prints; for one that fails, what it says about it."""
    done = CliRunner().invoke(group, arguments)
    is_refused = isinstance(done.exception, MqtuneError)
    assert (1 if is_refused else done.exit_code) == code, (done.output, done.exception)
    assert (done.stdout if code else done.stderr) == ""
    return str(done.exception) if is_refused else done.stdout


def book(folder: Path, *losses: float) -> Path:
    """An experiment that has finished, with a trial for each of these losses."""
    book = Book(folder)
    for number, loss in enumerate(losses, 1):
        book.run(f"{number:04}", loss)
    book.finish()
    return book.save()


def test_a_failed_trial_is_shown_with_its_error_and_the_end_of_its_output(tune: Tune):
    tune("raises", name="broken", max_trials=2, failures=mqtune.Failures(max_failures=1)).run()

    overview = run("show", "broken")
    shown = run("show", "broken", "1")

    assert "failed" in overview
    assert "the learning rate exploded" in overview
    assert shown.startswith("trial 0001 of broken · FAILED")
    assert shown.count('raise ValueError("the learning rate exploded")') == 3
    assert "x = 0." in shown
    assert "code 1" in shown
    assert "0001/2.stderr" in shown


def test_what_would_steer_a_terminal_is_shown_there_and_exact_in_a_file(tmp_path: Path):
    steers = Book(tmp_path / "steers")
    # Clears the screen, and the same by one character of Latin-1.
    steers.run("0001", 0.5, config={"x": "a\x1b[2Jb\x9b2Jc"})
    export = [*MQTUNE, "export", str(steers.save())]

    with terminal(export) as screen:
        assert screen.wait(30) == 0
    piped = subprocess.run(export, capture_output=True, timeout=30).stdout

    assert b"\x1b" not in screen.raw
    assert b"\xc2\x9b" not in screen.raw
    assert b"\\x9b2Jc" in screen.raw
    assert "a\x1b[2Jb\x9b2Jc".encode() in piped


def test_what_is_not_there_is_named_with_what_there_is(mqtune_home: Path):
    book(mqtune_home / "mnist-asha", 0.3, 0.2, 0.1)

    said = subprocess.run([*MQTUNE, "show", "mnsit-asha"], capture_output=True, text=True, check=False, timeout=30)

    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr.startswith("mqtune: there is no experiment 'mnsit-asha' in ")
    assert said.stderr.endswith("do you mean mnist-asha?\n")
    assert "there is no experiment 'other'" in run("show", "other", code=1)
    assert "experiment 'mnist-asha' has no trial '7'; it has 0001 to 0003" in run("show", "mnist-asha", "7", code=1)


def test_all_experiments_are_listed_with_the_newest_first_and_the_number_of_failed_trials(mqtune_home: Path):
    book(mqtune_home / "first", 0.5, 0.25, 0.75)
    assert "failed" not in run("list")
    unsound = Book(mqtune_home / "second")
    for id_ in ("0001", "0002"):
        unsound.stage(id_)
        unsound.end(id_, AttemptEnd.FAILED)
    unsound.finish()
    unsound.save()
    assert run("show").startswith("second ·")
    broken = mqtune_home / "third" / "journal.msgpack"
    broken.parent.mkdir()
    broken.write_bytes(b"this is no journal")

    heads, third, second, first = run("list").splitlines()

    assert heads.split()[3:5] == ["trials", "failed"]
    assert third.startswith("third ")
    assert "can't be read" in third
    assert second.split()[3:6] == ["failed", "2", "2"]
    assert first.split()[3:5] == ["finished", "3"]
    assert "loss=0.25" in first


def test_a_list_knows_of_what_came_after_the_last_summary(tune: Tune, mqtune_home: Path):
    tune("steady", name="kept", max_trials=2).run()
    (mqtune_home / "kept" / "results.json").write_text(json.dumps({"out": "of date"}))
    tune("steady", name="kept", max_trials=3).run()
    assert run("list").splitlines()[1].split()[4] == "3"
    tuner = tune("steady", name="kept", max_trials=4)

    tuner.step(0)
    try:
        line = run("list").splitlines()[1]
    finally:
        eventually(lambda: tuner.is_finished or tuner.step(0.1), 30)
        tuner.close()

    assert "running" in line
    assert {result.status for result in Results.load("kept")} == {TrialStatus.COMPLETED}


@pytest.mark.parametrize("text", ["", "{", "{}"])
def test_a_summary_that_was_spoiled_does_not_spoil_the_list(mqtune_home: Path, text: str):
    (book(mqtune_home / "mine", 0.5) / "results.json").write_text(text)

    assert "loss=0.5" in run("list")


def test_an_empty_home_is_said_to_be_empty(mqtune_home: Path):
    assert run("list") == f"no experiments in {mqtune_home}; try: mqtune demo\n"
    assert "there is no experiment on this machine yet; try: mqtune demo" in run("show", code=1)


def test_nothing_that_is_not_needed_is_waited_for(mqtune_home: Path):
    book(mqtune_home / "quick", 0.5, 0.25)

    for arguments in (["show", "quick"], ["list"], ["export", "quick"], ["--help"]):
        done = subprocess.run(
            [sys.executable, "-c", IMPORTS, *arguments], capture_output=True, text=True, check=True, timeout=30
        )
        assert done.stdout != ""
        assert done.stderr == "\n"


@pytest.mark.parametrize("columns", [20, 200])
def test_a_terminal_of_any_width_will_do_and_a_reader_that_stops_early_gets_no_traceback(
    mqtune_home: Path, columns: int
):
    book(mqtune_home / "mine", *[0.5] * 30)

    with terminal([*MQTUNE, "show", "mine"], columns=columns) as screen:
        assert screen.wait(30) == 0
        assert "0001" in screen.text or columns == 20
    with terminal([*MQTUNE, "list", "mine", "--compare"], columns=columns) as screen:
        assert screen.wait(30) == 0
        assert re.search(r"mine.*loss=\S", screen.text) or columns == 20
    export = f"{sys.executable} -m mqtune export mine --format jsonl --rows reports | head -1"
    done = subprocess.run(export, shell=True, capture_output=True, text=True, check=True, timeout=30)
    assert len(done.stdout.splitlines()) == 1
    assert "Traceback" not in done.stderr


# From another machine.


def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, broker: str) -> None:
    """Be on a machine that has nothing but the broker's address."""
    monkeypatch.setenv("MQTUNE_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("MQTUNE_BROKER", broker)


def test_an_experiment_is_listed_and_shown_on_a_machine_that_has_only_its_broker(
    tune: Tune, broker: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    done = tune("steady", name="done-there", max_trials=3).run()
    driven = tune("slow", name="driven-there", max_trials=1)
    with contextlib.closing(driven):
        eventually(lambda: driven.step(0.1) or (driven.get_trials() and driven.get_trials()[0].reports))
        elsewhere(monkeypatch, tmp_path, broker)

        listed = run("list")
        driven_shown = run("show", "driven-there")
        drawn = run("plot", "driven-there", "-o", str(tmp_path / "curves.png"))
        driven.stop_all()
        eventually(lambda: driven.step(0.1) or driven.is_finished)

    rows = {line.split()[0]: line for line in listed.splitlines() if " loss=" in line}
    assert "finished" in rows["done-there"]
    assert "running" in rows["driven-there"]
    assert driven_shown.startswith("driven-there · running · started 20")
    assert "driven-there: learning curves · 1 trial (1 running)" in drawn
    assert (tmp_path / "curves.png").stat().st_size
    shown = run("show", "done-there")
    assert shown.startswith("done-there · finished · started 20")
    assert f"best loss={done.best.value:.4g} in trial {done.best.id}" in shown
    assert len(run("export", "done-there", "--format", "jsonl", "--rows", "reports").splitlines()) == 27
    assert run("show", "--broker", broker, "done-there", "1").startswith("trial 0001 of done-there · COMPLETED")
    assert not (tmp_path / "elsewhere").exists()


def test_on_its_drivers_machine_an_experiment_on_a_broker_is_listed_once_and_as_the_broker_has_it(
    tune: Tune, broker: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mqtune_home: Path
):
    monkeypatch.setenv("MQTUNE_BROKER", broker)
    Book(mqtune_home / "only-here").save()
    with contextlib.closing(tune("slow", name="driven-here", max_trials=1)) as tuner:
        eventually(lambda: tuner.step(0.1) or (tuner.get_trials() and tuner.get_trials()[0].reports))

        def told(*arguments: str) -> str:
            # Commands take seconds on a busy machine, and a driver that makes no step for long drives no more.
            tuner.step(0.1)
            return run(*arguments)

        # Another machine may have a copy that nobody writes there.
        shutil.copytree(mqtune_home, tmp_path / "elsewhere")
        for home in (mqtune_home, tmp_path / "elsewhere"):
            monkeypatch.setenv("MQTUNE_HOME", str(home))
            rows = [line.split() for line in told("list").splitlines() if line]
            assert [row[3] for row in rows if row[:1] == ["driven-here"]] == ["running"]
            assert [row[0] for row in rows].count("only-here") == 1
            assert [each["state"] for each in json.loads(told("list", "--json")) if each["name"] == "driven-here"] == [
                "running"
            ]
            assert told("show", "driven-here").startswith("driven-here · running · started 20")
            assert told("list", "driven-here", "--compare").splitlines()[1].split()[:2] == ["driven-here", "running"]
            assert "only-here" not in told("list", "--broker", broker)
        tuner.stop_all()
        eventually(lambda: tuner.step(0.1) or tuner.is_finished)


def test_what_is_on_this_machine_is_listed_while_the_broker_is_away(mqtune_home: Path):
    book(mqtune_home / "mine", 0.5)

    done = subprocess.run(
        [*MQTUNE, "list"],
        env={**os.environ, "MQTUNE_BROKER": "redis://127.0.0.1:1/0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )

    assert "loss=0.5" in done.stdout
    assert "127.0.0.1:1" in done.stderr
    assert done.returncode == 1
