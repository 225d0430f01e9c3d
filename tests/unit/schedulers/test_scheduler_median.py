"""The median stopping rule by hand and against an oracle, and games with events in any order."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from scheduler_play import Faults, Play, rngs, scattered, some_faults
from scheduler_table import Table, bound

from mqtune import MedianStopping
from mqtune.core.trial import CONTINUE, Action, Metrics

NAN, INF = math.nan, math.inf


def median(mode: str = "min", **arguments: Any) -> Table:
    return Table(bound(MedianStopping(**{"min_samples": 2, **arguments}), mode))


def course(at: Table, name: str, *losses: Any) -> str:
    """Let a trial report these, and return C for each time that it continues and S for each that it stops."""
    return "".join("C" if at.report(name, now, loss) is CONTINUE else "S" for now, loss in enumerate(losses, start=1))


def others(*courses: list[Any], **arguments: Any) -> Table:
    """A scheduler that has seen others."""
    at = median(**arguments)
    for number, losses in enumerate(courses):
        course(at, f"other{number}", *losses)
    return at


def test_a_trial_whose_best_is_worse_than_the_median_of_the_averages_stops() -> None:
    # The running averages are 4, 3 (of 4 and 2) and 6, 6.
    scheduler = others([4, 2], [6, 6])

    assert course(scheduler, "good", 5, 5) == "CS"
    decision = scheduler.report("good", 3, 5)
    assert decision.action is Action.STOP
    assert decision.reason == (
        "the best loss so far, 5, is worse than 4.5, the median of the running averages of 2 others at 2"
    )


@pytest.mark.parametrize("count", [3, 4, 7, 8])
def test_a_tie_is_a_tie_whatever_values_led_to_the_average(count: int) -> None:
    # Rounding at each step made the averages of one in ten of these higher or lower than the number that they are.
    draws = random.Random(count)
    for _ in range(100):
        values = [draws.randint(0, 1000) for _ in range(count - 1)]
        average = draws.randint(0, 1000)
        values.append(average * count - sum(values))
        scheduler = others(values, values, grace_period=1, interval=count)

        best = [average, *[average + 1] * (count - 1)]
        assert course(scheduler, "t", *best) == "C" * count, values
        assert course(scheduler, "worse", *[value + 1 for value in best]).endswith("S"), values


def test_a_trial_that_equals_averages_that_are_all_alike_goes_on_whatever_the_cut_off() -> None:
    for cutoff in (0.1, 0.3, 0.7):
        assert course(others(*[[0.1]] * 6, cutoff=cutoff), "t", 0.1) == "C"


def test_with_another_cut_off_who_is_not_as_good_as_that_share_of_the_others_stops() -> None:
    averages = [[float(number)] for number in (1, 2, 3, 4, 5)]

    # The lowest quarter ends at 2, the lowest three quarters at 4.
    assert [course(others(*averages, cutoff=0.25), "t", loss) for loss in (2, 2.1)] == ["C", "S"]
    assert [course(others(*averages, cutoff=0.75), "t", loss) for loss in (4, 4.1)] == ["C", "S"]
    assert [course(others(*averages, cutoff=0.25, mode="max"), "t", loss) for loss in (4, 3.9)] == ["C", "S"]
    # A tenth of the way from the first to the last of five: 0.4 of the way from 1 to 2.
    at = others(*averages, cutoff=0.1)
    at.report("t", 1, 1.5)
    assert at.report("t", 1, 1.5).reason == (
        "the best loss so far, 1.5, is worse than 1.4, the 0.1 quantile of the running averages of 5 others at 1"
    )


def test_nobody_stops_before_it_has_run_for_so_many_seconds() -> None:
    at = others([1] * 4, [1] * 4, min_run_s=60)

    # A value that is no number counts as less than a minute.
    for now, seconds in enumerate((59.9, None, "a minute"), start=1):
        assert at.report("t", now, 9, time_total_s=seconds) is CONTINUE
    assert at.report("t", 4, 9, time_total_s=60).action is Action.STOP
    # All the same it counted, at the milestones where it did not stop: the median of 1, 1 and 9 is 1, of 1, 1, 9 and 9 it is 5.
    at.report("u", 1, 9, time_total_s=1)
    assert at.report("v", 1, 5, time_total_s=99) is CONTINUE


def test_milestones_are_exact() -> None:
    at = median(interval=0.1, grace_period=0.3)
    for name in "ab":
        at.report(name, 0.3, 1, sequence=1)

    assert at.report("t", 0.2, 9, sequence=1) is CONTINUE
    assert at.report("t", 0.30000000000000004, 9, sequence=2).action is Action.STOP


def test_infinities_are_numbers_and_large_numbers_do_not_overflow() -> None:
    assert course(others([-INF, 0], [-INF, 0]), "t", 5, 5) == "SS"
    assert course(others([INF, 0], [INF, 0]), "t", 5, 5) == "CC"
    assert course(others([INF, -INF], [INF, -INF]), "t", 5, 5) == "CC"

    assert course(others([1.7e308, -1.7e308], [1.7e308, -1.7e308]), "t", 1, 1) == "CS"
    assert course(others([1.7e308] * 3, [1.7e308] * 3), "t", *[1.6e308] * 3) == "CCC"


@given(
    numbers=st.lists(st.integers(-1000, 1000), min_size=1, max_size=40),
    share=st.integers(1, 49).map(lambda fiftieths: Fraction(fiftieths, 50)),
    gone=st.lists(st.integers(0, 39), max_size=5),
)
def test_a_quantile_is_interpolated_linearly(numbers: list[int], share: Fraction, gone: list[int]) -> None:
    at = others(*[[number] for number in numbers], cutoff=float(share), min_samples=1)
    left = dict(enumerate(numbers))
    for index in gone:
        if len(left) > 1 and index in left:
            del left[index]
            at.abandon(f"other{index}")

    ordered, place = sorted(left.values()), (len(left) - 1) * share
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    expected = low + (high - low) * float(place % 1)
    assert course(at, "better", expected - 1e-3) == "C"
    at.abandon("better")
    assert course(at, "worse", expected + 1e-3) == "S"


def curve(config: dict[str, Any], now: int) -> Metrics | None:
    value = scattered(config["number"], now, values=12)
    # A few trials report an infinity, which is in all their averages from then on.
    odd = {9: NAN} if config["number"] % 4 else {9: NAN, 10: INF}
    return None if now > 8 else {} if value == 11 else {"loss": odd.get(value, value)}


def middle_of(averages: Iterable[float]) -> float:
    ordered = sorted(averages)
    middle = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return max(middle) if any(map(math.isinf, middle)) else sum(middle) / 2


@given(
    rng=rngs,
    slots=st.integers(1, 6),
    mode=st.sampled_from(["min", "max"]),
    samples=st.integers(1, 4),
    interval=st.integers(1, 3),
    grace=st.integers(0, 4),
    faults=some_faults,
    checkpoints=st.booleans(),
)
@settings(max_examples=2 * settings.default.max_examples)
def test_every_decision_is_the_one_that_the_rule_gives(
    rng: random.Random,
    slots: int,
    mode: str,
    samples: int,
    interval: int,
    grace: int,
    faults: Faults,
    checkpoints: bool,
) -> None:
    scheduler = median(mode, min_samples=samples, interval=interval, grace_period=grace).scheduler
    play = Play(scheduler, curve, slots, 12, rng, faults=faults, checkpoints=checkpoints, keeps_calls=True).run()

    #: Of each trial: its values, lower being better, with their times; its latest time; and the milestone that it goes for.
    values: dict[str, list[tuple[int, float]]] = defaultdict(list)
    latest: dict[str, int] = defaultdict(int)
    due: dict[str, int] = defaultdict(lambda: math.ceil(grace / interval) * interval)
    averages: dict[int, dict[str, float]] = defaultdict(dict)
    for call in play.calls:
        name, stops = call.trial.id, False
        if call.method == "on_abandon":
            for there in averages.values():
                there.pop(name, None)
        if call.report is None or call.answer is None:
            continue
        now, loss = call.report.metrics["training_iteration"], call.report.metrics.get("loss")
        if loss is not None and now > latest[name]:
            values[name] += [] if math.isnan(loss) else [(now, loss if mode == "min" else -loss)]
            if now >= due[name]:
                due[name] = now - now % interval + interval
                there = averages[now // interval]
                best = min((value for _, value in values[name]), default=INF)
                stops = len(there) >= samples and best > middle_of(there.values()) + 1e-9
                counted = [value for time, value in values[name] if time >= grace]
                there[name] = sum(counted) / len(counted) if counted else INF
        latest[name] = max(latest[name], now)
        assert call.answer.action.name == ("STOP" if stops else "CONTINUE")
