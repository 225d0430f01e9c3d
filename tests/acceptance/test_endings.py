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
import trainables
from waiting import all_gone, eventually, family_of

import mqtune
from mqtune.backends import EmbeddedServer, find_binary
from mqtune.core.keys import ExperimentKeys
from mqtune.core.trial import TrialStatus
from mqtune.journal import connect
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


def running(script: Path) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    """The script as its user would run it, in a session (a terminal) of its own."""
    return running_command(str(script), cwd=script.parent)


@contextlib.contextmanager
def running_command(*arguments: str, cwd: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=cwd,
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


def trials_started(home: Path) -> int:
    return len(list((home / "endings").glob("0*/*.stdout")))


def wait_for_trials(process: subprocess.Popen[str], home: Path, number: int) -> None:
    eventually(lambda: trials_started(home) >= number or process.poll() is not None, 30)


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


def test_an_undisturbed_run_leaves_nothing_and_running_it_again_only_reads_it(script: Path, mqtune_home: Path):
    finish(script)
    before = (mqtune_home / "endings" / "journal.msgpack").read_bytes()

    started = time.monotonic()
    finish(script)

    assert (mqtune_home / "endings" / "journal.msgpack").read_bytes() == before
    # A whole run takes longer still on a machine that is as busy.
    assert time.monotonic() - started < 30


def test_a_server_that_the_environment_names_is_taken_instead_of_one_of_its_own(
    script: Path, mqtune_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with EmbeddedServer.start(tmp_path / "elsewhere", binary=find_binary()) as server:
        monkeypatch.setenv("MQTUNE_REDIS_URL", server.url)

        finish(script)

        assert not (mqtune_home / "endings" / "redis").exists()
        with contextlib.closing(connect(server.url)) as client:
            assert client.exists(ExperimentKeys("endings").journal)


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


def test_sigterm_ends_a_run_as_ctrl_c_does_with_the_exit_code_of_its_own(script: Path, mqtune_home: Path):
    with running(script) as process:
        wait_for_trials(process, mqtune_home, 3)
        process.terminate()
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 143, output
    assert "mqtune drive endings" in output

    with running_command("-m", "mqtune", "drive", "endings") as process:
        wait_for_trials(process, mqtune_home, trials_started(mqtune_home) + 1)
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 130, output


def test_ctrl_c_twice_ends_at_once_and_the_same_script_goes_on(script: Path, mqtune_home: Path):
    """Also when Redis is frozen, which an end in good order would wait for."""
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


def test_kill_9_of_the_local_worker_ends_the_run_with_its_log_and_the_same_script_goes_on(
    script: Path, mqtune_home: Path
):
    with running(script) as process:
        wait_for_trials(process, mqtune_home, 2)
        family = family_of(process.pid)
        for member in family:
            # A trial's process may end in this moment.
            with contextlib.suppress(psutil.NoSuchProcess):
                if "mqtune.worker.local" in member.cmdline():
                    member.kill()
        output, _ = process.communicate(timeout=60)
    assert "the local worker ended with code -9" in output
    eventually(lambda: all_gone(family), 15, "a dead worker left a process")

    finish(script)


def test_a_local_experiment_that_has_ended_is_extended_by_hand(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.delenv("MQTUNE_BROKER", raising=False)
    given = {
        "metric": "loss",
        "mode": "min",
        "max_trials": 1,
        "backend": mqtune.Local(slots=1),
        "run": mqtune.RunOptions(progress=False),
        "name": "extended",
    }
    mqtune.Tuner(trainables.steady, {"x": mqtune.uniform(0, 1)}, **given).run()

    with contextlib.closing(mqtune.Tuner.attach("extended", run=mqtune.RunOptions(progress=False))) as tuner:
        # The first look at it, before anything else has it connect.
        assert [trial.status for trial in tuner.get_trials()] == [TrialStatus.COMPLETED]
        assert tuner.is_finished
        added = tuner.add({"x": 0.5})
        assert not tuner.is_finished
        eventually(lambda: tuner.step(0.1) or tuner.is_finished, 40, "no worker was started")
        assert (added.status, added.reports) == (TrialStatus.COMPLETED, 9)

    assert "nobody has taken it" not in caplog.text, "it waited in a queue of slots that nobody offers"
    with contextlib.closing(mqtune.Tuner.attach("extended", run=mqtune.RunOptions(progress=False))) as again:
        assert [trial.config["x"] for trial in again.get_trials()][1:] == [0.5]
