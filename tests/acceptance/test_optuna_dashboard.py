"""Optuna's dashboard over an experiment that runs, and after it has ended; it can look and change nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mqtune.journal import JOURNAL_FILE
from mqtune.testing.waiting import DEADLINE_S, eventually

#: How long a program may take to start, or to end, on a busy machine.
PROGRAM_S = 60.0

SCRIPT = """
import time
from pathlib import Path

import mqtune


def train(config):
    for epoch in range(1, 10_000):
        mqtune.report({"loss": (config["x"] - 0.3) ** 2 + 1 / epoch})
        if Path(config["stop"]).exists():
            return
        time.sleep(0.05)


if __name__ == "__main__":
    mqtune.Tuner(
        train,
        {"x": mqtune.uniform(-1, 1), "stop": "STOP"},
        metric="loss",
        mode="min",
        max_trials=2,
        name="shown",
        backend=mqtune.Local(slots=1),
        run=mqtune.RunOptions(progress=False),
    ).run()
"""


@pytest.fixture
def stop(tmp_path: Path) -> Path:
    return tmp_path / "stop"


@pytest.fixture
def driver(tmp_path: Path, stop: Path) -> Iterator[subprocess.Popen[bytes]]:
    script = tmp_path / "tune_shown.py"
    script.write_text(SCRIPT.replace("STOP", str(stop)))
    with subprocess.Popen([sys.executable, str(script)], env=_environment(tmp_path)) as process:
        yield process
        stop.touch()
        if process.poll() is None:
            process.terminate()


def _environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "MQTUNE_HOME": str(tmp_path / "home")}


class Dashboard:
    """The command, and requests to it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+:\d+", line)
        assert found, line
        self.url = found[0]

    def ask(self, path: str, method: str = "GET", body: object = None, **headers: str) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.url}{path}", data, {"Content-Type": "application/json", **headers}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text[:1] in (b"{", b"[") else text
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    @property
    def trials(self) -> list[dict[str, Any]]:
        trials: list[dict[str, Any]] = self.ask("/api/studies/0")[1]["trials"]
        return trials


@contextmanager
def opened(tmp_path: Path) -> Iterator[Dashboard]:
    command = [sys.executable, "-m", "mqtune", "ui", "--optuna", "shown", "--port", "0"]
    with subprocess.Popen(command, env=_environment(tmp_path), stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Dashboard(process)
        finally:
            process.kill()


def test_it_shows_what_runs_live_and_what_has_ended_from_the_folder(
    driver: subprocess.Popen[bytes], stop: Path, tmp_path: Path
) -> None:
    journal = tmp_path / "home" / "shown" / JOURNAL_FILE
    eventually(lambda: journal.exists() and journal.stat().st_size, PROGRAM_S)
    with opened(tmp_path) as live:
        eventually(lambda: "Running" in [trial["state"] for trial in live.trials], PROGRAM_S)
        seen = len(live.trials[0]["intermediate_values"])
        eventually(lambda: len(live.trials[0]["intermediate_values"]) > seen)

        assert live.ask("/dashboard")[0] == 200
        assert live.ask("/api/trials/0/tell", "POST", {"state": "Complete", "values": [0.0]})[0] == 403
        assert live.ask("/api/studies/0", "DELETE")[0] == 403
        assert live.ask("/api/studies/0/note", "PUT", {"version": 1, "body": "hm"})[0] == 204
        assert live.ask("/api/studies", Host="evil.example")[0] == 421

        stop.touch()
        assert driver.wait(PROGRAM_S) == 0
        # The server of the experiment has ended with its driver; the rest is read from the folder.
        eventually(lambda: [trial["state"] for trial in live.trials] == ["Complete"] * 2)

    with opened(tmp_path) as later:
        assert [trial["state"] for trial in later.trials] == ["Complete"] * 2
