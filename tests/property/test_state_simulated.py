"""What a driver knows at its end is what its journal says, and may be kept beside that."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import Killed, Simulation
from worlds import SCHEDULERS, World, worlds

from mqtune.core.codec import decode_value, encode_value
from mqtune.core.events import events_in_order
from mqtune.core.experiment import Experiment
from mqtune.core.trial import Report

EVERY = pytest.mark.parametrize("name", SCHEDULERS)
#: Of each scheduler; a thorough profile looks at more.
EXAMPLES = settings.default.max_examples // 8


def empty(simulation: Simulation) -> Experiment:
    before = simulation.experiment
    return Experiment(before.name, metric="loss", mode="min", max_failures=before.max_failures)


def of_journal(simulation: Simulation) -> Experiment:
    experiment = empty(simulation)
    for event in events_in_order([(entry.id, entry.data) for entry in simulation.copy.entries]):
        experiment.apply_report(event) if isinstance(event, Report) else experiment.apply(event)
    return experiment


@EVERY
@settings(max_examples=EXAMPLES)
@given(world=worlds(), calls=st.lists(st.integers(1, 60), max_size=2))
def test_a_drivers_state_is_that_of_its_journal_and_comes_back_from_it(
    name: str, world: World, calls: list[int]
) -> None:
    simulation = world.simulation(SCHEDULERS[name], keep_journal=True)
    for call in (*calls, 0):
        try:
            simulation.run(kill_at=call)
        except Killed:
            continue
        break

    state = encode_value(simulation.experiment.state())

    assert encode_value(of_journal(simulation).state()) == state
    restored = empty(simulation)
    restored.restore(decode_value(state))
    assert encode_value(restored.state()) == state
    assert vars(restored).keys() == vars(simulation.experiment).keys()
