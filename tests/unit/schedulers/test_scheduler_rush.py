"""RUSH: the rule by hand and against ASHA, and games with events in any order."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from halving_table import bound
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_play import check_game, rngs, rough, scattered, some_faults

from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import CONTINUE, Action, Attempt, Decision, Metrics, Report, Trial, TrialId, TrialStatus
from mqtune.schedulers.asha import ASHA
from mqtune.schedulers.rush import RUSH

NAN = math.nan


class Table:
    """Trials by their numbers; each is staged when it is first heard of."""

    def __init__(self, candidates: int = 1, **arguments: Any) -> None:
        self.scheduler: RUSH = bound(RUSH(27, candidates, **arguments))
        self.trials: dict[int, Trial] = {}

    def stage(self, number: int) -> Trial:
        trial = self.trials.setdefault(number, Trial(TrialId(str(number)), {}, TrialStatus.RUNNING))
        trial.attempts.append(Attempt(len(trial.attempts) + 1, 0.0))
        self.scheduler.on_stage(trial)
        return trial

    def tell(self, number: int, now: int, loss: float) -> Decision:
        trial = self.trials.get(number) or self.stage(number)
        metrics = {"training_iteration": now, "loss": loss}
        return self.scheduler.on_report(trial, Report(trial.id, trial.attempt.number, now, 0.0, metrics))


def test_one_that_asha_would_let_go_on_is_stopped_by_the_candidates() -> None:
    at = Table(2)
    assert at.tell(0, 1, 5) is CONTINUE
    assert at.tell(1, 1, 3) is CONTINUE
    assert at.tell(0, 3, 4) is CONTINUE
    for number in range(2, 8):
        at.tell(number, 1, 9)

    # A third of nine are three, and it is the second.
    assert at.tell(8, 1, 4) == Decision(
        Action.STOP, "rung 1: loss=4 is worse than that of trial 1, whose config was known"
    )
    assert at.tell(9, 1, 3) is CONTINUE
    assert at.tell(9, 3, 3.9) is CONTINUE


def test_candidates_are_the_first_that_are_staged_whoever_reports_first() -> None:
    at = Table()
    at.stage(0)
    assert at.tell(1, 1, 9) is CONTINUE
    assert at.tell(0, 1, 5) is CONTINUE
    for number in range(2, 9):
        at.tell(number, 1, 9)

    assert at.tell(9, 1, 5.5).reason == "rung 1: loss=5.5 is worse than that of trial 0, whose config was known"
    assert at.tell(10, 1, 5) is CONTINUE


def test_a_candidate_that_stops_or_is_abandoned_is_no_measure() -> None:
    at = Table(2)
    at.tell(0, 1, 3)
    # It stops, as any trial would.
    assert at.tell(1, 1, 4).action is Action.STOP
    for number in range(2, 6):
        at.tell(number, 1, 9)
    at.trials[0].status = TrialStatus.ABANDONED
    at.scheduler.on_abandon(at.trials[0])
    at.scheduler.on_trial_end(at.trials[0])

    assert at.tell(6, 1, 4) is CONTINUE


def test_nan_of_a_candidate_is_no_better_than_anything() -> None:
    at = Table()
    assert at.tell(0, 1, NAN) is CONTINUE

    assert at.tell(1, 1, NAN) is CONTINUE
    assert at.tell(2, 1, 1e300) is CONTINUE


@given(
    reports=st.lists(st.tuples(st.integers(0, 14), st.integers(1, 5), st.integers(0, 9)), max_size=150),
    candidates=st.integers(1, 5),
)
@settings(max_examples=80)
def test_every_decision_is_the_one_that_the_rule_gives(reports: list[tuple[int, int, int]], candidates: int) -> None:
    """It stops whom an ASHA that hears the same stops, and whoever a candidate has beaten at the rung."""
    at, asha = Table(candidates, reduction_factor=1.5), bound(ASHA(27, reduction_factor=1.5))
    levels = at.scheduler.rung_levels
    for number in range(15):
        at.stage(number)
    times: dict[int, int] = {}
    entered: dict[int, set[float]] = {}
    bars: dict[float, list[int]] = {}
    over: set[int] = set()

    for number, step, loss in reports:
        now = times[number] = times.get(number, 0) + step
        if number in over:
            continue
        trial = at.trials[number]
        metrics = {"training_iteration": now, "loss": loss}
        plain = asha.on_report(trial, Report(trial.id, 1, now, 0.0, metrics)).action.name
        level = max((level for level in levels if level <= now), default=0)
        if plain == "CONTINUE" and level and level not in entered.setdefault(number, set()):
            entered[number] |= {each for each in levels if each <= level}
            if number < candidates:
                bars.setdefault(level, []).append(loss)
            elif loss > min(bars.get(level, [loss])):
                plain = "STOP"

        assert at.tell(number, now, loss).action.name == plain
        if plain != "CONTINUE":
            over.add(number)


@given(rng=rngs, slots=st.integers(1, 6), trials=st.integers(1, 20), faults=some_faults, checkpoints=st.booleans())
@settings(max_examples=60)
def test_whatever_happens_no_trial_is_forgotten_and_a_replay_agrees_at_every_prefix(
    rng: random.Random, slots: int, trials: int, faults: Any, checkpoints: bool
) -> None:
    def curve(config: dict[str, Any], now: int) -> Metrics | None:
        return None if now > 11 else {} if scattered(now, 7, values=9) == 0 else rough(config, now)

    def scheduler() -> RUSH:
        found: RUSH = bound(RUSH(8, 3, reduction_factor=2))
        return found

    check_game(scheduler, curve, slots=slots, trials=trials, rng=rng, faults=faults, checkpoints=checkpoints)


def test_it_describes_its_arguments_and_refuses_those_that_make_no_sense() -> None:
    assert RUSH(27, 4).describe() == {
        "scheduler": "rush",
        "max_t": 27,
        "candidates": 4,
        "grace_period": 1,
        "reduction_factor": 3,
        "time_attr": "training_iteration",
    }
    with pytest.raises(ConfigurationError, match="RUSH: candidates=0 is not a whole number of at least 1"):
        RUSH(27, 0)
