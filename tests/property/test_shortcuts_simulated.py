"""A driver that takes whole entries of reports in at once, and goes on from one to the next, comes to the same as one that does neither."""

from __future__ import annotations

import pytest
from simulation import FOR_EVER_S, Simulation
from worlds import SCHEDULERS, World

from mqtune.driver import Pace, PlainReports
from mqtune.journal import Entry

#: What reports may bring besides that their trials go on, and a driver may come across between two of them.
WORLDS = {
    "plain": World(seed=11, trials=12, slots=3, checkpoints=False),
    "checkpoints": World(seed=12, trials=12, slots=3),
    "late reports": World(seed=13, trials=10, slots=4, start_s=0.3, report_s=0.3, decision_s=3.0, stop_s=0.3),
    "deaths and failures": World(seed=14, trials=10, slots=4, life_s=40.0, failing=0.3, max_failures=2),
    "odd reports": World(seed=15, trials=10, slots=3, odd=0.2, checkpoints=False),
    "lockstep": World(seed=16, trials=8, slots=3, report_s=0.3, lockstep=True),
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


def state_of(simulation: Simulation) -> tuple[str, object, object]:
    """What a new driver makes of a simulation's journal, and where it stands; as text, in which NaN is equal to NaN."""
    driver = simulation.driver()
    driver.close()
    return repr(driver.experiment.state()), driver.cursor, driver.experiment.best and driver.experiment.best.id


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
@pytest.mark.parametrize("name", ["fifo", "asha-2", "promotion", "hyperband", "median", "pbt"])
def test_the_journal_is_the_same_byte_for_byte_and_so_is_what_a_replay_makes_of_it(
    name: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = world.simulation(SCHEDULERS[name], keep_journal=True)
    steps = run(at_once)
    seconds, replayed = at_once.seconds, state_of(at_once)
    taken: list[Entry | None] = []
    take = PlainReports.take

    def by_itself(self: PlainReports, entries: object, awaited: object, *, is_plain: bool = True) -> Entry | None:
        taken.append(take(self, entries, awaited, is_plain=False))  # type: ignore[arg-type]
        return taken[-1]

    monkeypatch.setattr(PlainReports, "take", by_itself)
    monkeypatch.setattr(Pace, "is_steady", False)
    one_by_one = world.simulation(SCHEDULERS[name], keep_journal=True)

    assert run(one_by_one) >= steps
    assert one_by_one.copy.entries == at_once.copy.entries
    assert one_by_one.seconds == seconds
    assert state_of(one_by_one) == replayed
    assert len(taken) > one_by_one.experiment.reports > 0
