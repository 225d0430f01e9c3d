"""A driver that goes on from report to report in virtual time decides as one that makes a whole round for each."""

from __future__ import annotations

import pytest
from simulation import FOR_EVER_S, Simulation
from worlds import SCHEDULERS, World

from mqtune.driver.pace import Pace

#: What differs in what a driver may come across between two reports.
WORLDS = {
    "plain": World(seed=1, trials=12, slots=3),
    "no checkpoints": World(seed=2, trials=12, slots=3, checkpoints=False),
    "delays": World(seed=3, trials=10, slots=4, start_s=0.3, report_s=0.3, decision_s=3.0, stop_s=0.3),
    "deaths and failures": World(seed=4, trials=10, slots=4, life_s=40.0, failing=0.3, max_failures=2),
    "odd reports": World(seed=5, trials=10, slots=3, odd=0.2, checkpoints=False),
    "lockstep": World(seed=6, trials=8, slots=3, report_s=0.3, lockstep=True),
}


def run(simulation: Simulation) -> int:
    """Run a simulation to its end, and return in how many steps."""
    driver = simulation.driver()
    steps = 0
    while not driver.is_finished:
        driver.step(FOR_EVER_S)
        steps += 1
    driver.end("finished", "")
    return steps


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_journal_is_the_same_byte_for_byte(name: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    going_on = world.simulation(SCHEDULERS[name])
    steps = run(going_on)
    monkeypatch.setattr(Pace, "is_steady", False)
    by_rounds = world.simulation(SCHEDULERS[name])
    assert run(by_rounds) >= steps
    assert going_on.copy.entries == by_rounds.copy.entries
    assert going_on.seconds == by_rounds.seconds


def test_a_round_takes_many_reports_in_that_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(seed=7, trials=20, slots=4, length=50, checkpoints=False)
    simulation = world.simulation(SCHEDULERS["fifo"])
    steps = run(simulation)
    assert simulation.experiment.reports == 1_000
    monkeypatch.setattr(Pace, "is_steady", False)
    # Only while there is no room for another trial, and until a timer is due, which is every 5 s of virtual time, or some 20 reports.
    assert run(world.simulation(SCHEDULERS["fifo"])) > 1.5 * steps
