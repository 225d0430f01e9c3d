"""A worker, or a part of it, dies, freezes, or can't do its work: nothing is left of it, and its trials go on elsewhere."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import trainables_leaving as leaving
import trainables_saving as saving
from pair import Tune, counting, rows, tuners, workers
from running import QUICK
from waiting import all_gone, eventually, family_of, lives

import mqtune
from mqtune.core.trial import AttemptEnd, Trial
from mqtune.testing.backends.world import drive

#: A shape that no other test's worker has.
SLOT = mqtune.Resources(cpus=7)
OPTIONS = ("--gpus", "0", "--slots", "1", "--cpus", "7")
WAIT_S = 40.0

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(broker: str, tmp_path: Path) -> Iterator[Start]:
    with workers(broker, tmp_path, program=QUICK) as start:
        yield lambda name: start(name, options=OPTIONS)


@pytest.fixture
def tune(broker: str, tmp_path: Path) -> Iterator[Tune]:
    with tuners(broker, tmp_path / "store") as build:
        yield lambda trainable, *configs, **options: build(trainable, *configs, resources=SLOT, **options)


def send(family: list[psutil.Process], number: signal.Signals) -> None:
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.send_signal(number)


def running(tuner: mqtune.Tuner, reports: int = 3) -> Trial:
    drive(tuner, lambda: [t for t in tuner.get_trials() if t.attempt.reports >= reports])
    (trial,) = tuner.get_trials()
    return trial


def goes_on(tuner: mqtune.Tuner, trial: Trial, attempt: int = 2) -> None:
    """Step until a later attempt reports, which goes on from the newest checkpoint of the one before."""
    drive(tuner, lambda: trial.attempt.number == attempt and trial.attempt.reports, "the lease must run out")
    before = [row["step"] for row in rows(tuner, trial, attempt - 1)]
    first = rows(tuner, trial, attempt)[0]["step"]
    # The last report may have come without its checkpoint being named.
    assert first in (before[-1], before[-1] + 1)


def test_a_worker_or_its_machine_that_dies_leaves_nothing_and_its_trial_goes_on_elsewhere(start: Start, tune: Tune):
    dying = start("dying")
    tuner = tune(saving.CountsOften, counting())
    trial = running(tuner)
    family = family_of(dying.pid)
    start("heir")

    # With its machine all of them die, which leaves less to do.
    dying.kill()
    goes_on(tuner, trial)

    assert [attempt.worker.partition("@")[0] for attempt in trial.attempts] == ["dying", "heir"]
    assert (trial.attempts[0].end, trial.failures) == (AttemptEnd.LOST, 0)
    dying.wait()
    eventually(lambda: all_gone(family), WAIT_S, "a worker that died left a process")


def test_a_worker_that_was_frozen_past_its_lease_kills_its_trial_when_it_thaws_and_serves_on(start: Start, tune: Tune):
    frozen = start("frozen")
    tuner = tune(saving.CountsOften, counting())
    trial = running(tuner)
    family = family_of(frozen.pid)
    process = psutil.Process(trial.last_metrics["pid"])
    assert process in family

    send(family, signal.SIGSTOP)
    try:
        start("heir")
        goes_on(tuner, trial)
        assert trial.attempts[0].end is AttemptEnd.LOST
        assert "it is gone, frozen or cut off" in trial.attempts[0].error
        before = rows(tuner, trial, 1)
    finally:
        send(family, signal.SIGCONT)

    eventually(lambda: tuner.step(0.05) or not lives(process), WAIT_S, "it runs on beside its successor")
    other = tuner.add(counting())
    drive(tuner, lambda: other.attempt.reports)
    assert other.attempt.worker.startswith("frozen@")
    assert rows(tuner, trial, 1) == before, "a superseded attempt was heard"
    assert (trial.attempt.number, trial.failures) == (2, 0)


def test_a_part_of_a_worker_that_is_killed_costs_one_attempt_and_the_worker_serves_on(start: Start, tune: Tune):
    worker = start("hurt")
    tuner = tune(saving.in_dicts, counting(), failures=mqtune.Failures(max_failures=1))
    trial = running(tuner)
    pid = trial.last_metrics["pid"]
    process = psutil.Process(pid)
    os.killpg(pid, signal.SIGKILL)
    goes_on(tuner, trial)
    first = trial.attempts[0]
    assert (first.end, first.error_type, trial.failures) == (AttemptEnd.FAILED, "Killed", 1)
    assert (first.pid, first.signal) == (pid, signal.SIGKILL)
    eventually(lambda: not lives(process), WAIT_S)

    drive(tuner, lambda: trial.attempt.reports >= 3)
    zygote = psutil.Process(psutil.Process(trial.last_metrics["pid"]).ppid())
    hurt = zygote.children(recursive=True)
    zygote.kill()
    goes_on(tuner, trial, attempt=3)
    second = trial.attempts[1]
    assert (second.end, second.error_type, trial.failures) == (AttemptEnd.LOST, "ZygoteDied", 1)
    eventually(lambda: not any(map(lives, hurt)), WAIT_S, "a dead zygote left a process")
    assert worker.poll() is None


@contextlib.contextmanager
def locking(tune: Tune, folder: Path, *, bare: bool) -> Iterator[tuple[mqtune.Tuner, Trial, Callable[[], bool]]]:
    """A running trial whose daemon has a lock, which another attempt needs; and what says whether anybody has it."""
    lock = folder / "lock"
    space = {"lock": str(lock), "bare": bare}
    tuner = tune(
        leaving.keeps_a_lock, space=space, searcher=None, max_trials=1, failures=mqtune.Failures(max_failures=0)
    )
    trial = running(tuner)

    def is_held() -> bool:
        with lock.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    assert is_held()
    yield tuner, trial, is_held
    tuner.trial(trial).stop()
    drive(tuner, lambda: tuner.is_finished)
    assert not is_held()


def test_zygotes_that_are_killed_leave_no_daemon_with_a_device_and_no_zombie(start: Start, tune: Tune, tmp_path: Path):
    worker = psutil.Process(start("hurt").pid)
    with locking(tune, tmp_path, bare=True) as (tuner, trial, _):
        for attempt in (2, 3):
            psutil.Process(trial.last_metrics["pid"]).parent().kill()
            # It fails when it can't have the lock.
            drive(tuner, lambda attempt=attempt: trial.attempt.number == attempt and trial.attempt.reports >= 3)

        assert [attempt.end for attempt in trial.attempts[:-1]] == [AttemptEnd.LOST] * 2
        family = worker.children(recursive=True)
        # The importer, the zygote, the trial, the spare and the daemon.
        assert len(family) == 5
        assert psutil.STATUS_ZOMBIE not in [process.status() for process in family]


def test_a_worker_ends_what_one_before_it_left_that_was_killed_with_its_zygotes(
    start: Start, tune: Tune, tmp_path: Path
):
    dying = start("dying")
    with locking(tune, tmp_path, bare=False) as (tuner, trial, is_held):
        family = family_of(dying.pid)
        # The importer and the zygote.
        zygotes = psutil.Process(trial.last_metrics["pid"]).parents()[:2]
        process = psutil.Process(trial.last_metrics["pid"])
        # One that is stopped can't end what its zygotes leave.
        dying.send_signal(signal.SIGSTOP)
        eventually(lambda: family[0].status() == psutil.STATUS_STOPPED)
        send(zygotes, signal.SIGKILL)
        dying.kill()
        dying.wait()
        eventually(lambda: not lives(process))

        start("heir")

        assert not is_held()
        drive(tuner, lambda: trial.attempt.number == 2 and trial.attempt.reports)
        assert trial.attempts[0].end is AttemptEnd.LOST
