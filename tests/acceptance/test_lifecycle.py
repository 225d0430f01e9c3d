"""Trials on two real workers: pause on one, go on on the other; and what schedulers, kills and farewells make of them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trainables_saving as saving
from pair import OPTIONS, SPACE, Tune, both_run, counting, finished, paused, rows, tuners, two_workers
from running import QUICK, running_worker

import mqtune
from mqtune.core.trial import CONTINUE, Action, AttemptEnd, Decision, TrialStatus
from mqtune.testing.backends.world import Rule, drive


@pytest.fixture(scope="module")
def pair(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with two_workers(broker, tmp_path_factory.mktemp("pair")):
        yield broker


@pytest.fixture
def tune(pair: str, tmp_path: Path) -> Iterator[Tune]:
    with tuners(pair, tmp_path / "store") as build:
        yield build


def iterations(tuner: mqtune.Tuner, trial: mqtune.core.trial.Trial) -> list[list[int]]:
    return [[row["step"] for row in rows(tuner, trial, attempt.number)] for attempt in trial.attempts]


@pytest.mark.parametrize(
    "trainable",
    [saving.Counts, saving.CountsInDict, saving.in_files, saving.in_dicts, saving.in_folders],
    ids=lambda trainable: trainable.__name__,
)
def test_a_trial_that_is_paused_on_one_worker_goes_on_on_the_other(tune: Tune, trainable):
    tuner = tune(trainable, counting(lr=2), counting())
    trial, other = both_run(tuner)
    paused(tuner, trial)
    follower = tuner.add(counting())
    drive(tuner, lambda: follower.status is TrialStatus.RUNNING)
    tuner.trial(other).stop()
    drive(tuner, lambda: other.status.is_terminal)

    tuner.trial(trial).resume()
    drive(tuner, lambda: trial.attempt.reports >= 2)

    first, second = trial.attempts
    assert (first.worker, second.worker) == (follower.attempt.worker, other.attempt.worker)
    before, after = rows(tuner, trial, 1), rows(tuner, trial, 2)
    done = before[-1]["step"]
    assert [row["step"] for row in after[:2]] == [done + 1, done + 2]
    assert [row["training_iteration"] for row in after[:2]] == [done + 1, done + 2]
    assert after[0]["loss"] == -2.0 * (done + 1)
    ran_s = first.ended_at - first.started_at
    assert before[-1]["time_total_s"] < after[0]["time_total_s"] < ran_s + after[0]["time_this_iter_s"]
    if "iterations_since_restore" in after[0]:
        assert after[0]["iterations_since_restore"] == 1
    elif "before_s" in after[0]:
        assert 0.01 * done <= after[0]["before_s"] <= ran_s


def stop_or_pause(action: Action) -> Rule:
    """A scheduler that decides so at each trial's third report."""
    return Rule(lambda trial, report: Decision(action, "at the third") if trial.reports == 3 else CONTINUE)


def written(tmp_path: Path) -> list[int]:
    return [int(line) for line in (tmp_path / "written").read_text().split()]


@pytest.mark.parametrize("saves", [False, True], ids=["reports alone", "with checkpoints"])
@pytest.mark.parametrize("action", [Action.STOP, Action.PAUSE, Action.COMPLETE])
def test_in_lockstep_no_line_runs_behind_the_report_that_ends_the_attempt(tune: Tune, tmp_path: Path, action, saves):
    config = {"written": str(tmp_path / "written"), "saves": saves}
    tuner = tune(
        saving.writes_on, {}, space=config, scheduler=stop_or_pause(action), process=mqtune.Process(sync="lockstep")
    )
    drive(tuner, lambda: tuner.get_trials() and tuner.trial("0001").record.attempt.end is not None)

    (trial,) = tuner.get_trials()
    assert written(tmp_path) == [1, 2]
    assert (trial.reports, trial.late_reports) == (3, 0)
    if action is Action.PAUSE:
        tuner.trial(trial).resume()
        drive(tuner, lambda: trial.attempt.reports >= 2)
        behind = 4 if saves else 1
        assert [row["step"] for row in rows(tuner, trial, 2)[:2]] == [behind, behind + 1]


def test_in_a_stream_a_trial_runs_on_until_it_hears_of_the_decision(tune: Tune, tmp_path: Path):
    config = {"written": str(tmp_path / "written"), "saves": False, "deaf": 30}
    tuner = tune(saving.writes_on, {}, space=config, scheduler=stop_or_pause(Action.STOP))

    (trial,) = finished(tuner)

    assert trial.status is TrialStatus.EARLY_STOPPED
    assert trial.reports == 3
    assert trial.late_reports >= 27
    assert len(written(tmp_path)) >= 30


def test_lockstep_goes_on_while_the_scheduler_lets_it(tune: Tune):
    tuner = tune(
        saving.in_dicts, counting(200, step_s=0), counting(200, step_s=0), process=mqtune.Process(sync="lockstep")
    )

    trials = finished(tuner)

    assert [trial.status for trial in trials] == [TrialStatus.COMPLETED] * 2
    assert [trial.reports for trial in trials] == [200, 200]


def test_population_based_training_copies_real_checkpoints(tune: Tune):
    """Two trials at once: the worse goes on from the better's files, with a config near its."""
    pbt = mqtune.PBT(perturbation_interval=3, hyperparam_mutations={"lr": mqtune.uniform(0, 10)}, quantile_fraction=0.5)
    tuner = tune(
        saving.CountsOften,
        *[counting(lr=lr) for lr in (1.0, 5.0)],
        scheduler=pbt,
        process=mqtune.Process(sync="lockstep"),
    )

    def copying() -> list[tuple[mqtune.core.trial.Trial, mqtune.core.trial.Attempt]]:
        return [(t, a) for t in tuner.get_trials() for a in t.attempts if a.source and a.reports]

    drive(tuner, lambda: len(copying()) >= 2)
    copies = copying()
    reported = {report.checkpoint: report.metrics for report in tuner.results().reports() if report.checkpoint}
    for trial, attempt in copies:
        assert attempt.source != trial.id
        begin, first = reported[attempt.checkpoint], rows(tuner, trial, attempt.number)[0]
        assert first["loss"] == pytest.approx(begin["loss"] - attempt.config["lr"])
        assert first["training_iteration"] == begin["training_iteration"] + 1
        assert first["time_total_s"] > begin["time_total_s"]


def test_promotion_asha_resumes_the_best_from_their_rungs(tune: Tune):
    asha = mqtune.PromotionASHA(max_t=9, reduction_factor=3)
    configs = [counting(9, lr=lr, step_s=0) for lr in range(1, 10)]
    tuner = tune(saving.CountsInDict, *configs, scheduler=asha, process=mqtune.Process(sync="lockstep"))

    trials = finished(tuner)

    assert {trial.status for trial in trials} <= {TrialStatus.COMPLETED, TrialStatus.EARLY_STOPPED}
    completed = [trial for trial in trials if trial.status is TrialStatus.COMPLETED]
    assert completed
    for trial in trials:
        seen = [step for attempt in iterations(tuner, trial) for step in attempt]
        assert seen == list(range(1, len(seen) + 1))
    assert [trial.last_metrics["training_iteration"] for trial in completed] == [9] * len(completed)
    assert {attempt.end for trial in completed for attempt in trial.attempts[:-1]} == {AttemptEnd.PAUSED}


def test_hyperband_runs_its_brackets_and_leaves_nothing_paused(tune: Tune):
    tuner = tune(
        saving.CountsInDict,
        *[counting(9, lr=lr, step_s=0) for lr in range(1, 10)],
        max_trials=17,
        space={**SPACE, "steps": 9, "step_s": 0.0},
        scheduler=mqtune.HyperBand(max_t=9, reduction_factor=3),
        process=mqtune.Process(sync="lockstep"),
    )
    trials = finished(tuner)

    assert len(trials) == 17
    assert {trial.status for trial in trials} == {TrialStatus.COMPLETED, TrialStatus.EARLY_STOPPED}
    assert trials[8].status is TrialStatus.COMPLETED, "the best of the first bracket"
    reached = [trial.last_metrics["training_iteration"] for trial in trials]
    assert sorted(reached[:9]) == [1] * 6 + [3] * 2 + [9]
    for trial in trials:
        seen = [step for attempt in iterations(tuner, trial) for step in attempt]
        assert seen == list(range(1, len(seen) + 1))


@pytest.mark.parametrize("trainable", [saving.CountsOften, saving.in_dicts], ids=["files", "dicts"])
def test_a_trial_that_is_killed_goes_on_elsewhere_from_its_checkpoint(tune: Tune, trainable):
    tuner = tune(trainable, counting(), counting(), failures=mqtune.Failures(max_failures=1))
    trial, other = both_run(tuner)
    follower = tuner.add(counting())

    os.kill(trial.last_metrics["pid"], signal.SIGKILL)
    drive(tuner, lambda: follower.status is TrialStatus.RUNNING)
    tuner.trial(other).stop()
    drive(tuner, lambda: trial.attempt.number == 2 and trial.attempt.reports)

    first, second = trial.attempts
    assert (first.end, first.signal, trial.failures) == (AttemptEnd.FAILED, signal.SIGKILL, 1)
    assert "SIGKILL" in first.error
    assert second.worker != first.worker
    before, after = rows(tuner, trial, 1), rows(tuner, trial, 2)
    assert after[0]["step"] == before[-1]["step"] + 1
    assert after[0]["loss"] == -1.0 * after[0]["step"]


def test_a_worker_that_goes_hands_its_trial_on_with_the_state_that_it_had(tune: Tune, pair: str, tmp_path: Path):
    tuner = tune(saving.Counts, counting(), counting())
    both_run(tuner)
    guest = tuner.add(counting())
    with running_worker(pair, tmp_path / "w.log", *OPTIONS, name="leaving") as leaving:
        drive(tuner, lambda: guest.attempt.reports >= 3)
        tuner.trial("0001").stop()
        drive(tuner, lambda: tuner.trial("0001").record.status.is_terminal)

        leaving.send_signal(signal.SIGTERM)
        drive(tuner, lambda: guest.attempt.number == 2 and guest.attempt.reports)

    first, second = guest.attempts
    assert first.worker.startswith("leaving@")
    assert (first.end, guest.failures) == (AttemptEnd.HANDED_BACK, 0)
    assert second.worker == tuner.trial("0001").record.attempt.worker
    before, after = rows(tuner, guest, 1), rows(tuner, guest, 2)
    assert after[0]["training_iteration"] == before[-1]["training_iteration"] + 1


def test_a_worker_that_is_killed_loses_its_trial_which_goes_on_from_its_checkpoint(
    tune: Tune, pair: str, tmp_path: Path
):
    tuner = tune(saving.CountsOften, counting(), counting())
    both_run(tuner)
    guest = tuner.add(counting())
    with running_worker(pair, tmp_path / "w.log", *OPTIONS, name="dying", program=QUICK) as dying:
        drive(tuner, lambda: guest.attempt.reports >= 3)
        tuner.trial("0001").stop()
        dying.kill()
        dying.wait()
        drive(tuner, lambda: guest.attempt.number == 2 and guest.attempt.reports, "the lease must run out")

    first, second = guest.attempts
    assert (first.end, guest.failures) == (AttemptEnd.LOST, 0)
    assert second.worker != first.worker
    saved = [report for report in tuner.results().reports(guest.id) if report.checkpoint == second.checkpoint]
    assert rows(tuner, guest, 2)[0]["training_iteration"] == saved[0].metrics["training_iteration"] + 1


def test_a_driver_that_goes_leaves_its_trials_running_and_the_next_one_pauses_and_resumes_them(
    tune: Tune, tmp_path: Path
):
    first = tune(saving.in_files, counting(), counting())
    trial, _ = both_run(first)
    first.close()
    began = time.monotonic()

    second = tune(saving.in_files, counting(), counting(), name=first.name)
    with contextlib.closing(second):
        found = second.trial(trial.id).record
        assert found.reports >= trial.reports
        paused(second, found)
        second.trial(found).resume()
        drive(second, lambda: found.attempt.reports >= 2)
        assert [attempt.end for attempt in found.attempts] == [AttemptEnd.PAUSED, None]
        assert rows(second, found, 2)[0]["step"] == rows(second, found, 1)[-1]["step"] + 1
        second.stop_all()
        finished(second)
    assert time.monotonic() - began < 20
