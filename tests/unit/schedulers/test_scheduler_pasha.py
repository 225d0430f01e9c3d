"""PASHA: when the top rung rises, by hand and against an oracle, and games with events in any order."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from typing import Any

from hypothesis import given, strategies as st
from scheduler_play import Play, rngs, scattered
from scheduler_table import Table, bound

from mqtune import PASHA
from mqtune.core.trial import CONTINUE, Metrics, TrialId
from mqtune.schedulers import Release, Wait


def table(**arguments: Any) -> Table:
    """Trials that are moved by hand; by default the rungs are 1, 2, 4, 8 and 16."""
    return Table(bound(PASHA(**{"max_t": 16, "reduction_factor": 2, **arguments})))


def climb(at: Any, number: int, *losses: float, since: int = 1) -> None:
    """Let a trial report these, one at a time, and pause with the last."""
    at.stage(number)
    for now, loss in enumerate(losses, start=since):
        decision = at.report(number, now, loss)
        assert (decision is CONTINUE) == (now < since + len(losses) - 1)
    at.pause(number)


def test_who_is_abandoned_is_in_no_ranking() -> None:
    at = table()
    for number in range(6):
        climb(at, number, number)
    climb(at, 0, 5, since=2)
    at.abandon(0)

    climb(at, 1, 4, since=2)

    assert at.scheduler.current_max_t == 2


def test_what_waits_at_the_top_is_released_in_the_end() -> None:
    at = table()
    for number in range(2):
        climb(at, number, number)
    at.stage(0)
    at.report(0, 2, 0)
    # It may change the ranking, and with that all who wait.
    assert at.scheduler.choose(can_start=False)[0] == "1"
    at.pause(0)
    at.end(1)

    released = at.scheduler.choose(can_start=False)

    assert released == Release(
        TrialId("0"), "at iteration 2: the order of the 1 trials there is stable, and no other trial comes"
    )
    at.end(0)
    assert isinstance(at.scheduler.choose(can_start=False), Wait)


def test_nan_is_worst_in_both_rankings_and_in_no_noise() -> None:
    at = table()
    for number, loss in enumerate([0, math.nan, math.nan, math.nan]):
        climb(at, number, loss)
    climb(at, 0, 0, since=2)
    climb(at, 1, math.nan, since=2)
    assert at.scheduler.current_max_t == 2
    climb(at, 2, -1, since=2)
    assert at.scheduler.current_max_t == 4


class Rule:
    """Where the top rung is, by the rule as the docstring states it, from plain lists."""

    def __init__(self, levels: tuple[float, ...]) -> None:
        self.levels = levels
        self.top = 1
        self.epsilon = 0.0
        self.curves: dict[str, dict[int, float]] = {}
        #: Names at each rung in the order in which they entered it.
        self.entered: list[list[str]] = [[] for _ in levels]

    def report(self, name: str, now: int, loss: float) -> None:
        self.curves.setdefault(name, {})[now] = loss
        if now not in self.levels or name in self.entered[self.levels.index(now)]:
            return
        index = self.levels.index(now)
        self.entered[index].append(name)
        if index == self.top < len(self.levels) - 1 and self.rises():
            self.top += 1

    def ranking(self, index: int, names: list[str]) -> list[str]:
        level = int(self.levels[index])
        return sorted(names, key=lambda name: (self.curves[name][level], self.entered[index].index(name)))

    def rises(self) -> bool:
        names, level = self.entered[self.top], int(self.levels[self.top])
        gaps = []
        for one, other in itertools.combinations(names, 2):
            times = range(1, level + 1)
            order = ["+" if self.curves[one][t] < self.curves[other][t] else "-" for t in times]
            if sum(1 for _ in itertools.groupby(order)) >= 3:
                gaps.append(abs(self.curves[one][level] - self.curves[other][level]))
        if gaps:
            gaps += gaps if len(gaps) == 1 else []
            self.epsilon = statistics.quantiles(gaps, n=10, method="inclusive")[8]
        below = int(self.levels[self.top - 1])
        pairs = zip(self.ranking(self.top, names), self.ranking(self.top - 1, names), strict=True)
        return any(abs(self.curves[a][below] - self.curves[b][below]) > self.epsilon + 1e-9 for a, b in pairs)


@given(rng=rngs, slots=st.integers(1, 6), trials=st.integers(1, 40), noise=st.sampled_from([0, 5, 100]))
def test_the_top_rung_is_where_the_rule_has_it(rng: random.Random, slots: int, trials: int, noise: int) -> None:
    def curve(config: dict[str, Any], now: int) -> Metrics:
        return {"loss": 10 * config["number"] % 97 + scattered(config["number"], now, values=noise + 1)}

    scheduler = bound(PASHA(16, reduction_factor=2))
    rule = Rule(scheduler.rung_levels)
    play = Play(scheduler, curve, slots=slots, trials=trials, rng=rng)
    report = play.report

    def followed(*arguments: Any) -> None:
        seen = len(play.shown)
        report(*arguments)
        for shown in play.shown[seen:]:
            rule.report(shown.trial, shown.metrics["training_iteration"], shown.metrics["loss"])
        assert scheduler.current_max_t == rule.levels[rule.top]

    play.report = followed  # type: ignore[method-assign]
    play.run()

    play.check_end()
    assert all(play.reached(name) <= scheduler.current_max_t for name in play.known)
