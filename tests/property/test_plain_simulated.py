"""A driver that takes whole entries of reports in at once comes to the same as one that takes in each report by itself."""

from __future__ import annotations

import pytest
from simulation import Simulation
from worlds import SCHEDULERS, World

from mqtune.driver.plain import PlainReports
from mqtune.journal.base import Entry

#: What reports may bring besides that their trials go on: decisions, checkpoints, late reports, and answers.
WORLDS = {
    "plain": World(seed=11, trials=10, slots=3, checkpoints=False),
    "checkpoints": World(seed=12, trials=10, slots=3),
    "late reports": World(seed=13, trials=10, slots=4, start_s=0.3, report_s=0.3, decision_s=3.0, stop_s=0.3),
    "deaths and failures": World(seed=14, trials=8, slots=4, life_s=40.0, failing=0.3, max_failures=2),
    "odd reports": World(seed=15, trials=10, slots=3, odd=0.2, checkpoints=False),
    "lockstep": World(seed=16, trials=6, slots=3, report_s=0.3, lockstep=True),
}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Entry | None]:
    """Have every entry taken in by itself, once this is filled with something; it gets those that were."""
    found: list[Entry | None] = []
    take = PlainReports.take

    def by_itself(self: PlainReports, entries: object, awaited: object, *, is_plain: bool = True) -> Entry | None:
        entry = take(self, entries, awaited, is_plain=is_plain and not found)  # type: ignore[arg-type]
        if found:
            found.append(entry)
        return entry

    monkeypatch.setattr(PlainReports, "take", by_itself)
    return found


def state_of(simulation: Simulation) -> tuple[str, object, object]:
    """What a new driver makes of a simulation's journal, and where it stands; as text, in which NaN is equal to NaN."""
    driver = simulation.driver()
    driver.close()
    return repr(driver.experiment.state()), driver.cursor, driver.experiment.best and driver.experiment.best.id


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_journal_and_what_a_replay_makes_of_it_are_the_same(
    name: str, world: World, taken: list[Entry | None]
) -> None:
    at_once = world.simulation(SCHEDULERS[name], keep_journal=True).run()
    replayed = state_of(at_once)

    taken.append(None)
    one_by_one = world.simulation(SCHEDULERS[name], keep_journal=True).run()

    assert one_by_one.copy.entries == at_once.copy.entries
    assert state_of(one_by_one) == replayed
    assert len(taken) > one_by_one.experiment.reports > 0
