"""ASHA against an oracle, its corner cases, and reports that are refused."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from scheduler_play import counted, work
from scheduler_table import Table, bound

from mqtune import ASHA, MOASHA, PASHA, PBT, RUSH, HyperBand, MedianStopping, PromotionASHA, uniform
from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import CONTINUE, Action, Decision, Report, Trial, TrialId, TrialStatus
from mqtune.schedulers import Scheduler, Start

#: A busy machine is no failure.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

NAN, INF = math.nan, math.inf


def trial(name: str) -> Trial:
    return Trial(TrialId(name), {}, TrialStatus.RUNNING)


def asha(mode: str = "min", **arguments: Any) -> ASHA:
    scheduler = ASHA(**{"max_t": 27, **arguments})
    scheduler.bind("loss", mode)
    return scheduler


def tell(
    scheduler: Scheduler, name: str, sequence: int, loss: Any = None, attempt: int = 1, **metrics: Any
) -> Decision:
    """Hand one report over; its time is its sequence number unless the metrics say otherwise."""
    if loss is not None:
        metrics["loss"] = loss
    return scheduler.on_report(trial(name), Report(TrialId(name), attempt, sequence, 0.0, metrics))


@pytest.mark.parametrize(
    ("max_t", "grace_period", "factor", "levels"),
    [
        (1000, 1, 10, [1, 10, 100, 1000]),
        (100, 1, 3, [1, 3, 9, 27, 81, 100]),
        (100, 5, 4, [5, 20, 80, 100]),
        (10, 10, 3, [10]),
        (1, 1, 2, [1]),
        (10, 1, 2.5, [1, 2.5, 6.25, 10]),
        (1.331, 1, 1.1, [1, 1.1, 1.21, 1.331]),
        (100, 0.1, 10, [0.1, 1, 10, 100]),
        (3**40, 1, 3, [3**k for k in range(41)]),
        (27.0, 1.0, 3.0, [1, 3, 9, 27]),
    ],
)
def test_rungs_end_exactly_at_max_t(max_t: float, grace_period: float, factor: float, levels: list[float]) -> None:
    scheduler = asha(max_t=max_t, grace_period=grace_period, reduction_factor=factor)

    assert list(scheduler.rung_levels) == levels


def test_numpy_numbers_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    scheduler = asha("max", max_t=numpy.int64(9), reduction_factor=numpy.float32(3))
    tell(scheduler, "t", 1, numpy.float32(0.5), training_iteration=numpy.int64(3))

    assert scheduler.rung_sizes == (0, 1, 0)
    msgpack.packb(scheduler.describe())


@pytest.mark.parametrize("value", ["3", None, NAN, INF, -INF, True, [3]])
def test_a_time_that_is_no_number_is_refused_by_name_and_value(value: Any) -> None:
    scheduler = asha(time_attr="epoch")

    with pytest.raises(ConfigurationError, match=r"report 2 of trial t .*epoch"):
        tell(scheduler, "t", 2, 1, epoch=value)
    tell(scheduler, "t", 3, 1, epoch=1)
    with pytest.raises(ConfigurationError, match=r"report 4 of trial t .*epoch"):
        tell(scheduler, "t", 4, 1, epoch=value)
    with pytest.raises(ConfigurationError, match="lacks the time_attr 'epochs'; it has 'epoch', 'loss'"):
        tell(asha(time_attr="epochs"), "t", 1, 1, epoch=1)


def test_a_time_that_goes_down_within_an_attempt_is_refused() -> None:
    scheduler = asha(time_attr="epoch")
    tell(scheduler, "t", 1, 1, epoch=2)
    tell(scheduler, "t", 2, 1, epoch=2)

    with pytest.raises(ConfigurationError, match="report 3 of trial t has epoch=1 after 2; it must never go down"):
        tell(scheduler, "t", 3, 1, epoch=1)
    assert tell(scheduler, "t", 1, 1, attempt=2, epoch=1) is CONTINUE


@pytest.mark.parametrize("value", ["low", [1], True, 1j])
def test_a_metric_that_is_no_number_is_refused_by_name_and_value(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"report 1 of trial t has loss=.* which is not a number"):
        tell(asha(), "t", 1, value)


scores = st.one_of(st.sampled_from([0.0, 1.0, 2.0, 3.0, NAN, INF, -INF]), st.floats(), st.integers(-(2**63), 2**63))


class Oracle:
    """The rule as ASHA's docstring states it, and as slow as that."""

    def __init__(self, levels: list[Fraction], factor: Fraction, mode: str, last: str) -> None:
        self.last = last
        self.levels = levels
        self.factor = factor
        self.mode = mode
        self.entered: dict[Fraction, dict[str, float]] = {level: {} for level in levels}
        self.decided: dict[str, str] = {}

    def is_better(self, left: float, right: float) -> bool:
        if math.isnan(left) or math.isnan(right):
            return math.isnan(right) and not math.isnan(left)
        return left < right if self.mode == "min" else left > right

    def report(self, name: str, now: int, score: float | None) -> str:
        if name in self.decided:
            return self.decided[name]
        reached = [level for level in self.levels if level <= now]
        highest_entered = max((level for level in self.levels if name in self.entered[level]), default=Fraction(-1))
        if not reached or reached[-1] <= highest_entered:
            return "CONTINUE"
        rung = self.entered[reached[-1]]
        if score is not None:
            rung[name] = score
        is_top = reached[-1] == self.levels[-1]
        if score is None and not (is_top and self.last == "COMPLETE"):
            # It enters with the next report that has one.
            return "CONTINUE"
        if is_top:
            self.decided[name] = self.last
            return self.last
        places = max(1, math.floor(len(rung) / self.factor))
        if sum(self.is_better(other, score) for other in rung.values()) < places:
            return "CONTINUE"
        self.decided[name] = "STOP"
        return "STOP"


@patient
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 12), st.integers(1, 4), scores | st.none(), st.sampled_from([False] * 5 + [True])),
        max_size=150,
    ),
    factor=st.sampled_from([2, 3, 4, 1.5, 2.5, 1.1]),
    grace=st.integers(1, 3),
    max_t=st.integers(3, 20),
    mode=st.sampled_from(["min", "max"]),
    stops=st.booleans(),
)
@example(steps=[(0, 3, None, False), (0, 1, 0.0, False)], factor=2, grace=1, max_t=3, mode="min", stops=False)
@example(steps=[(0, 1, None, False)] * 3 + [(0, 1, 0.0, False)], factor=1.5, grace=2, max_t=3, mode="max", stops=True)
def test_every_decision_is_the_one_that_the_rule_gives(
    steps: list[tuple[int, int, float | None, bool]], factor: float, grace: int, max_t: int, mode: str, stops: bool
) -> None:
    scheduler = asha(mode, max_t=max_t, grace_period=grace, reduction_factor=factor, stop_last_trials=stops)
    exact = Fraction(str(factor))
    levels = [grace * exact**k for k in range(40) if grace * exact**k < max_t] + [Fraction(max_t)]
    oracle = Oracle(levels, exact, mode, "COMPLETE" if stops else "CONTINUE")
    times: dict[str, int] = {}
    attempts: Counter[str] = Counter()

    for sequence, (number, step, score, begins_anew) in enumerate(steps, start=1):
        name = f"t{number}"
        if begins_anew:
            attempts[name] += 1
            times[name] = 0
        now = times[name] = times.get(name, 0) + step

        decision = tell(scheduler, name, sequence, score, attempts[name], training_iteration=now)

        assert decision.action.name == oracle.report(name, now, score)
        # A report that comes again, or a late one of the attempt before.
        for again, attempt in ((sequence, attempts[name]), (sequence + 1, attempts[name] - 1)):
            assert tell(scheduler, name, again, 0.0, attempt, training_iteration=99) == decision
    assert scheduler.rung_sizes == tuple(len(oracle.entered[level]) for level in levels)


COMPLETING: dict[str, Callable[[], Scheduler]] = {
    "asha": lambda: ASHA(9),
    "asha of averages": lambda: ASHA(9, scope="avg"),
    "moasha": lambda: MOASHA(9),
    "rush": lambda: RUSH(9, 1),
    "promotion": lambda: PromotionASHA(9),
    "promotion by cost": lambda: PromotionASHA(9, cost="loss"),
    "pasha": lambda: PASHA(9),
    "hyperband": lambda: HyperBand(9),
}


@pytest.mark.parametrize("make", COMPLETING.values(), ids=COMPLETING)
def test_no_late_report_counts_after_a_trial_completed_without_the_metric(make: Callable[[], Scheduler]) -> None:
    table = Table(bound(make()))
    completed = table.report("t", 9)

    assert completed == Decision(Action.COMPLETE, "reached max_t=9")
    assert table.report("t", 10, 0.5) == completed
    table.end("t", TrialStatus.COMPLETED)
    if not isinstance(table.scheduler, HyperBand):
        assert not any(table.scheduler.rung_sizes)
    assert isinstance(table.choose(), Start)


def test_asha_decides_nothing_before_it_is_bound() -> None:
    with pytest.raises(ConfigurationError, match=r"call bind\(metric, mode\) first"):
        tell(ASHA(27), "t", 1, 1)


KINDS: dict[str, Callable[[], Scheduler]] = {
    "asha": lambda: counted(ASHA, 27),
    "promotion": lambda: counted(PromotionASHA, 9),
    "median": lambda: counted(MedianStopping, min_samples=2),
    "pbt": lambda: counted(PBT, 1, {"lr": uniform(0, 1)}),
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_neither_a_report_nor_a_choice_grows_with_the_trials(make: Callable[[], Scheduler]) -> None:
    def steps_for_50(entered: int) -> int:
        table = Table(bound(make()))

        def enter(first: str, count: int) -> None:
            for number in range(count):
                name = f"{first}{number}"
                if table.report(name, 1, number * 7919 % 100_003).action is Action.PAUSE:
                    table.pause(name)
                table.choose()

        return work(lambda: enter("t", entered), lambda: enter("n", 50))

    # Work in proportion to the trials would make it 30 times as much.
    assert steps_for_50(3_000) < 3 * steps_for_50(100)
