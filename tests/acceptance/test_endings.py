"""However a run ends, nothing is left running, nothing that was reported is lost, and the same script goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from waiting import all_gone, eventually, family_of

from mqtune.core.trial import TrialStatus
from mqtune.results.results import Results

SCRIPT = """
import time
import mqtune

def train(config):
    for epoch in range(9):
        time.sleep(0.02)
        mqtune.report({"loss": config["x"] / (epoch + 1), "epoch": epoch + 1})

if __name__ == "__main__":
    mqtune.Tuner(
        train, {"x": mqtune.uniform(0, 1)}, metric="loss", mode="min", scheduler=mqtune.ASHA(max_t=9),
        max_trials=12, backend=mqtune.Local(slots=2), name="endings", seed=3, run=mqtune.RunOptions(progress=False),
    ).run()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script with spaces.py"
    path.write_text(SCRIPT)
    return path


@contextlib.contextmanager
def running(script: Path) -> Iterator[subprocess.Popen[str]]:
    """The script as its user would run it, in a session (a terminal) of its own."""
    process = subprocess.Popen(
        [sys.executable, str(script)],
        cwd=script.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        with process:
            yield process
    finally:
        if process.poll() is None:
            process.kill()


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Read what a program prints up to a line with *text*."""
    assert process.stdout is not None
    read = []
    for line in process.stdout:
        read.append(line)
        if text in line:
            break
    return "".join(read)


def wait_for_trials(process: subprocess.Popen[str], home: Path, number: int) -> None:
    eventually(lambda: len(list((home / "endings").glob("0*/*.stdout"))) >= number or process.poll() is not None, 30)


def finish(script: Path) -> Results:
    """Run the script to its end, and check what every finished experiment must show."""
    with running(script) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    results = Results.load("endings")
    assert len(results.trials) == 12
    assert all(t.status in (TrialStatus.COMPLETED, TrialStatus.EARLY_STOPPED) for t in results.trials)
    for trial in results.trials:
        by_attempt: dict[int, list[int]] = {}
        for row in results.reports(trial.id):
            by_attempt.setdefault(row.attempt, []).append(row.sequence)
        for sequences in by_attempt.values():
            assert sequences == list(range(1, len(sequences) + 1))
    return results


@pytest.mark.parametrize("after", [0, 3])
def test_ctrl_c_saves_everything_and_the_same_script_goes_on(script: Path, mqtune_home: Path, after: int):
    with running(script) as process:
        if after:
            wait_for_trials(process, mqtune_home, after)
        else:
            # In the middle of its imports, of the server's start, or of the worker's.
            eventually(lambda: len(family_of(process.pid)) > 1, 30)
        family = family_of(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=30)
    eventually(lambda: all_gone(family), 15, "Ctrl-C left a process")
    if after:
        assert process.returncode == 130, output
        assert "to go on" in output
        interrupted = Results.load("endings")
        assert not any(t.status is TrialStatus.RUNNING for t in interrupted.trials)

    results = finish(script)

    assert not any(t.status is TrialStatus.FAILED for t in results.trials)
    if after:
        assert len(results.trials) > len(interrupted.trials) - 1
        for trial in interrupted.trials:
            assert results[trial.id].config == trial.config


def test_ctrl_c_twice_ends_at_once_and_the_same_script_goes_on(script: Path, mqtune_home: Path):
    with running(script) as process:
        wait_for_trials(process, mqtune_home, 3)
        family = family_of(process.pid)
        server = next(each for each in family if "server" in each.name())
        server.suspend()
        os.killpg(process.pid, signal.SIGINT)
        output = read_until(process, "Ctrl-C again ends at once")
        pressed = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        rest, _ = process.communicate(timeout=20)
        ended_s = time.monotonic() - pressed
    assert process.returncode == 130, output + rest
    assert f"Everything is kept in {mqtune_home / 'endings'};" in rest
    assert "Traceback" not in rest
    # It is below one on an idle machine; what would be waited for takes ten and more.
    assert ended_s < 8
    # It would be killed some seconds later.
    with contextlib.suppress(psutil.NoSuchProcess):
        server.resume()
    eventually(lambda: all_gone(family), 15, "Ctrl-C twice left a process")

    finish(script)
