"""A driver that is killed anywhere is followed by one that decides as it would have."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import Killed, Simulation
from worlds import SCHEDULERS, World, worlds

from mqtune.core.events import CheckpointsDropped, DriverStarted, Event, Reports

EVERY = pytest.mark.parametrize("name", SCHEDULERS)

#: Of each property, for each scheduler; a thorough profile looks at more.
EXAMPLES = settings.default.max_examples // 8
#: How many calls a driver makes before it is killed: enough that it decides on trials and begins others.
LIFE = 30
#: Enough trials that each scheduler stops, pauses, resumes and releases some.
WORLD = World(seed=3, trials=7, slots=3, decision_s=0.5, report_s=0.3, failing=0.3, max_failures=1)


def what_happened(events: list[Event]) -> Iterator[Any]:
    """What a journal says, without where the driver stood when it wrote, and which drivers there were.

    Nor when checkpoints were dropped: a driver that goes on drops at once what the one before would have one by one.
    """
    for event in events:
        if isinstance(event, DriverStarted | CheckpointsDropped):
            continue
        if isinstance(event, Reports):
            yield repr(event)
            continue
        yield (
            type(event).__name__,
            {field.name: getattr(event, field.name) for field in dataclasses.fields(event) if field.name != "cursor"},
        )


def killed_at(world: World, name: str, *calls: int) -> Simulation | None:
    """Run with a driver that is killed at its n-th call, and others after it; None when the first one ends before."""
    simulation = world.simulation(SCHEDULERS[name], keep_journal=True)
    for index, call in enumerate(calls):
        try:
            simulation.run(kill_at=call)
        except Killed:
            continue
        return None if index == 0 else simulation
    return simulation.run()


@EVERY
def test_drivers_that_start_from_any_prefix_go_on_to_the_same_end(name: str) -> None:
    first = killed_at(WORLD, name)
    assert first is not None
    uncut = list(what_happened(first.events()))
    for call in range(1, LIFE + 1):
        # The next ones die after as many calls, so that over all runs each call is somebody's last.
        simulation = killed_at(WORLD, name, call, *repeat(LIFE, first.journal.calls))
        assert simulation is not None
        assert list(what_happened(simulation.events())) == uncut, f"killed at call {call}, and each {LIFE} calls later"


@EVERY
@settings(max_examples=EXAMPLES)
@given(world=worlds(life_s=0.0), calls=st.lists(st.integers(1, 60), min_size=1, max_size=4))
def test_several_drivers_that_are_killed_come_to_the_same_end(name: str, world: World, calls: list[int]) -> None:
    uncut, cut = killed_at(world, name), killed_at(world, name, *calls)
    assert uncut is not None
    if cut is not None:
        assert list(what_happened(cut.events())) == list(what_happened(uncut.events()))


@EVERY
@settings(max_examples=EXAMPLES)
@given(world=worlds(life_s=30.0), calls=st.lists(st.integers(1, 60), min_size=1, max_size=4))
def test_no_trial_is_forgotten_when_drivers_and_workers_die(name: str, world: World, calls: list[int]) -> None:
    simulation = killed_at(world, name, *calls)
    if simulation is not None:
        assert all(trial.status.is_terminal for trial in simulation.experiment.trials.values())
        assert len(simulation.experiment.trials) == world.trials
