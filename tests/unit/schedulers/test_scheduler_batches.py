"""Trials that begin in batches."""

from __future__ import annotations

from simulation import Simulation, curve

import mqtune
from mqtune import Simulated
from mqtune.core.events import AttemptEnded, TrialStaged
from mqtune.core.trial import Attempt, Config, Trial, TrialId, TrialStatus
from mqtune.driver import Limits
from mqtune.schedulers import Start, Wait


def test_a_batch_begins_once_all_of_the_one_before_have_ended() -> None:
    def reports(config: Config) -> object:
        # Each takes another time.
        return curve(1, seconds=1 + config["lr"])(config)

    simulation = Simulation(
        Simulated(reports, slots=8),  # type: ignore[arg-type]
        scheduler=lambda: mqtune.FIFO(batch=3),
        limits=Limits(max_trials=8),
    ).run()

    order = [event for event in simulation.events() if isinstance(event, TrialStaged | AttemptEnded)]
    kinds = "".join("b" if isinstance(event, TrialStaged) else "e" for event in order)
    assert kinds == "bbbeee" * 2 + "bbee"


def test_a_trial_that_is_run_again_is_still_the_batchs() -> None:
    failed: list[float] = []

    def reports(config: Config) -> list[object]:
        if len(failed) < 2:
            failed.append(config["lr"])
            return [(1.0, RuntimeError("bad luck"))]
        return [(1.0, {"loss": 1.0})]

    simulation = Simulation(
        Simulated(reports, slots=4),  # type: ignore[arg-type]
        scheduler=lambda: mqtune.FIFO(batch=2),
        limits=Limits(max_trials=4),
        max_failures=1,
    ).run()

    staged = [(event.trial, event.attempt) for event in simulation.events() if isinstance(event, TrialStaged)]
    assert sorted(staged[:4]) == [("0001", 1), ("0001", 2), ("0002", 1), ("0002", 2)]
    assert staged[4:] == [("0003", 1), ("0004", 1)]


def test_a_trial_that_is_added_while_a_batch_runs_does_not_open_the_next_one() -> None:
    scheduler = mqtune.FIFO(batch=3)
    trials = [Trial(TrialId(f"{each:04d}"), {}, TrialStatus.STAGED, [Attempt(1, 0.0, {})]) for each in range(5)]
    for trial in trials[:3]:
        assert isinstance(scheduler.choose(can_start=True), Start)
        scheduler.on_stage(trial)
    scheduler.on_stage(trials[3])

    for trial in trials[:4]:
        assert isinstance(scheduler.choose(can_start=True), Wait)
        scheduler.on_trial_end(trial)
    assert isinstance(scheduler.choose(can_start=True), Start)
    scheduler.on_stage(trials[4])
    assert isinstance(scheduler.choose(can_start=True), Start)
