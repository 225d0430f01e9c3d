"""Schedulers that halve, and a Repeater, on real workers: their driver is killed, and the next one goes on as the first would have."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import halving_driver
import pytest
from faces import running
from pair import OPTIONS
from running import HERE, running_worker
from waiting import eventually

import mqtune
from mqtune.core.events import AttemptEnded, DecisionTaken, TrialClosed, TrialStaged
from mqtune.core.trial import Action, Report, TrialId, TrialStatus
from mqtune.journal.connection import connect
from mqtune.journal.redis import RedisJournal
from mqtune.results.experiments import empty_experiment
from mqtune.schedulers.base import Resume, Scheduler

#: After so many entries of each journal some trials have ended, and most have not.
SEEN = 20


@pytest.fixture(scope="module")
def workers(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The broker, with one worker of a slot for each experiment, that no other test's trials fit: none has to wait for its turn."""
    slots = len(halving_driver.SCHEDULERS)
    options = [*OPTIONS[:-4], "--slots", str(slots), "--cpus", str(5 * slots)]
    with running_worker(broker, tmp_path_factory.mktemp("halving") / "worker.log", *options, name="halving"):
        yield broker


def replayed(results: mqtune.Results, scheduler: Scheduler) -> int:
    """Check that one scheduler alone decides all that both drivers have decided; return how much that was."""
    scheduler.bind("loss", "min")
    events = results.events()
    experiment = empty_experiment(next(events))  # type: ignore[arg-type]
    wanted: dict[tuple[TrialId, int], str] = {}
    decided = 0
    for event in events:
        if isinstance(event, Report):
            trial = experiment.apply_report(event)
            decision = None if trial is None else scheduler.on_report(trial, event)
            if decision is not None and decision.action is not Action.CONTINUE:
                wanted[event.trial, event.attempt] = decision.action.value
            continue
        if isinstance(event, TrialStaged) and event.by == "scheduler":
            choices = scheduler.choose(can_start=True), scheduler.choose(can_start=False)
            assert event.trial in {choice.trial for choice in choices if isinstance(choice, Resume)}
        experiment.apply(event)
        match event:
            case TrialStaged():
                scheduler.on_stage(experiment.trials[event.trial])
            case DecisionTaken(by="scheduler"):
                assert wanted.pop((event.trial, event.attempt)) == event.action
                decided += 1
            case AttemptEnded() | TrialClosed():
                trial = experiment.trials[event.trial]
                if trial.status.is_terminal:
                    scheduler.on_trial_end(trial)
                elif trial.status is TrialStatus.PAUSED:
                    scheduler.on_trial_pause(trial)
    assert not wanted
    return decided


@pytest.mark.timeout(180)
def test_the_next_driver_decides_and_repeats_as_the_killed_one_would_have(workers: str, tmp_path: Path) -> None:
    name, log = f"halving-{os.getpid()}", tmp_path / "driver.log"
    command = [sys.executable, str(HERE / "halving_driver.py"), workers, name]
    with contextlib.closing(connect(workers, role="test")) as client, running(command, {}, log, cwd=tmp_path) as driver:
        journals = [RedisJournal(client, f"{name}-{kind}") for kind in halving_driver.SCHEDULERS]

        def under_way() -> bool:
            assert driver.poll() is None, log.read_text()
            return all(len(journal.read("0-0", count=1_000)) > SEEN for journal in journals)

        eventually(under_way, 60)
        driver.kill()
        driver.wait()

    heirs = halving_driver.tuners(workers, name)
    with contextlib.ExitStack() as opened:
        for tuner in heirs.values():
            opened.callback(tuner.close)
        begun = {kind: sum(trial.status.is_terminal for trial in heirs[kind].get_trials()) for kind in heirs}
        halving_driver.drive_all(heirs)

    assert max(begun.values()) < halving_driver.TRIALS
    for kind, tuner in heirs.items():
        results = tuner.results()
        assert len(results) == halving_driver.TRIALS
        assert {trial.status for trial in results} <= {TrialStatus.COMPLETED, TrialStatus.EARLY_STOPPED}
        for trial in results:
            steps = [report.metrics["step"] for report in results.reports(trial.id)]
            assert steps == list(range(1, len(steps) + 1)), (kind, trial)
        made = halving_driver.SCHEDULERS[kind]()
        assert replayed(results, made) >= (0 if kind == "repeater" else halving_driver.TRIALS)
    repeated = heirs["repeater"].results().repeated()
    assert [len(each.values) for each in repeated] == [3, 3, 3]
    assert [{trial.config["lr"] for trial in each.trials} for each in repeated] == [{1.0, 2.0, 3.0}] * 3
