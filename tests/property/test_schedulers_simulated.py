"""What holds for every scheduler, whatever happens in which order."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from simulation import Simulation
from worlds import MAX_T, SCHEDULERS, Repeating, World, worlds

from mqtune.core.trial import Action, AttemptEnd, Intent, TrialId, TrialStatus
from mqtune.schedulers.asha import PromotionASHA
from mqtune.schedulers.base import Scheduler
from mqtune.schedulers.hyperband import HyperBand
from mqtune.testing.schedulers import Watched

#: Of each property, for each scheduler; a thorough profile looks at more.
EXAMPLES = settings.default.max_examples // 4

EVERY = pytest.mark.parametrize("name", SCHEDULERS)


def watched(simulation: Simulation) -> Watched:
    scheduler = simulation.used_scheduler
    assert isinstance(scheduler, Watched)
    return scheduler


def run(world: World, name: str) -> Simulation:
    """Run a world to its end; whatever else a test asks of it, nothing in it was forgotten."""
    simulation = world.simulation(lambda: Watched(SCHEDULERS[name]())).run()
    assert_that_nothing_is_left(simulation, world)
    return simulation


def assert_that_nothing_is_left(simulation: Simulation, world: World) -> None:
    trials = simulation.experiment.trials
    assert len(trials) == world.trials
    assert all(trial.status.is_terminal for trial in trials.values())
    assert all(attempt.end is not None for trial in trials.values() for attempt in trial.attempts)
    assert watched(simulation).ended == set(trials)
    assert simulation.experiment.live == 0
    assert simulation.backend.queued() == set()
    fleet = simulation.simulated._fleet
    assert fleet is not None
    assert not fleet._runs
    if not world.life_s and not world.failing:
        # Attempts are neither lost nor fail, but without a number for the metric a trial can't have completed.
        assert not any(trial.status is TrialStatus.FAILED and trial.has_metric for trial in trials.values())


def decisions(simulation: Simulation) -> dict[TrialId, list[tuple[int, Action]]]:
    """What was decided on each trial, and at which iteration."""
    found: dict[TrialId, list[tuple[int, Action]]] = defaultdict(list)
    for report, decision in watched(simulation).log:
        if decision.action is not Action.CONTINUE:
            found[report.trial].append((report.metrics["training_iteration"], decision.action))
    return dict(found)


def levels_given(scheduler: Scheduler) -> list[tuple[float, ...]]:
    """Return the ways up that a trial may be given: its levels, upwards."""
    if isinstance(scheduler, HyperBand):
        return [tuple(round_.time for round_ in plan) for plan in scheduler.brackets]
    if isinstance(scheduler, PromotionASHA):
        return [scheduler.rung_levels[lowest:] for lowest in range(scheduler._brackets)]
    return [(MAX_T,)]


@pytest.mark.parametrize("name", [name for name in SCHEDULERS if not name.startswith(("fifo", "median", "pbt"))])
@settings(max_examples=EXAMPLES)
@given(world=worlds(failing=0.0, life_s=0.0, odd=0.0))
def test_no_trial_passes_the_level_it_was_given(name: str, world: World) -> None:
    simulation = run(world, name)
    ways = levels_given(watched(simulation).inner)
    shown: dict[TrialId, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for report, _ in watched(simulation).log:
        shown[report.trial][report.attempt].append(report.metrics["training_iteration"])
    for trial, by_attempt in shown.items():
        attempts = [by_attempt[number] for number in sorted(by_attempt)]
        # The rounds of a synchronous bracket follow one another, however far a trial has come.
        skips = not name.startswith("hyperband")
        assert any(keeps_to(way, attempts, skips=skips) for way in ways), (trial, attempts, ways)


def keeps_to(way: Iterable[float], attempts: list[list[int]], *, skips: bool) -> bool:
    """Whether each attempt's reports end with the first that has reached the next level; *skips*: beyond those passed."""
    levels = list(way)
    for index, times in enumerate(attempts):
        is_last = index == len(attempts) - 1
        if index >= len(levels):
            return False
        below, last = times[:-1], times[-1]
        if any(time >= levels[index] for time in below) or (last < levels[index] and not is_last):
            return False
        # Late reports may have checkpoints, so that an attempt begins behind a level; that one was skipped.
        levels = levels[: index + 1] + [level for level in levels[index + 1 :] if level > last or not skips]
    return True


@EVERY
@settings(max_examples=EXAMPLES)
@given(world=worlds(), repeating=st.integers(0, 100))
def test_the_same_world_gives_the_same_journal_also_when_reports_are_repeated(
    name: str, world: World, repeating: int
) -> None:
    plain = run(world, name)
    repeated = world.simulation(lambda: Repeating(SCHEDULERS[name](), seed=repeating)).run()
    assert repeated.copy.entries == plain.copy.entries


@pytest.mark.parametrize("name", [name for name in SCHEDULERS if not name.startswith("pbt")])
@settings(max_examples=EXAMPLES)
@given(
    world=worlds(checkpoints=False, report_s=0.0, decision_s=0.0, stop_s=0.0, life_s=0.0, failing=0.0, lockstep=False)
)
def test_late_reports_change_nothing(name: str, world: World) -> None:
    """A trial that hears late reports on; one that is slow to die doesn't, and both free their slot at the same time."""
    delay_s = 2.5
    # No trial returns by itself before it hears.
    world = world.but(length=MAX_T + 100) if name not in ("fifo", "median") else world.but(length=MAX_T)
    late, slow = (
        world.simulation(lambda: Watched(SCHEDULERS[name]())),
        world.simulation(lambda: Watched(SCHEDULERS[name]())),
    )
    late.simulated._conditions = _with(late, decision_delay=lambda: delay_s)
    slow.simulated._conditions = _with(slow, stop_delay=lambda: delay_s)
    late.run()
    attempts = [attempt for trial in late.experiment.trials.values() for attempt in trial.attempts]
    # Where nothing else ends a trial, one may have returned by itself before it heard, and its slot was free sooner.
    ends = {Intent.STOP, Intent.PAUSE}
    assume(not any(attempt.intent in ends and attempt.end is AttemptEnd.COMPLETED for attempt in attempts))
    # As texts, in which NaN equals itself.
    assert list(map(repr, watched(late).log)) == list(map(repr, watched(slow.run()).log))


def _with(simulation: Simulation, **changes: Any) -> Any:
    return dataclasses.replace(simulation.simulated._conditions, **changes)


@pytest.mark.parametrize("name", ["hyperband", "hyperband-2"])
@settings(max_examples=EXAMPLES)
@given(world=worlds(failing=0.0, life_s=0.0, decision_s=0.0, report_s=0.0))
def test_hyperband_decides_the_same_on_one_slot_as_on_many(name: str, world: World) -> None:
    one, many = run(world.but(slots=1), name), run(world.but(slots=22), name)
    assert decisions(one) == decisions(many)
    assert {i: t.status for i, t in one.experiment.trials.items()} == {
        i: t.status for i, t in many.experiment.trials.items()
    }
