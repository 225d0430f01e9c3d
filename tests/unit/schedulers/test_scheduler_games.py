"""Games with events in any order: no trial is forgotten, and a scheduler that is told the same again says the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from population_table import starting
from scheduler_play import Faults, Play, check_replay, rngs, rough, scattered, some_faults
from scheduler_table import bound

import mqtune
from mqtune.core.objective import Objective
from mqtune.core.trial import Config, Metrics
from mqtune.schedulers.base import Scheduler

#: Below the longest trial, and above what trials have come to that end by themselves.
MAX_T: Final = 8
LONGEST: Final = 12


def moasha() -> Scheduler:
    scheduler = mqtune.MOASHA(MAX_T, reduction_factor=2, brackets=2)
    scheduler.check_objective(Objective.of(["loss", "speed"], ["min", "max"]))
    return scheduler


#: Those whose every decision and choice is held to a rule, whatever happens, have games of their own.
KINDS: Final[dict[str, Callable[[], Scheduler]]] = {
    "asha in brackets": lambda: mqtune.ASHA(MAX_T, reduction_factor=2, brackets=3),
    "asha to the end": lambda: mqtune.ASHA(MAX_T, reduction_factor=2, stop_last_trials=False),
    "asha by a mean": lambda: mqtune.ASHA(MAX_T, scope="last-3-avg"),
    "promotion of few": lambda: mqtune.PromotionASHA(MAX_T, reduction_factor=2, most_paused=1),
    "promotion in brackets": lambda: mqtune.PromotionASHA(MAX_T, reduction_factor=2, brackets=3),
    "promotion by a mean": lambda: mqtune.PromotionASHA(MAX_T, scope="last-3-avg"),
    "promotion by cost": lambda: mqtune.PromotionASHA(MAX_T, reduction_factor=2, cost="cost"),
    "pasha": lambda: mqtune.PASHA(MAX_T, reduction_factor=2),
    "rush": lambda: mqtune.RUSH(MAX_T, 3, reduction_factor=2),
    "moasha": moasha,
    "hyperband of one bracket": lambda: mqtune.HyperBand(MAX_T, brackets=1),
    "hyperband by a mean": lambda: mqtune.HyperBand(MAX_T, scope="last-3-avg"),
    "median": lambda: mqtune.MedianStopping(min_samples=2),
    "quantile": lambda: mqtune.MedianStopping(min_samples=2, cutoff=0.2),
}


def curve(config: Config, now: int) -> Metrics | Exception | None:
    """Some trials end by themselves and some fail, at times of their own, and some reports have no score."""
    number = config["number"]
    if now > LONGEST or (number % 7 == 3 and now > scattered(number, 0, values=LONGEST)):
        return None
    if number % 11 == 5 and now > scattered(number, 1, values=LONGEST):
        return ValueError()
    told = {"speed": scattered(number, 3, values=5), "cost": now * scattered(number, 0, values=4)}
    return told if scattered(now, 7, values=9) == 0 else {**told, **rough(config, now)}


@pytest.mark.parametrize("kind", KINDS)
@given(rng=rngs, slots=st.integers(1, 6), trials=st.integers(1, 12), faults=some_faults, checkpoints=st.booleans())
@settings(max_examples=25)
def test_whatever_happens_no_trial_is_forgotten_and_a_replay_agrees_at_every_prefix(
    kind: str, rng: random.Random, slots: int, trials: int, faults: Faults, checkpoints: bool
) -> None:
    play = Play(
        bound(KINDS[kind]()),
        curve,
        keeps_calls=True,
        slots=slots,
        trials=trials,
        rng=rng,
        configs=lambda number: {"number": number, **starting(number)},
        faults=faults,
        checkpoints=checkpoints,
    ).run()

    play.check_end()
    check_replay(play, bound(KINDS[kind]()))
