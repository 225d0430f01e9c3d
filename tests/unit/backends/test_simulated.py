from __future__ import annotations

from typing import Any

import pytest
from attempts import own_metrics
from simulation import NAME, Simulation, curve, simulate

from mqtune import GridSearcher, RunOptions, Simulated, Space, grid_search
from mqtune.backends import STARTS_AT
from mqtune.core.errors import ConfigurationError, MqtuneError
from mqtune.core.events import AttemptEnded, AttemptStarted, Reports
from mqtune.core.resources import Resources
from mqtune.core.trial import CONTINUE, Action, AttemptEnd, Decision, Report, Trial, TrialId, TrialStatus
from mqtune.schedulers import Scheduler


class Stops(Scheduler):
    """Stops the first attempt of the first trial at one of its reports."""

    def __init__(self, sequence: int) -> None:
        self.report = ("0001", 1, sequence)

    def on_report(self, trial: Trial, report: Report) -> Decision:
        return Decision(Action.STOP, "scripted") if report[:3] == self.report else CONTINUE

    def describe(self) -> dict[str, Any]:
        return {"scheduler": "stops"}


def times_of(simulation: Simulation, trial: str) -> list[float]:
    """When a trial has reported, in virtual seconds."""
    reports = (report for event in events_of(simulation, Reports) for report in event)
    return [report.timestamp - STARTS_AT for report in reports if report.trial == trial]


def events_of(simulation: Simulation, kind: type) -> list[Any]:
    return [event for event in simulation.events() if isinstance(event, kind)]


def at(event: Any) -> float:
    return event.at - STARTS_AT


def test_reports_come_when_their_seconds_have_passed() -> None:
    simulation = simulate(lambda config: [(2.0, {"loss": 3}), (0.5, {"loss": 2}), (0, {"loss": 1})], trials=1)
    assert times_of(simulation, "0001") == [2.0, 2.5, 2.5]
    assert simulation.seconds == 2.5
    assert simulation.experiment.trials[TrialId("0001")].status is TrialStatus.COMPLETED


def test_reports_of_one_instant_stand_in_one_entry() -> None:
    simulation = simulate(curve(2), trials=3, slots=3)
    assert [len(list(event)) for event in events_of(simulation, Reports)] == [3, 3]


def test_a_start_takes_its_time() -> None:
    simulation = simulate(curve(2), trials=1, start_delay_s=10.0)
    assert [at(event) for event in events_of(simulation, AttemptStarted)] == [0]
    assert times_of(simulation, "0001") == [11, 12]


def test_until_it_hears_the_decision_a_trial_goes_on_and_its_reports_are_late() -> None:
    simulation = simulate(curve(20), trials=1, decision_delay_s=2.5, stop_delay_s=4.0, scheduler=lambda: Stops(3))
    trial = simulation.experiment.trials[TrialId("0001")]
    assert (trial.reports, trial.late_reports) == (3, 2)
    assert trial.status is TrialStatus.EARLY_STOPPED
    assert [(at(event), event.end) for event in events_of(simulation, AttemptEnded)] == [(9.5, AttemptEnd.STOPPED)]


def test_a_trial_that_returns_before_it_hears_has_completed() -> None:
    simulation = simulate(curve(4), trials=1, decision_delay_s=5.0, scheduler=lambda: Stops(3))
    assert [(at(event), event.end) for event in events_of(simulation, AttemptEnded)] == [(4, AttemptEnd.COMPLETED)]


def test_a_slot_is_free_when_the_process_is_gone() -> None:
    simulation = simulate(curve(3), trials=2, slots=1, stop_delay_s=7.0, scheduler=lambda: Stops(1))
    assert [at(event) for event in events_of(simulation, AttemptStarted)] == [0, 8]


def test_in_lockstep_a_trial_waits_for_the_decision() -> None:
    simulation = simulate(curve(9), trials=1, lockstep=True, decision_delay_s=2.0, scheduler=lambda: Stops(3))
    assert times_of(simulation, "0001") == [1, 4, 7]
    assert simulation.experiment.trials[TrialId("0001")].late_reports == 0
    assert simulation.seconds == 9


def raising() -> Any:
    yield 1.0, {"loss": 1.0}
    raise ZeroDivisionError("in the model")


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([(1.0, {"loss": 1.0}), (2.5, ValueError("no more memory"))], "ValueError: no more memory"),
        ([(1.0, {"loss": 1.0}), RuntimeError("bare")], "RuntimeError: bare"),
        ([(1.0, {"loss": 1.0}), 3], "an item is 3; give (seconds, metrics)"),
        ([(1.0, {"loss": 1.0}), (-1, {"loss": 1.0})], "an item's time is -1"),
        ([(1.0, {"loss": 1.0}), ("1", {"loss": 1.0})], "an item's time is '1'"),
        ([(1.0, {"loss": 1.0}), (1.0, {"loss": object()})], "the metric 'loss' can't be sent"),
        ([(1.0, {"loss": 1.0}), (1.0, 7)], "metrics must be a dict"),
        (5, "give a list or a generator"),
        (raising, "Traceback"),
    ],
)
def test_what_a_function_gives_wrongly_fails_its_trial_with_the_reason(items: Any, text: str) -> None:
    simulation = simulate(lambda config: items() if callable(items) else items, trials=1)
    trial = simulation.experiment.trials[TrialId("0001")]
    assert trial.status is TrialStatus.FAILED
    assert text in trial.attempt.error
    assert trial.reports == (0 if items == 5 else 1)
    assert simulation.seconds == 3.5 or "memory" not in text


def test_a_dead_worker_loses_its_attempt_which_goes_on_elsewhere() -> None:
    lives = iter([2.5])
    simulation = simulate(curve(4), trials=1, slots=2, life_s=lambda rng: next(lives, 1e6), away_s=1000.0)
    trial = simulation.experiment.trials[TrialId("0001")]
    assert [attempt.end for attempt in trial.attempts] == [AttemptEnd.LOST, AttemptEnd.COMPLETED]
    assert [attempt.worker for attempt in trial.attempts] == ["simulated-1", "simulated-2"]
    assert trial.reports == 4
    # The lease runs 15 s from the death on, and the driver looks every 2 s.
    assert 17.5 <= at(events_of(simulation, AttemptStarted)[1]) <= 20


def test_a_simulation_that_stands_still_says_so() -> None:
    simulation = Simulation(Simulated(curve(3), offer=Resources(cpus=1)), resources=Resources(cpus=2))
    driver = simulation.driver()
    simulation.backend.fleet.most_idle_waits = 100
    steps = (driver.step(10.0) for _ in range(200))
    with pytest.raises(MqtuneError, match=r"can't continue.* 0 attempts wait, and 4 workers are alive"):
        list(steps)


def test_a_simulated_fleet_works_for_one_experiment() -> None:
    simulated = Simulated(curve(4))
    simulated.open(NAME)
    simulated.open(NAME)
    with pytest.raises(ConfigurationError, match="make another one for 'other'"):
        simulated.open("other")


def test_nobody_goes_on_with_a_journal_that_was_not_kept() -> None:
    simulation = simulate(curve(2))
    with pytest.raises(ConfigurationError, match="keep_journal=True to continue"):
        simulation.run()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"slots": 0}, "slots=0"),
        ({"seed": "x"}, "seed='x'"),
        ({"start_delay_s": -1}, "start_delay_s is -1"),
        ({"report_delay_s": float("inf")}, "report_delay_s is inf"),
        ({"decision_delay_s": "1"}, "decision_delay_s is '1'"),
        ({"offer": "gpu"}, "offer='gpu'"),
        ({"reports": 3}, "reports=3 is neither a function"),
        ({"reports": "abc"}, "the table abc can't be read"),
        ({"reports": []}, "the table has no rows"),
        ({"reports": [{"loss": 1}]}, "seconds in row 0 of the table is None"),
        ({"reports": [3]}, "row 0 of the table is 3"),
        ({"reports": b"lr"}, "is neither a function"),
        ({"reports": {"seconds": [1], "loss": [1, 2]}}, "not lists of equal length"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Simulated(**{"reports": curve(1), **arguments})
    assert text in str(caught.value)


def test_an_attempt_that_is_published_twice_is_claimed_once() -> None:
    simulation = Simulation(Simulated(curve(2)), max_trials=1)
    driver = simulation.driver()
    driver.step(0.5)
    simulation.backend.publish(TrialId("0001"), 1, {})
    while not driver.is_finished:
        driver.step(10.0)
    assert len(events_of(simulation, AttemptStarted)) == 1


def test_a_drawn_delay_that_is_no_time_is_refused_when_it_is_drawn() -> None:
    with pytest.raises(ConfigurationError, match="stop_delay_s is -2"):
        simulate(curve(3), trials=1, stop_delay_s=lambda rng: -2, scheduler=lambda: Stops(1))


ROWS = [
    {"lr": 0.1, "layers": [4, 4], "seconds": 1.0, "loss": 0.9},
    {"lr": 0.2, "layers": [4, 4], "seconds": 5.0, "loss": 0.8},
    {"lr": 0.1, "layers": [4, 4], "seconds": 2, "loss": 0.5},
]
GRID = Space({"lr": grid_search([0.1, 0.2]), "layers": [4, 4]})


@pytest.mark.parametrize("table", [ROWS, {name: [row[name] for row in ROWS] for name in ROWS[0]}])
def test_a_table_says_what_trials_report(table: Any) -> None:
    simulation = simulate(table, trials=2, searcher=lambda: GridSearcher(GRID, seed=0), checkpoints=False)
    found = [
        (r.trial, r.timestamp - STARTS_AT, own_metrics(r.metrics)) for e in events_of(simulation, Reports) for r in e
    ]
    assert found == [("0001", 1, {"loss": 0.9}), ("0001", 3, {"loss": 0.5}), ("0002", 5, {"loss": 0.8})]


@pytest.mark.parametrize(
    ("name", "text"),
    [("lr", "the table has no row for {'lr': 0."), ("rate", "row 0 of the table lacks 'lr', which the config has")],
)
def test_a_config_that_the_table_does_not_have_fails_its_trial(name: str, text: str) -> None:
    trial = simulate([{name: 2.0, "seconds": 1, "loss": 1}], trials=1).experiment.trials[TrialId("0001")]
    assert text in trial.attempt.error


@pytest.mark.parametrize(
    ("asked", "status"),
    [(("set", {"journal_mb": 1}), TrialStatus.COMPLETED), (("end", {"now": True}), TrialStatus.EARLY_STOPPED)],
)
def test_trials_with_reports_wait_for_a_full_journal(asked: tuple[str, dict[str, Any]], status: TrialStatus) -> None:
    simulation = Simulation(Simulated(curve(30)), run_options=RunOptions(journal_mb=0.001))
    driver = simulation.driver()
    while "journal is full" not in driver.waiting_for:
        driver.step(1.0)
    for _ in range(50):
        driver.step(1.0)
    assert 4 <= simulation.experiment.reports < 4 * 30
    assert simulation.experiment.counts[TrialStatus.RUNNING] == 4

    driver.steer(asked[0], "", asked[1])
    while not driver.is_finished:
        driver.step(10.0)

    assert simulation.experiment.counts[status] == 4
    assert status is TrialStatus.EARLY_STOPPED or simulation.experiment.reports == 4 * 30, "none is lost"
