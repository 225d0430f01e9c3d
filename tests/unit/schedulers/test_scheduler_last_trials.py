"""``stop_last_trials=False``: a trial that has reached max_t runs on, and nobody waits for it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_play import Play, rngs, rough
from scheduler_table import Table, bound

import mqtune
from mqtune.core.trial import CONTINUE, Metrics, TrialId, TrialStatus
from mqtune.schedulers.base import Release, Scheduler, Wait
from mqtune.schedulers.hyperband import HyperBand

MAX_T = 4
LENGTH = 7

KINDS: dict[str, Callable[..., Scheduler]] = {
    "asha": mqtune.ASHA,
    "promotion": mqtune.PromotionASHA,
    "hyperband": HyperBand,
}
EVERY = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


def scheduler(make: Callable[..., Scheduler], **arguments: Any) -> Any:
    return bound(make(MAX_T, **{"reduction_factor": 2, "stop_last_trials": False, **arguments}))


def curve(config: dict[str, Any], now: int) -> Metrics | None:
    return None if now > LENGTH else rough(config, now)


@EVERY
@given(rng=rngs, slots=st.integers(1, 5))
@settings(max_examples=30)
def test_who_reaches_max_t_runs_to_its_own_end(make: Callable[..., Scheduler], rng: random.Random, slots: int) -> None:
    play = Play(scheduler(make), curve, slots=slots, trials=14, rng=rng).run()
    stopping = Play(scheduler(make, stop_last_trials=True), curve, slots=slots, trials=14, rng=rng).run()

    play.check_end()
    ends = {(name in play.histories and len(play.histories[name]), status) for name, status in play.statuses.items()}
    assert (LENGTH, "COMPLETED") in ends
    assert all(time == LENGTH for time, status in ends if status == "COMPLETED")
    assert all(time < MAX_T for time, status in ends if status != "COMPLETED")
    assert all(stopping.reached(name) <= MAX_T for name in stopping.known)


def test_nobody_at_a_rung_waits_for_a_trial_that_runs_on_beyond_max_t() -> None:
    table = Table(scheduler(mqtune.PromotionASHA))
    for number in (0, 1):
        table.stage(number)
    assert table.report(0, 1, 5).reason
    table.pause(0)

    assert isinstance(table.scheduler.choose(can_start=False), Wait)
    # It skips all rungs, and has no score.
    assert table.report(1, 4, None) is CONTINUE
    assert isinstance(table.scheduler.choose(can_start=False), Release)


def test_a_trial_that_a_person_pauses_beyond_max_t_is_left_alone_and_counted_once() -> None:
    table = Table(scheduler(mqtune.PromotionASHA))
    table.stage(0)
    assert table.report(0, 4, 5) is CONTINUE
    table.pause(0)

    assert isinstance(table.scheduler.choose(can_start=False), Wait)
    table.stage(0)
    assert table.report(0, 4, 5) is CONTINUE
    assert table.scheduler.rung_sizes == (0, 0, 1)


def test_a_bracket_goes_on_without_a_trial_that_runs_on_beyond_max_t() -> None:
    # The first bracket has 4 trials, of which 2 go on.
    table = Table(scheduler(HyperBand))
    for number in range(4):
        table.stage(number)
    for number in range(3):
        table.report(number, 1, number)
        table.pause(number)
    assert table.scheduler.choose(can_start=False) == Wait(
        "no new trial can start, and the rounds of all brackets wait for trials that are under way"
    )

    assert table.report(3, 4, 9) is CONTINUE

    assert table.scheduler.choose(can_start=False)[0] == "2"
    table.end(3, TrialStatus.COMPLETED)
    assert table.scheduler.choose(can_start=False)[0] == TrialId("2")
