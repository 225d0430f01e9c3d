"""Trials over several real workers: they begin and end together, whatever becomes of one of them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import psutil
import pytest
from altered_worker import altered_worker, held, let_go, meets, tuner_of
from waiting import eventually, is_gone

import mqtune
from mqtune.backends import EmbeddedServer
from mqtune.core.trial import AttemptEnd, Trial, TrialStatus
from mqtune.journal import Fleet, connect

#: How long what other processes do may take on a busy machine.
SOON_S: Final = 60.0
#: A worker whose attempts are lost, and whose orders are repeated, sooner than usual.
ALTERATION: Final = """
timing = Timing(lease_s=4.0, heartbeat_s=0.5)
"""
ONE_SLOT: Final = ("--gpus", "0", "--slots", "1", "--cpus", "1", "--hold-seats", "1")
APART: Final = mqtune.Resources(machines=2)


class Pair(NamedTuple):
    """Two workers of one slot, the process of the second, and the folder in which trials and tests meet."""

    broker: str
    folder: Path
    second: int


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    with (
        EmbeddedServer.start(folder / "server") as server,
        altered_worker(server.url, folder, ALTERATION, *ONE_SLOT, name="one"),
        altered_worker(server.url, folder, ALTERATION, *ONE_SLOT, name="two") as second,
    ):
        yield Pair(server.url, folder, second.pid)


def runs(tuner: mqtune.Tuner, trial: Trial, attempt: int = 1) -> None:
    def is_running() -> bool:
        tuner.step(0.05)
        return trial.attempt.number == attempt and trial.attempt.reports > 1

    eventually(is_running, SOON_S, f"attempt {attempt} of trial {trial.id} runs")


def runs_at_last(tuner: mqtune.Tuner, trial: Trial) -> None:
    """Wait until a trial runs, perhaps in an attempt behind one that was withdrawn while another experiment had a share."""
    eventually(lambda: tuner.step(0.05) or trial.attempt.reports > 1, SOON_S)


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


def busy(broker: str) -> int:
    with contextlib.closing(connect(broker)) as client:
        return sum(sum(info.busy.values()) for info in Fleet(client, patience_s=5).workers())


def test_the_seats_of_a_trial_are_on_different_workers_know_each_other_and_only_seat_0_reports(pair: Pair) -> None:
    with tuner_of(pair.broker, "together", APART, meets) as tuner:
        assert tuner.slots == 1, "two slots have room for one such trial"
        trial = tuner.add({"number": 1})
        runs(tuner, trial)
        first, second = seat(pair.folder, 1, 0), seat(pair.folder, 1, 1)
        let_go(pair.folder, 1)

        assert is_over(tuner, trial) is TrialStatus.COMPLETED
        assert (first[1:3], second[1:3]) == (["0", "2"], ["1", "2"])
        assert first[3:] == second[3:]
        assert sorted(workers_of(trial)) == ["one", "two"]
        assert [report.metrics["steps"] for report in tuner.results().reports(trial.id)] == list(
            range(1, trial.reports + 1)
        )
        eventually(lambda: are_gone(first[0], second[0]), SOON_S)
        eventually(lambda: not busy(pair.broker), SOON_S, "both slots are free")


def test_a_trial_is_stopped_or_paused_in_all_of_its_seats_and_goes_on_where_it_was(pair: Pair) -> None:
    with tuner_of(pair.broker, "stopped", APART, meets) as tuner:
        trial = tuner.add({"number": 2})
        runs(tuner, trial)
        processes = [seat(pair.folder, 2, which)[0] for which in (0, 1)]

        tuner.trial(trial).pause()
        assert is_over(tuner, trial) is TrialStatus.PAUSED
        eventually(lambda: are_gone(*processes), SOON_S)
        before = trial.last_metrics["steps"]
        tuner.trial(trial).resume()
        runs(tuner, trial, 2)
        assert trial.last_metrics["steps"] > before
        processes = [seat(pair.folder, 2, which, 2)[0] for which in (0, 1)]
        tuner.trial(trial).stop()

        assert is_over(tuner, trial) is TrialStatus.EARLY_STOPPED
        eventually(lambda: are_gone(*processes), SOON_S)
        assert [attempt.end for attempt in trial.attempts] == [AttemptEnd.PAUSED, AttemptEnd.STOPPED]


@pytest.mark.parametrize("which", [0, 1])
def test_a_trial_fails_by_the_error_of_any_seat_and_the_others_end(pair: Pair, which: int) -> None:
    number = 3 + which
    with tuner_of(pair.broker, f"failing-{which}", APART, meets) as tuner:
        trial = tuner.add({"number": number})
        runs(tuner, trial)
        processes = [seat(pair.folder, number, each)[0] for each in (0, 1)]
        (pair.folder / f"fail-{number}-{which}").touch()

        assert is_over(tuner, trial) is TrialStatus.FAILED
        assert f"seat {which} has failed" in trial.attempt.error
        eventually(lambda: are_gone(*processes), SOON_S)


def test_a_seat_whose_others_do_not_come_is_given_back_and_others_use_its_slot_until_all_can_begin(pair: Pair) -> None:
    folder = pair.folder
    with (
        tuner_of(pair.broker, "single", mqtune.Resources(), held) as single,
        tuner_of(pair.broker, "double", APART, meets) as double,
    ):
        os.kill(pair.second, signal.SIGSTOP)
        try:
            gang = double.add({"number": 5})
            taken = f"[{double.name}/"

            def is_given_back() -> bool:
                double.step(0.05)
                # A seat that was given back is taken again.
                return sum(taken in line for line in (folder / "one.log").read_text().splitlines()) > 2

            eventually(is_given_back, SOON_S)
            let_go(folder, 6)
            short = single.add({"number": 6})
            assert is_over(single, short) is TrialStatus.COMPLETED
            assert gang.status is TrialStatus.STAGED
        finally:
            os.kill(pair.second, signal.SIGCONT)
        single.close()
        runs_at_last(double, gang)
        let_go(folder, 5)
        assert is_over(double, gang) is TrialStatus.COMPLETED
        assert not any(attempt.reports for attempt in gang.attempts[:-1]), "it has begun once"


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
