"""However a run ends, no process and every report is left, and the same script continues."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest
from started import started
from waiting import all_gone, eventually, family_of

from mqtune.core.trial import UNDRIVEN, TrialStatus
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
        train, {"x": mqtune.uniform(0, 1)}, metric="loss", mode="min", searcher="random", scheduler=mqtune.ASHA(max_t=9),
        max_trials=12, backend=mqtune.Local(slots=2), name="endings", seed=3, run=mqtune.RunOptions(progress=False),
    ).run()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script with spaces.py"
    path.write_text(SCRIPT)
    return path


def running(script: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    return started([sys.executable, str(script)], {}, log_of(script), cwd=script.parent)


def log_of(script: Path) -> Path:
    return script.with_suffix(".log")


def wait_for_trials(process: subprocess.Popen[bytes], home: Path, number: int) -> list[psutil.Process]:
    """Wait until this number of trials has begun, and return all processes."""
    eventually(lambda: len(list((home / "endings").glob("0*/*.stdout"))) >= number or process.poll() is not None, 30)
    return family_of(process.pid)


def finish(script: Path) -> Results:
    """Run the script to its end, and check what every finished experiment must show."""
    with running(script) as process:
        assert process.wait(60) == 0, log_of(script).read_text()
    return finished()


def finished() -> Results:
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
        process.wait(30)
    eventually(lambda: all_gone(family), 15, "Ctrl-C left a process")
    if after:
        assert process.returncode == 130
        assert "To resume, run the script again" in log_of(script).read_text()
        interrupted = Results.load("endings")
        assert not any(t.status is TrialStatus.RUNNING for t in interrupted.trials)

    results = finish(script)

    if after:
        assert len(results.trials) > len(interrupted.trials) - 1
        for trial in interrupted.trials:
            assert results[trial.id].config == trial.config


def test_ctrl_c_twice_ends_at_once_and_the_same_script_goes_on(script: Path, mqtune_home: Path):
    with running(script) as process:
        family = wait_for_trials(process, mqtune_home, 3)
        server = next(each for each in family if "server" in each.name())
        server.suspend()
        os.killpg(process.pid, signal.SIGINT)
        eventually(lambda: "Ctrl-C again ends immediately" in log_of(script).read_text(), 20)
        pressed = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(20) == 130
        ended_s = time.monotonic() - pressed
    assert f"Progress is saved in {mqtune_home / 'endings'}." in log_of(script).read_text()
    assert "Traceback" not in log_of(script).read_text()
    # It is below one on an idle machine. A wait for the server would take ten.
    assert ended_s < 8
    # It would be killed some seconds later.
    with contextlib.suppress(psutil.NoSuchProcess):
        server.resume()
    eventually(lambda: all_gone(family), 15, "Ctrl-C twice left a process")

    finish(script)


def test_a_run_whose_driver_was_killed_is_resumed_from_its_folder_with_the_code_that_it_began_with(
    script: Path, mqtune_home: Path
):
    # A trial goes past its first epoch only behind the kill: one must be under way, however slow the machine is.
    goes_on = script.parent / "goes on"
    wait = f"for epoch in range(9):\n        while epoch and not __import__('os').path.exists({str(goes_on)!r}):\n    "
    script.write_text(SCRIPT.replace("for epoch in range(9):\n", wait))
    with running(script) as driver:
        family = wait_for_trials(driver, mqtune_home, 2)
        # Files of output are made before an attempt begins.
        eventually(lambda: any(Results.load("endings").reports()), 30)
        driver.kill()
        driver.wait()
        eventually(lambda: all_gone(family), 30, "a driver that was killed left a process")
    goes_on.touch()
    script.unlink()
    script.write_text("import mqtune\ndef train(config):\n    mqtune.report({'loss': 0.5})\n    raise SystemExit(0)\n")

    environment = {key: value for key, value in os.environ.items() if key != "MQTUNE_BROKER"}
    command = [sys.executable, "-m", "mqtune", "drive", "endings"]
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
    assert "endings · finished" in done.stdout
    ends = [attempt.error_type for trial in finished() for attempt in trial.attempts[:-1]]
    assert set(ends) == {UNDRIVEN}, "what a killed driver costs is nobody's fault"
