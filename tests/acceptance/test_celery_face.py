"""A worker is Celery's own: its commands work on it, what can't work is refused, and it goes as it should."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from celery import Celery
from faces import ROOT, celery, run, running, settings, wait_until_joined
from terminal import terminal
from waiting import all_gone, eventually, family_of

import mqtune
from mqtune.core.text import in_words
from mqtune.core.trial import AttemptEnd, TrialStatus
from mqtune.journal import celery_url
from mqtune.worker import WorkerSettings, celery_settings

Tune = Callable[..., mqtune.Tuner]

#: How long a worker may take to answer a remote command.
ANSWER_S: Final = 10.0
WORKER: Final = [sys.executable, "-m", "mqtune", "worker", "--name", "here"]


@pytest.fixture
def tune_here(tune: Tune, own_broker: str) -> Tune:
    return partial(tune, backend=own_broker, name="face")


def reports_come(tuner: mqtune.Tuner, number: int = 1) -> bool:
    tuner.step(0.1)
    return (
        sum(trial.status is TrialStatus.RUNNING and trial.attempt.reports > 0 for trial in tuner.get_trials()) == number
    )


def test_celerys_commands_work_on_a_worker_and_its_trials(own_broker: str, tmp_path: Path, tune_here: Tune):
    with (
        running(WORKER, settings(own_broker, tmp_path), tmp_path / "w.log") as process,
        contextlib.closing(tune_here("slow")) as tuner,
        contextlib.ExitStack() as stack,
    ):
        wait_until_joined(own_broker, "here")
        eventually(lambda: reports_come(tuner), 30)

        # Another team's Celery on the same Redis means its own workers.
        with Celery("shop", broker=celery_url(own_broker), set_as_current=False) as shop:
            shop.control.shutdown()
            shop.control.broadcast("pool_shrink", arguments={"n": 1})

        node = f"here@{socket.gethostname()}"
        # A command that says whom it asks doesn't wait for others: Celery's own second is short for a busy machine.
        to_node = "-d", node, "-t", f"{ANSWER_S:g}"
        assert "1 node online" in run(own_broker, "status", *to_node).stdout
        ours = stack.enter_context(Celery(set_as_current=False))
        ours.conf.update(celery_settings(WorkerSettings(broker=own_broker)))
        inspect = ours.control.inspect([node], timeout=ANSWER_S)
        (task,) = inspect.active()[node]
        assert (task["id"], task["name"]) == ("face/0001/1", "face/slow")
        assert task["kwargs"] == in_words(tuner.get_trials()[0].config)
        assert process.pid in {parent.pid for parent in psutil.Process(task["worker_pid"]).parents()}
        password = own_broker.partition("://:")[2].partition("@")[0].encode()
        for member in family_of(process.pid):
            if sys.platform == "linux":
                assert password not in Path(f"/proc/{member.pid}/environ").read_bytes(), member.cmdline()
        to_it: dict[str, Any] = {"destination": [node], "reply": True, "timeout": ANSWER_S}
        assert "timeout_s=" in str(ours.control.time_limit("mqtune.run_trial", hard=60, **to_it))
        pool = inspect.stats()[node]["pool"]
        assert (pool["trials"], pool["slots"], pool["max-concurrency"]) == (["face/0001"], "1 CPU", 2)
        assert "as many slots as it has devices" in str(ours.control.pool_grow(1, **to_it))

        stopped = run(own_broker, "control", *to_node, "terminate", "SIGTERM", "face/0001/1")
        assert "terminate: face/0001/1" in stopped.stdout
        eventually(lambda: tuner.step(0.1) or tuner.is_finished, 20)
        (trial,) = tuner.get_trials()
        assert trial.status is TrialStatus.EARLY_STOPPED
        assert trial.reason == "terminated by an operator through Celery"


#: Options and variables that a worker refuses, and words of the one line that it ends with.
REFUSED: Final = [
    (["-c", "7"], {}, ("--concurrency 7: this worker has 2 slots", "MQTUNE_SLOTS")),
    (
        [],
        {"CELERY_RESULT_BACKEND": "redis://:hush@other"},
        ("result_backend is 'redis://:***@other'", "trials need None"),
    ),
    ([], {"MQTUNE_BROKER": "not"}, ("refuses the login", "put the right password into the URL")),
    ([], {"MQTUNE_LOG_ROOT": "/dev/null/logs"}, ("the log root /dev/null/logs is not writable",)),
]


def test_settings_that_can_not_work_are_refused_in_one_line_with_the_way_out(own_broker: str, tmp_path: Path):
    with contextlib.ExitStack() as stack:
        started = []
        for options, variables, _ in REFUSED:
            given = {**os.environ, **settings(own_broker, tmp_path), **variables}
            given["MQTUNE_BROKER"] = own_broker.replace("unix://:", f"unix://:{variables.get('MQTUNE_BROKER', '')}")
            command = celery("worker", *options)
            started.append(
                stack.enter_context(
                    subprocess.Popen(command, env=given, cwd=ROOT, stdout=-3, stderr=subprocess.PIPE, text=True)
                )
            )
            stack.callback(started[-1].kill)
        for process, (_, _, words) in zip(started, REFUSED, strict=True):
            (line,) = process.communicate(timeout=60)[1].splitlines()
            assert process.returncode == 1
            assert line.startswith("mqtune: ")
            assert "hush" not in line
            assert [word for word in words if word not in line] == []


@pytest.mark.usefixtures("at_a_terminal")
def test_ctrl_c_or_a_terminal_that_closes_hands_the_trials_back_and_another_worker_takes_them(
    own_broker: str, tmp_path: Path, tune_here: Tune, monkeypatch: pytest.MonkeyPatch
):
    for name, value in settings(own_broker, tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(ROOT)
    log = tmp_path / "w.log"
    with (
        terminal(celery("worker", "-n", "first@%h")) as person,
        contextlib.closing(tune_here("slow", max_trials=2)) as tuner,
    ):
        eventually(lambda: reports_come(tuner, 2), 30)
        family = family_of(person.process.pid)
        assert len(family) >= 5, "the worker, and a zygote and a trial for each slot"
        person.press(b"\x03")
        assert person.wait(20) == 0
        assert "requeueing the trials" in person.text
        assert "Traceback" not in person.text
        eventually(lambda: all_gone(family), 15)

        with running(WORKER, {}, log) as second:
            eventually(lambda: reports_come(tuner, 2), 30)
            for trial in tuner.get_trials():
                assert [attempt.number for attempt in trial.attempts] == [1, 2]
                assert trial.attempts[0].end is AttemptEnd.HANDED_BACK
                assert trial.attempt.worker.startswith("here@")
                assert trial.failures == 0
            family = family_of(second.pid)
            second.send_signal(signal.SIGHUP)
            # A restart keeps the number of the process, which does not exit then.
            assert second.wait(timeout=20) == 0
            assert log.read_text().count(" ready") == 1
            eventually(lambda: all_gone(family), 15)
            eventually(lambda: tuner.step(0.1) or tuner.get_trials()[0].attempts[1].end, 10)
            assert tuner.get_trials()[0].attempts[1].end is AttemptEnd.HANDED_BACK


def test_what_comes_while_a_worker_leaves_is_run_by_another_and_ctrl_c_twice_leaves_no_process(
    own_broker: str, tmp_path: Path, tune_here: Tune, caplog: pytest.LogCaptureFixture
):
    environment = settings(own_broker, tmp_path)
    with (
        running(celery("worker", "-n", "leaving@%h"), environment, tmp_path / "leaving.log") as leaving,
        contextlib.closing(tune_here("stubborn")) as first,
        contextlib.closing(tune_here("steady", name="second")) as second,
    ):
        eventually(lambda: reports_come(first), 30)
        family = family_of(leaving.pid)
        with running(celery("worker", "-n", "staying@%h"), environment, tmp_path / "staying.log"):
            wait_until_joined(own_broker, "staying")
            # It has a slot that waits for a message, and a trial that takes no notice of being told.
            leaving.send_signal(signal.SIGINT)
            eventually(lambda: second.step(0.05) or second.is_finished, 30)
            assert "publishing it again" not in caplog.text, (
                "the message was lost, and published again ten seconds later"
            )
            assert "press Ctrl-C again to end immediately" in (tmp_path / "leaving.log").read_text()
            assert leaving.poll() is None, "it still waits for the trial"
            assert second.get_trials()[0].attempt.worker.startswith("staying@")
        began = time.monotonic()
        leaving.send_signal(signal.SIGINT)
        assert leaving.wait(timeout=10) == 1
        assert time.monotonic() - began < 8, "it waited for the trial"
        eventually(lambda: all_gone(family), 15)


def test_a_worker_under_nohup_runs_on_when_its_terminal_closes(own_broker: str, tmp_path: Path, tune_here: Tune):
    log = tmp_path / "w.log"
    with (
        running(["nohup", *WORKER], settings(own_broker, tmp_path), log) as worker,
        contextlib.closing(tune_here("slow")) as tuner,
    ):
        eventually(lambda: reports_come(tuner), 30)
        worker.send_signal(signal.SIGHUP)
        # Later than the signal, from the broker to the trial and back.
        tuner.stop_all("the test is over")
        eventually(lambda: tuner.step(0.1) or tuner.is_finished, 20)
        assert [attempt.end for attempt in tuner.get_trials()[0].attempts] == [AttemptEnd.STOPPED]
        assert worker.poll() is None
        assert log.read_text().count(" ready") == 1


@pytest.fixture
def at_a_terminal() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
