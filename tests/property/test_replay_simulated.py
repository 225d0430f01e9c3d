"""A driver that is killed anywhere is followed by one that decides as it would have; and shortcuts change nothing."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from simulation import FOR_EVER_S, Killed, Simulation
from worlds import SCHEDULERS, Repeating, World, worlds

from mqtune.core.codec import decode_value, encode_value
from mqtune.core.entries import events_in_order
from mqtune.core.events import CheckpointsDropped, DriverStarted, Event, Reports
from mqtune.core.experiment import Experiment
from mqtune.core.trial import Report, TrialStatus
from mqtune.driver import LoopPace, PlainReports
from mqtune.journal import Entry
from mqtune.testing.schedulers import Watched

EVERY = pytest.mark.parametrize("name", SCHEDULERS)
#: One of each kind that decides in its own way.
SOME = pytest.mark.parametrize("name", ["fifo", "asha-2", "promotion", "hyperband", "median", "pbt"])

#: Of each property, for each scheduler; a thorough profile looks at more.
EXAMPLES = settings.default.max_examples // 8
#: How many calls a driver makes before it is killed: enough that it decides on trials and begins others.
LIFE = 8
#: After how many calls the first driver is killed: with as many examples as .ci/explore takes, after each number of
#: them.
FIRST_LIVES = sorted({1 + LIFE * run // min(LIFE, EXAMPLES) for run in range(min(LIFE, EXAMPLES))})
#: Enough trials that each scheduler stops, pauses, resumes and releases some.
WORLD = World(seed=3, trials=7, slots=3, decision_s=0.5, report_s=0.3, failing=0.3, max_failures=1)


def what_happened(events: list[Event]) -> Iterator[Any]:
    """What a journal says, without where the driver stood when it wrote, and which drivers there were.

    Nor when checkpoints were dropped: a driver that goes on drops at once what the one before would have one by one.
    """
    for event in events:
        if isinstance(event, DriverStarted | CheckpointsDropped):
            continue
        told: Any = event
        if not isinstance(event, Reports):
            names = [field.name for field in dataclasses.fields(event) if field.name != "cursor"]
            told = type(event).__name__, {name: getattr(event, name) for name in names}
        # What is left of a pause before a retry is rounded when a driver begins.
        yield re.sub(r"\b\d{9}\.\d+", lambda at: f"{float(at[0]):.3f}", repr(told))


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


@pytest.mark.hypothesis
@SOME
def test_drivers_that_start_from_any_prefix_go_on_to_the_same_end(name: str) -> None:
    world = WORLD.but(limited=name == "fifo")
    first = killed_at(world, name)
    assert first is not None
    uncut = list(what_happened(first.events()))
    for call in FIRST_LIVES:
        # The next ones die after LIFE calls each, so that over LIFE runs each call is somebody's last.
        simulation = killed_at(world, name, call, *repeat(LIFE, first.mortal.calls))
        assert simulation is not None
        assert list(what_happened(simulation.events())) == uncut, f"killed at call {call}, and each {LIFE} calls later"


@EVERY
@settings(max_examples=EXAMPLES)
@given(world=worlds(), calls=st.lists(st.integers(1, 60), min_size=1, max_size=4))
def test_drivers_that_are_killed_in_any_world_forget_no_trial_and_come_to_the_same_end(
    name: str, world: World, calls: list[int]
) -> None:
    uncut = killed_at(world, name)
    assert uncut is not None
    cut = killed_at(world, name, *calls) or uncut

    trials = cut.experiment.trials.values()
    assert len(trials) == world.trials
    assert all(trial.status.is_terminal for trial in trials)
    assert all(attempt.end is not None for trial in trials for attempt in trial.attempts)
    assert cut.experiment.live == 0
    assert cut.backend.queued() == set()
    if not world.life_s and not world.failing:
        # Attempts are neither lost nor fail, but without a number for the metric a trial can't have completed.
        assert not any(trial.status is TrialStatus.FAILED and trial.has_metric for trial in trials)
    # Which attempt a dying worker takes along hangs on when the next driver is there.
    if not world.life_s:
        assert list(what_happened(cut.events())) == list(what_happened(uncut.events()))
    check_state(cut)


@SOME
@settings(max_examples=EXAMPLES)
@given(world=worlds(), repeating=st.integers(0, 100))
def test_the_same_world_gives_the_same_journal_also_when_reports_are_repeated(
    name: str, world: World, repeating: int
) -> None:
    plain = world.simulation(lambda: Watched(SCHEDULERS[name]())).run()
    repeated = world.simulation(lambda: Repeating(SCHEDULERS[name](), seed=repeating)).run()

    assert repeated.copy.entries == plain.copy.entries


def check_state(simulation: Simulation) -> None:
    """Check that what a driver knows at its end is what its journal says, and may be kept beside that."""
    known = simulation.experiment
    state = encode_value(known.state())
    of_journal, restored = (
        Experiment(known.name, metric=simulation.metric, mode="min", max_failures=known.max_failures) for _ in range(2)
    )
    for event in events_in_order([(entry.id, entry.data) for entry in simulation.copy.entries]):
        of_journal.apply_report(event) if isinstance(event, Report) else of_journal.apply(event)
    assert encode_value(of_journal.state()) == state
    restored.restore(decode_value(state))
    assert encode_value(restored.state()) == state
    assert vars(restored).keys() == vars(known).keys()


#: What reports may bring besides that their trials go on, and a driver may come across between two of them.
SHORTCUT_WORLDS = {
    "plain": World(seed=11, trials=12, slots=3, checkpoints=False),
    "checkpoints": World(seed=12, trials=12, slots=3),
    "late reports": World(seed=13, trials=10, slots=4, start_s=0.3, report_s=0.3, decision_s=3.0, stop_s=0.3),
    "deaths and failures": World(seed=14, trials=10, slots=4, life_s=40.0, failing=0.3, max_failures=2),
    "odd reports": World(seed=15, trials=10, slots=3, odd=0.2, checkpoints=False),
    "lockstep": World(seed=16, trials=8, slots=3, report_s=0.3, lockstep=True),
}


def steps_of(simulation: Simulation) -> int:
    """Run a simulation to its end, and return in how many steps."""
    driver = simulation.driver()
    steps = 0
    while not driver.is_finished:
        driver.step(FOR_EVER_S)
        steps += 1
    driver.end("finished", "")
    return steps


def replay_of(simulation: Simulation) -> tuple[str, object, object]:
    """What a new driver makes of a simulation's journal, and where it stands; as text, in which NaN is equal to NaN."""
    driver = simulation.driver()
    driver.close()
    return repr(driver.experiment.state()), driver.cursor, driver.experiment.best and driver.experiment.best.id


@pytest.mark.parametrize("world", SHORTCUT_WORLDS.values(), ids=SHORTCUT_WORLDS)
@SOME
def test_reports_that_are_taken_in_at_once_give_the_journal_of_reports_one_by_one(
    name: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = world.simulation(SCHEDULERS[name], keep_journal=True)
    steps = steps_of(at_once)
    seconds, replayed = at_once.seconds, replay_of(at_once)
    taken: list[Entry | None] = []
    take = PlainReports.take

    def by_itself(self: PlainReports, entries: object, awaited: object, *, may_fold: bool = True) -> Entry | None:
        taken.append(take(self, entries, awaited, may_fold=False))  # type: ignore[arg-type]
        return taken[-1]

    monkeypatch.setattr(PlainReports, "take", by_itself)
    monkeypatch.setattr(LoopPace, "is_steady", False)
    one_by_one = world.simulation(SCHEDULERS[name], keep_journal=True)

    assert steps_of(one_by_one) >= steps
    assert one_by_one.copy.entries == at_once.copy.entries
    assert one_by_one.seconds == seconds
    assert replay_of(one_by_one) == replayed
    assert len(taken) > one_by_one.experiment.reports > 0
