"""``mqtune show`` and ``mqtune list``, on experiments that real workers ran."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from book import Book
from faces import said
from terminal import terminal
from waiting import eventually

import mqtune

Tune = Callable[..., mqtune.Tuner]


def test_an_experiment_is_listed_and_shown_on_a_machine_that_has_only_its_broker(
    tune: Tune, broker: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mqtune_home: Path
):
    done = tune("steady", name="done-there", max_trials=3).run()
    driven = tune("slow", name="driven-there", max_trials=1)
    with contextlib.closing(driven):
        eventually(lambda: driven.step(0.1) or (driven.get_trials() and driven.get_trials()[0].reports))
        # A machine that has nothing but the broker's address.
        monkeypatch.setenv("MQTUNE_HOME", str(tmp_path / "elsewhere"))
        monkeypatch.setenv("MQTUNE_BROKER", broker)

        listed = said("list")
        driven_shown = said("show", "driven-there")
        drawn = said("plot", "driven-there", "-o", str(tmp_path / "curves.png"))
        driven.stop_all()
        eventually(lambda: driven.step(0.1) or driven.is_finished)

    rows = {line.split()[0]: line for line in listed.splitlines() if " loss=" in line}
    assert "finished" in rows["done-there"]
    assert "running" in rows["driven-there"]
    assert driven_shown.startswith("driven-there · running · started 20")
    assert "driven-there: learning curves · 1 trial (1 running)" in drawn
    assert (tmp_path / "curves.png").stat().st_size
    shown = said("show", "done-there")
    assert shown.startswith("done-there · finished · started 20")
    assert f"best loss={done.best.value:.4g} in trial {done.best.id}" in shown
    assert len(said("export", "done-there", "--format", "jsonl", "--rows", "reports").splitlines()) == 27
    assert said("show", "--broker", broker, "done-there", "1").startswith("trial 0001 of done-there · COMPLETED")
    assert not (tmp_path / "elsewhere").exists()
    # On its driver's machine, whose full disk has cost the copy its end: half an entry, and the mark of that.
    monkeypatch.setenv("MQTUNE_HOME", str(mqtune_home))
    with (mqtune_home / "done-there" / "journal.msgpack").open("ab") as copy:
        copy.write(b"\x92\xa9\xc1\xc1")
    assert said("show", "done-there") == shown
    monkeypatch.delenv("MQTUNE_BROKER")
    assert "lacks the last entries of experiment 'done-there'" in said("show", "done-there", code=1)
    assert said("show", "done-there", "--broker", broker) == shown


def test_what_would_steer_a_terminal_is_shown_there_and_exact_in_a_file(tmp_path: Path):
    steers = Book(tmp_path / "steers")
    # Clears the screen, and the same by one character of Latin-1.
    steers.run("0001", 0.5, config={"x": "a\x1b[2Jb\x9b2Jc"})
    export = [sys.executable, "-m", "mqtune", "export", str(steers.save())]

    with terminal(export) as screen:
        assert screen.wait(30) == 0
    piped = subprocess.run(export, capture_output=True, timeout=30).stdout

    assert b"\x1b" not in screen.raw
    assert b"\xc2\x9b" not in screen.raw
    assert b"\\x9b2Jc" in screen.raw
    assert "a\x1b[2Jb\x9b2Jc".encode() in piped
