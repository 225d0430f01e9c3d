"""Trials over several real workers: they begin and end together, whatever becomes of one of them."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import Final

import psutil
from altered_worker import altered_worker, let_go, meets, tuner_of
from waiting import eventually, is_gone

import mqtune
from mqtune.backends import EmbeddedServer
from mqtune.core.trial import AttemptEnd, Trial, TrialStatus

#: How long what other processes do may take on a busy machine.
SOON_S: Final = 60.0
#: A worker whose attempts are lost, and whose orders are repeated, sooner than usual.
ALTERATION: Final = """
timing = Timing(lease_s=4.0, heartbeat_s=0.5)
"""
ONE_SLOT: Final = ("--gpus", "0", "--slots", "1", "--cpus", "1", "--hold-seats", "1")
APART: Final = mqtune.Resources(machines=2)


def runs(tuner: mqtune.Tuner, trial: Trial, attempt: int = 1) -> None:
    def is_running() -> bool:
        tuner.step(0.05)
        return trial.attempt.number == attempt and trial.attempt.reports > 1

    eventually(is_running, SOON_S, f"attempt {attempt} of trial {trial.id} runs")


def is_over(tuner: mqtune.Tuner, trial: Trial) -> TrialStatus:
    def status() -> TrialStatus | None:
        tuner.step(0.05)
        return trial.status if trial.status.is_terminal or trial.status is TrialStatus.PAUSED else None

    return eventually(status, SOON_S, f"trial {trial.id} is over") or trial.status


def seat(folder: Path, number: int, which: int, attempt: int = 1) -> list[str]:
    """Return the line that a seat of a trial has written: its process, rank, world size, and where seat 0 is."""
    path = folder / f"seat-{number}-{attempt}-{which}"
    return eventually(lambda: path.exists() and path.read_text(), SOON_S, f"seat {which} runs").split()


def are_gone(*processes: str) -> bool:
    return all(is_gone(int(process)) for process in processes)


def workers_of(trial: Trial) -> list[str]:
    return [each.partition("@")[0] for each in (trial.attempt.worker, *(seat.worker for seat in trial.attempt.seats))]


def test_a_trial_goes_on_elsewhere_from_its_checkpoint_when_a_worker_of_one_seat_is_killed_or_drained(
    tmp_path: Path,
) -> None:
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(EmbeddedServer.start(tmp_path / "server")).url

        def join(name: str) -> psutil.Process:
            worker = stack.enter_context(altered_worker(broker, tmp_path, ALTERATION, *ONE_SLOT, name=name))
            return psutil.Process(worker.pid)

        workers = {name: join(name) for name in ("one", "two")}
        tuner = stack.enter_context(tuner_of(broker, "moving", APART, meets))
        trial = tuner.add({"number": 10})
        runs(tuner, trial)
        other = workers_of(trial)[1]
        processes = [seat(tmp_path, 10, which)[0] for which in (0, 1)]
        workers["three"] = join("three")

        workers[other].send_signal(signal.SIGKILL)
        runs(tuner, trial, 2)

        assert trial.attempts[0].end is AttemptEnd.LOST
        assert trial.attempts[0].error.startswith(f"worker {other}@"), "the one that is gone, not that of seat 0"
        assert are_gone(*processes), "no seat of the attempt before runs beside the new one"
        first = seat(tmp_path, 10, 0, 2)[0]
        lead = workers_of(trial)[0]
        workers["four"] = join("four")
        workers[lead].send_signal(signal.SIGTERM)
        runs(tuner, trial, 3)

        assert trial.attempts[1].end is AttemptEnd.HANDED_BACK
        assert are_gone(first)
        let_go(tmp_path, 10)
        assert is_over(tuner, trial) is TrialStatus.COMPLETED
        steps = [report.metrics["steps"] for report in tuner.results().reports(trial.id)]
        assert steps == sorted(steps), "no attempt begins anew"
        assert trial.reports > len(trial.attempts), "it went on where it was"
