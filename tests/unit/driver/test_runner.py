from __future__ import annotations

import contextlib
import errno
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from waiting import eventually

import mqtune
from mqtune import Results
from mqtune.core.errors import UserCodeFailed
from mqtune.core.trial import Decision, Report, Trial
from mqtune.driver import Interrupts


def curve(config: dict[str, Any]) -> list[dict[str, float]]:
    return [{"loss": config["x"] / (n + 1)} for n in range(3)]


def tuned(**options: Any) -> mqtune.Tuner:
    backend = mqtune.Simulated(lambda config: ((1.0, each) for each in curve(config)), slots=2)
    settings: dict[str, Any] = {
        "metric": "loss",
        "mode": "min",
        "name": "x",
        "max_trials": 3,
        "run": mqtune.RunOptions(progress=False),
        "backend": backend,
    }
    return mqtune.Tuner(curve, {"x": mqtune.uniform(0, 1)}, **{**settings, **options})


def test_results_that_can_not_be_saved_are_returned_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mqtune_home: Path
) -> None:
    def refuse(results: Results) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(results.folder / "trials.csv"))

    monkeypatch.setattr(Results, "save", refuse)

    results = tuned().run()

    assert (len(results), results.outcome) == (3, "finished")
    assert f"the results of experiment x can't be written to {mqtune_home / 'x'}" in caplog.text
    assert "`mqtune drive x` writes them" in caplog.text


def drive(tuner: mqtune.Tuner) -> None:
    while not tuner.is_finished:
        tuner.step()
    tuner.step()


class Breaks(mqtune.FIFO):
    def on_report(self, trial: Trial, report: Report) -> Decision:
        raise ValueError("broken")


def test_an_experiment_that_fails_in_a_loop_of_ones_own_is_ended_as_failed(mqtune_home: Path) -> None:
    with contextlib.closing(tuned(scheduler=Breaks())) as tuner:
        with pytest.raises(UserCodeFailed):
            drive(tuner)
        assert tuner.results().outcome != "failed"

        with pytest.raises(UserCodeFailed):
            tuner.finish("the loop is over")

        assert tuner.results().outcome == "failed"


def test_a_run_that_is_over_can_still_be_looked_at(mqtune_home: Path) -> None:
    tuner = tuned()
    tuner.run()

    assert [report.sequence for report in tuner.new_reports() if report.trial == "0001"] == [1, 2, 3]
    assert tuner.next_failed_trial() is None
    assert tuner.is_finished
    assert "3 COMPLETED" in tuner.debug_string()
    assert "best loss=" in tuner.debug_string()
    assert {path.name for path in tuner.folder.iterdir()} >= {"journal.msgpack", "trials.csv", "results.json"}


def interrupted(config: dict[str, Any]) -> Iterator[tuple[float, dict[str, float]]]:
    """Return the reports of a trial during which a person presses Ctrl-C."""
    signal.raise_signal(signal.SIGINT)
    yield 1.0, {"loss": 1.0}


def test_who_interrupts_a_run_that_overwrites_is_warned(capsys: pytest.CaptureFixture[str]) -> None:
    run = mqtune.RunOptions(progress=False, overwrite=True)

    with pytest.raises(SystemExit):
        tuned(backend=mqtune.Simulated(interrupted), run=run).run()

    said = "".join(capsys.readouterr())
    assert "To resume: mqtune drive x." in said
    assert "The script would delete it" in said


class Unreachable:
    """A backend for which a person does not wait."""

    def open(self, experiment: str, resources: object) -> NoReturn:
        signal.raise_signal(signal.SIGINT)
        raise KeyboardInterrupt


def test_who_interrupts_early_is_not_told_of_a_folder(mqtune_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        tuned(backend=Unreachable()).run()

    said = "Interrupted before experiment x was opened, so nothing of it has changed. Run the script again."
    assert said in capsys.readouterr().err


def test_the_line_of_a_signal_waits_for_a_frame_that_is_drawn(capfd: pytest.CaptureFixture[str]) -> None:
    interrupts = Interrupts()

    with interrupts.handled():
        with interrupts.deferred():
            signal.raise_signal(signal.SIGINT)
            during = capfd.readouterr().err
        after = capfd.readouterr().err

    assert (during, after.strip()) == (
        "",
        "Stopping: running trials are queued again for the next run. Ctrl-C again ends immediately.",
    )
    assert interrupts.count == 1


#: A searcher, say, that is in the middle of C code, where no Python handler can run.
BUSY = """
import hashlib, sys, threading
from mqtune.driver.setup.interrupts import Interrupts

begins = threading.Event()
threading.Thread(target=lambda: begins.wait() and print("busy", flush=True), daemon=True).start()
# The other thread gets its turn when the main thread is in C code, and not before.
sys.setswitchinterval(3600)
with Interrupts().handled(lambda: "kept in /somewhere"):
    begins.set()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
"""


WAITS = """
import time
from mqtune.driver.setup import interrupts

interrupts.ORDERLY_S = 0.2
with interrupts.Interrupts().handled(lambda: "kept in /somewhere"):
    print("busy", flush=True)
    while True:
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            print("ended at once", flush=True)
            break
"""


#: More files than select() takes: a script's own, as with a large data set.
HOLDS_MANY_FILES = """
import os, resource
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limit), limit))
held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
"""


@pytest.mark.parametrize("before", ["", HOLDS_MANY_FILES], ids=["", "with many files"])
def test_an_end_in_good_order_that_takes_too_long_is_cut_short(before: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", before + WAITS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as waits:
        try:
            assert waits.stdout is not None
            assert waits.stdout.readline() == "busy\n"
            waits.send_signal(signal.SIGINT)
            said, errors = waits.communicate(timeout=20)
        finally:
            waits.kill()
    assert said == "ended at once\n"
    assert "takes too long" in errors
    assert waits.returncode == 0


#: Its standard error is closed, or a pipe that nobody reads and that is full.
MUTE = """
import os, signal
from mqtune.driver.setup.interrupts import Interrupts

if {is_closed}:
    os.close(2)
else:
    os.dup2(os.pipe()[1], 2)
    os.set_blocking(2, False)
    try:
        while True:
            os.write(2, b" " * 4096)
    except BlockingIOError:
        os.set_blocking(2, True)
interrupts = Interrupts()
with interrupts.handled():
    signal.raise_signal(signal.SIGTERM)
    print("signals:", interrupts.count, flush=True)
"""


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "stuck"])
def test_a_signal_counts_although_nobody_can_be_told(is_closed: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MUTE.format(is_closed=is_closed)], stdout=subprocess.PIPE, timeout=20, check=True
    )

    assert done.stdout == b"signals: 1\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_second_signal_ends_a_process_that_is_busy_in_c_code(number: signal.Signals, code: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as busy:
        try:
            assert busy.stdout is not None
            assert busy.stdout.readline() == "busy\n"
            busy.send_signal(number)
            # Two of them that wait are one.
            status = Path(f"/proc/{busy.pid}/status")
            eventually(lambda: "ShdPnd:\t0000000000000000" in status.read_text())
            busy.send_signal(number)
            busy.wait(10)
        finally:
            busy.kill()
        assert busy.stderr is not None
        assert busy.returncode == code
        assert "kept in /somewhere" in busy.stderr.read()
