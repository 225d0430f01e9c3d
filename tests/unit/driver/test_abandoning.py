"""What an abandoned trial has reported counts nowhere, and its config is never proposed again."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from bench import Bench
from hypothesis import given, strategies as st

from mqtune.core.trial import (
    Action,
    Attempt,
    AttemptEnd,
    CheckpointId,
    Config,
    Decision,
    Report,
    SavedCheckpoint,
    Trial,
    TrialId,
)
from mqtune.results.display import ranked
from mqtune.schedulers.asha import ASHA
from mqtune.schedulers.base import Scheduler
from mqtune.schedulers.halving import Rung
from mqtune.schedulers.stopping.experiment_rules import ExperimentPlateau
from mqtune.schedulers.timed import rank_of
from mqtune.search.domains import choice, grid_search
from mqtune.search.grid import GridSearcher
from mqtune.search.points import PointsFirst
from mqtune.search.random import RandomSearcher
from mqtune.search.space import Space

ONE, TWO, THREE = TrialId("0001"), TrialId("0002"), TrialId("0003")
FINITE = Space({"depth": choice([1, 2, 3])})
GRID = Space({"depth": grid_search([1, 2, 3])})


def trial_of(id_: str, config: Config | None = None) -> Trial:
    trial = Trial(TrialId(id_), config or {})
    trial.attempts.append(Attempt(1, 0.0, config or {}))
    return trial


def told(scheduler: Scheduler, trial: Trial, value: float, time: int = 1) -> Decision:
    """Return what a scheduler says to a report; it comes with a checkpoint."""
    checkpoint = CheckpointId(f"m-{trial.id}-1-{time}")
    trial.checkpoint, trial.checkpoints[checkpoint] = checkpoint, SavedCheckpoint(checkpoint, 0.0, {})
    return scheduler.on_report(trial, Report(trial.id, 1, time, 0.0, {"loss": value, "training_iteration": time}))


# The fold and the results.


def test_a_trial_that_is_abandoned_is_not_the_best_one_and_one_that_is_revoked_may_be(tmp_path: Path) -> None:
    bench = Bench(tmp_path).step().start(ONE).start(TWO)
    bench.report(ONE, 0.1)
    bench.report(TWO, 0.5)

    bench.hand.trial(ONE).abandon("its data were wrong")
    assert bench.hand.results().best.id == TWO, "while its process still runs"
    bench.end(ONE)

    assert bench.experiment.best is bench.trial(TWO)
    assert bench.replayed().best is not None
    assert [bench.hand.results().best_trial(scope).id for scope in ("all", "last", "avg")] == [TWO] * 3
    assert [trial.id for trial in ranked(bench.experiment)][-1] == ONE
    bench.end(TWO, AttemptEnd.STOPPED)
    assert bench.experiment.best is bench.trial(TWO), "Celery's revoke stops it"


def test_everybody_is_told_once_and_before_the_end(tmp_path: Path) -> None:
    """Also by a driver that takes over, and for whichever way a trial comes to be abandoned."""
    heard: list[tuple[str, str]] = []

    class Hearing(ASHA):
        def on_abandon(self, trial: Trial) -> None:
            heard.append((trial.id, "abandoned"))

        def on_trial_end(self, trial: Trial) -> None:
            heard.append((trial.id, "ended"))

    bench = Bench(tmp_path, slots=3, max_trials=3, scheduler=lambda: Hearing(9)).step().start(ONE).start(TWO)
    bench.hand.trial(ONE).abandon("no")
    bench.end(ONE)
    bench.end(TWO, AttemptEnd.STOPPED)
    bench.hand.trial(THREE).abandon("no")

    # TWO is stopped from outside, which abandons nothing.
    expected = [(ONE, "abandoned"), (ONE, "ended"), (TWO, "ended"), (THREE, "abandoned"), (THREE, "ended")]
    assert heard == expected
    heard.clear()
    bench.replayed()
    assert heard == expected


# Schedulers.


def bound(scheduler: Scheduler) -> Any:
    scheduler.bind("loss", "min")
    return scheduler


def test_asha_measures_nobody_against_an_abandoned_trial() -> None:
    asha = bound(ASHA(9, reduction_factor=3))
    first, second = trial_of(ONE), trial_of(TWO)
    told(asha, first, 0.1)
    assert told(asha, second, 0.5).action is Action.STOP

    asha.on_abandon(first)
    asha.on_trial_end(first)

    assert asha.rung_sizes == (1, 0, 0)
    assert told(asha, trial_of(THREE), 0.4).action is Action.CONTINUE


@given(
    scores=st.lists(st.integers(0, 5), min_size=1, max_size=20),
    gone=st.sets(st.integers(0, 19)),
    factor=st.sampled_from([Fraction(2), Fraction(3), Fraction(3, 2)]),
    least=st.integers(0, 1),
)
def test_a_rung_is_as_if_those_who_were_taken_out_had_never_entered(
    scores: list[int], gone: set[int], factor: Fraction, least: int
) -> None:
    rung, other = Rung(1, factor, least=least), Rung(1, factor, least=least)
    ranks = [rank_of(score, order) for order, score in enumerate(scores)]
    for index, rank in enumerate(ranks):
        rung.enter(rank)
        if index not in gone:
            other.enter(rank)
    for index in gone & set(range(len(ranks))):
        rung.withdraw(ranks[index])

    assert (rung.entered, rung.places) == (other.entered, other.places)
    assert [rung.is_among_best(rank) for rank in ranks] == [other.is_among_best(rank) for rank in ranks]
    rung.enter(rank_of(2, 99))
    other.enter(rank_of(2, 99))
    assert [rung.is_among_best(rank) for rank in ranks] == [other.is_among_best(rank) for rank in ranks]


def test_a_plateau_is_one_of_trials_that_were_not_abandoned() -> None:
    rule = ExperimentPlateau(top=2, std=0.0)
    rule.bind("loss", "min")
    for id_, value in ((ONE, 0.1), (TWO, 0.1), (THREE, 0.3), ("0004", 0.3)):
        rule.stops_trial(trial_of(id_), Report(TrialId(id_), 1, 1, 0.0, {"loss": value}))
    assert rule.stops_experiment(None, 0.0)  # type: ignore[arg-type]

    rule.on_abandon(trial_of(ONE))
    assert not rule.stops_experiment(None, 0.0)  # type: ignore[arg-type]
    rule.on_abandon(trial_of(TWO))
    assert rule.stops_experiment(None, 0.0), "the next best ones are alike"  # type: ignore[arg-type]


# Searchers.


@pytest.mark.parametrize("space", [FINITE, GRID])
def test_random_search_that_starts_over_suggests_no_abandoned_config_and_ends_without_others(space: Space) -> None:
    searcher = RandomSearcher(space, 3)
    first = searcher.suggest(ONE)
    assert first is not None

    searcher.on_abandon(trial_of(ONE, first))

    suggested = [searcher.suggest(ONE) for _ in range(20)]
    assert {config["depth"] for config in suggested if config} == {1, 2, 3} - {first["depth"]}
    for depth in (1, 2, 3):
        searcher.on_abandon(trial_of(ONE, {"depth": depth}))
    assert searcher.suggest(ONE) is None


def test_a_large_space_has_no_abandoned_config_either() -> None:
    space = Space({"first": choice(list(range(200))), "second": choice(list(range(200))), "third": 1})
    left = {"first": 7, "second": 7, "third": 1}
    searcher = RandomSearcher(space, 0)
    searcher.on_abandon(trial_of(ONE, left))

    assert all(searcher.suggest(TrialId("0001")) != left for _ in range(2000))


def test_points_and_grid_search_pass_over_what_was_abandoned_or_is_tried_anyway() -> None:
    searcher = PointsFirst([{"depth": 1}, {"depth": 1}], GridSearcher(GRID), space=GRID)
    searcher.avoid({"depth": 2})
    searcher.on_abandon(trial_of(ONE, searcher.suggest(ONE)))

    assert [searcher.suggest(ONE), searcher.suggest(ONE)] == [{"depth": 3}, None]
