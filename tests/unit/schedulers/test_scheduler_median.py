"""The median stopping rule: ties, milestones, infinities and quantiles."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mqtune import MedianStopping
from mqtune.core.trial import CONTINUE, Action, Decision, Report, Trial, TrialId, TrialStatus

NAN, INF = math.nan, math.inf


def median(mode: str = "min", **arguments: Any) -> MedianStopping:
    scheduler = MedianStopping(**{"min_samples": 2, **arguments})
    scheduler.bind("loss", mode)
    return scheduler


def tell(scheduler: MedianStopping, name: str, now: float, loss: Any = None, **more: Any) -> Decision:
    """Hand one report over; its sequence number is its time rounded up, unless given."""
    metrics = {"training_iteration": now} | ({} if loss is None else {"loss": loss}) | more.get("metrics", {})
    report = Report(TrialId(name), more.get("attempt", 1), more.get("sequence", math.ceil(now)), 0.0, metrics)
    return scheduler.on_report(Trial(TrialId(name), {}, TrialStatus.RUNNING), report)


def course(scheduler: MedianStopping, name: str, *losses: Any) -> str:
    """Let a trial report these, and return C for each time that it continues and S for each that it stops."""
    return "".join(
        "C" if tell(scheduler, name, now, loss) is CONTINUE else "S" for now, loss in enumerate(losses, start=1)
    )


def others(*courses: list[Any], **arguments: Any) -> MedianStopping:
    """A scheduler that has seen others."""
    scheduler = median(**arguments)
    for number, losses in enumerate(courses):
        for now, loss in enumerate(losses, start=1):
            tell(scheduler, f"other{number}", now, loss)
    return scheduler


def test_a_trial_whose_best_is_worse_than_the_median_of_the_averages_stops() -> None:
    # The running averages are 4, 3 (of 4 and 2) and 6, 6.
    scheduler = others([4, 2], [6, 6])

    assert course(scheduler, "good", 5, 5) == "CS"
    decision = tell(scheduler, "good", 3, 5)
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


def test_milestones_are_exact() -> None:
    scheduler = median(interval=0.1, grace_period=0.3)
    for name in "ab":
        tell(scheduler, name, 0.3, 1, sequence=1)

    assert tell(scheduler, "t", 0.2, 9, sequence=1) is CONTINUE
    assert tell(scheduler, "t", 0.30000000000000004, 9, sequence=2).action is Action.STOP


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
    scheduler = others(*[[number] for number in numbers], cutoff=float(share), min_samples=1)
    left = dict(enumerate(numbers))
    for index in gone:
        if len(left) > 1 and index in left:
            del left[index]
            scheduler.on_abandon(Trial(TrialId(f"other{index}"), {}))

    ordered, place = sorted(left.values()), (len(left) - 1) * share
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    expected = low + (high - low) * float(place % 1)
    assert course(scheduler, "better", expected - 1e-3) == "C"
    scheduler.on_abandon(Trial(TrialId("better"), {}))
    assert course(scheduler, "worse", expected + 1e-3) == "S"
