"""Scopes: the value that a trial is ranked by, in results and in schedulers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from book import Book
from hypothesis import given, settings, strategies as st
from scheduler_play import Play, rngs, scattered
from scheduler_table import bound

import mqtune
from mqtune import Results
from mqtune.core.errors import ConfigurationError, MetricMissing
from mqtune.core.scope import ScopedValue
from mqtune.core.trial import Action, Metrics
from mqtune.schedulers import Scheduler

NAN, INF = math.nan, math.inf
LENGTH = 9

KINDS: dict[str, Callable[..., Scheduler]] = {
    "asha": mqtune.ASHA,
    "promotion": mqtune.PromotionASHA,
    "hyperband": mqtune.HyperBand,
}
EVERY = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
EVERY_SCOPE = pytest.mark.parametrize("scope", ["all", "last", "avg", "last-1-avg", "last-3-avg"])


def ranked_by(scope: str, values: Sequence[float], best: Callable[..., float] = min) -> float:
    """The rule as the docstring states it."""
    numbers = [value for value in values if not math.isnan(value)]
    match scope.split("-"):
        case ["all"]:
            return best(numbers, default=NAN)
        case ["avg"]:
            return sum(numbers) / len(numbers) if numbers else NAN
        case ["last"]:
            return values[-1]
        case [_, count, _]:
            counted = values[-int(count) :]
            return sum(counted) / len(counted)
    raise AssertionError(scope)


@EVERY_SCOPE
@given(values=st.lists(st.sampled_from([0.5, 1, 2.0, -3.0, NAN, INF, -INF]), min_size=1, max_size=8))
def test_after_each_report_a_trial_is_ranked_by_what_the_scope_says(scope: str, values: list[float]) -> None:
    for mode, best in (("min", min), ("max", max)):
        scoped = ScopedValue(scope, mode)
        ranked = [scoped.add(value) for value in values]

        expected = [ranked_by(scope, values[: number + 1], best) for number in range(len(values))]
        assert ranked == pytest.approx(expected, nan_ok=True)


# Results.


def test_a_nan_among_the_last_values_counts_and_late_reports_do_not(tmp_path: Path) -> None:
    book = Book(tmp_path / "diverged")
    book.run("0001", 1.0, NAN)
    book.run("0002", NAN, 5.0, 7.0)
    book.stage("0003")
    book.report("0003", {"loss": 8.0})
    book.decide("0003")
    book.report("0003", {"loss": 0.0})
    book.end("0003")
    results = Results.load(book.save())

    assert results.best_trial("last-2-avg").id == "0002"
    with pytest.raises(MetricMissing, match="have not reported"):
        Results.load(Book(tmp_path / "empty").save()).best_trial("last-2-avg")


@pytest.mark.parametrize("scope", ["last-0-avg", "last--avg", "last-5", "mean", 5])
def test_what_is_no_scope_is_refused_by_results_and_schedulers(tmp_path: Path, scope: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"scope={scope!r} is none of 'all', .* with any number"):
        Results.load(Book(tmp_path / "some").save()).best_trial(scope)
    with pytest.raises(ConfigurationError, match=f"ASHA: scope={scope!r} is none of"):
        mqtune.ASHA(9, scope=scope)


# Schedulers.


def jumps(config: dict[str, Any], now: int) -> Metrics | None:
    return None if now > LENGTH else {"loss": scattered(config["number"], now)}


@EVERY
@EVERY_SCOPE
@given(rng=rngs, slots=st.integers(1, 4))
@settings(max_examples=10)
def test_a_scheduler_judges_as_if_trials_had_reported_what_they_are_ranked_by(
    make: Callable[..., Scheduler], scope: str, rng: random.Random, slots: int
) -> None:
    def ranked(config: dict[str, Any], now: int) -> Metrics | None:
        values = [scattered(config["number"], time) for time in range(1, now + 1)]
        return None if now > LENGTH else {"loss": ranked_by(scope, values)}

    state = rng.getstate()
    plays = []
    for curve, arguments in ((jumps, {"scope": scope}), (ranked, {})):
        rng.setstate(state)
        plays.append(Play(bound(make(LENGTH, **arguments)), curve, slots=slots, trials=12, rng=rng).run())

    assert plays[0].log == plays[1].log


def test_the_reason_says_what_a_trial_was_judged_by() -> None:
    asha = bound(mqtune.ASHA(9, grace_period=2, scope="last-2-avg"))
    play = Play(asha, lambda config, now: {"loss": config["number"] + now}, trials=2, keeps_calls=True).run()

    stops = [call.answer.reason for call in play.calls if call.answer is not None and call.answer.action is Action.STOP]
    assert stops == ["rung 2: last-2-avg of loss=2.5 is not among the best 1 of 2"]
