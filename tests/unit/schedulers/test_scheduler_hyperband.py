"""HyperBand: brackets by hand, and games against an oracle with events in any order."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from scheduler_play import Faults, Play, partial, rngs, some_faults, told, work
from scheduler_table import Table, bound

from mqtune import HyperBand


def hyperband(mode: str = "min", **arguments: Any) -> Any:
    """One whose brackets are (4, 2, 1), (3, 1) and (3) trials, unless it is said otherwise."""
    return bound(HyperBand(**{"max_t": 4, "reduction_factor": 2, **arguments}), mode)


def rounds(max_t: float, factor: float, **arguments: Any) -> list[list[tuple[float, float]]]:
    found = HyperBand(max_t, reduction_factor=factor, **arguments).brackets
    return [[tuple(round_) for round_ in bracket] for bracket in found]


def test_the_brackets_are_those_of_the_papers_example() -> None:
    assert rounds(81, 3) == [
        [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
        [(34, 3), (11, 9), (3, 27), (1, 81)],
        [(15, 9), (5, 27), (1, 81)],
        [(8, 27), (2, 81)],
        [(5, 81)],
    ]


@pytest.mark.parametrize(
    ("max_t", "factor", "first"),
    [
        (729, 3, [(729, 1), (243, 3), (81, 9), (27, 27), (9, 81), (3, 243), (1, 729)]),
        (243, 3, [(243, 1), (81, 3), (27, 9), (9, 27), (3, 81), (1, 243)]),
        (1000, 10, [(1000, 1), (100, 10), (10, 100), (1, 1000)]),
        (728, 3, [(243, 728 / 243), (81, 728 / 81), (27, 728 / 27), (9, 728 / 9), (3, 728 / 3), (1, 728)]),
        (1, 3, [(1, 1)]),
        (10, 2.5, [(7, 1.6), (2, 4), (1, 10)]),
    ],
)
def test_the_largest_bracket_is_there(max_t: float, factor: float, first: list[tuple[float, float]]) -> None:
    assert rounds(max_t, factor)[0] == first


def test_with_fewer_brackets_those_that_stop_most_are_left() -> None:
    assert rounds(27, 3, brackets=1) == [[(27, 1), (9, 3), (3, 9), (1, 27)]]
    assert rounds(27, 3, brackets=2) == rounds(27, 3)[:2]
    assert rounds(27, 3, brackets=4) == rounds(27, 3)


def test_a_grace_period_is_the_unit_of_time() -> None:
    assert rounds(0.9, 3, grace_period=0.1) == [[(9, 0.1), (3, 0.3), (1, 0.9)], [(5, 0.3), (1, 0.9)], [(3, 0.9)]]
    assert rounds(5, 3, grace_period=5) == [[(1, 5)]]


def test_a_factor_close_to_one_does_not_hold_up_the_start() -> None:
    scheduler = hyperband(max_t=1000, reduction_factor=1.01)

    # All 695 brackets would be a hundred times as much.
    assert work(lambda: None, lambda: Table(scheduler).stage("a")) < 500_000


@dataclass
class Bracket:
    """A bracket as plain dicts have it."""

    plan: tuple[Any, ...]
    round: int = 0
    is_closed: bool = False
    #: All trials that were ever in it, in the order of their staging.
    names: list[str] = field(default_factory=list)
    #: The trials in it now: under way, waiting, chosen or out.
    states: dict[str, str] = field(default_factory=dict)
    scores: dict[str, tuple[bool, float, int]] = field(default_factory=dict)

    @property
    def waiting(self) -> list[str]:
        """The waiting trials, best first. Empty while others are missing."""
        if {"under way", "chosen"} & {*self.states.values()}:
            return []
        return sorted((name for name, state in self.states.items() if state == "waits"), key=self.scores.__getitem__)


class Rule:
    """The rule as the docstring states it: the decision on a report, and the use of a free slot."""

    def __init__(self, scheduler: HyperBand, factor: int, last: str) -> None:
        #: The decision at max_t.
        self.last = last
        self.plans = scheduler.brackets
        self.factor = factor
        self.brackets: list[Bracket] = []
        self.of: dict[str, Bracket] = {}
        #: Of those that were chosen or are out: their bracket, and their place in it.
        self.places: dict[str, tuple[int, int, str]] = {}

    def follow(self, play: Play) -> None:
        """Check each decision and each choice of a game."""
        for call in play.calls:
            name = call.trial.id
            if call.method == "on_queue":
                self.stage(name)
            elif call.method == "on_trial_pause" and self.of[name].states.get(name) == "under way":
                if name in self.of[name].scores:
                    self.of[name].states[name] = "waits"
                else:
                    self.leave(name)
                self.end_round(self.of[name])
            elif call.method == "on_trial_end":
                self.leave(name)
                self.end_round(self.of[name])
            elif call.report is not None and call.answer is not None:
                metrics = call.report.metrics
                assert call.answer.action.name == self.decided(name, metrics["training_iteration"], metrics.get("loss"))
            assert [*map(told, call.choices)] == self.wanted()

    def stage(self, name: str) -> None:
        if name not in self.of:
            if not self.brackets or self.brackets[-1].is_closed:
                self.brackets.append(Bracket(self.plans[len(self.brackets) % len(self.plans)]))
            bracket = self.of[name] = self.brackets[-1]
            bracket.names.append(name)
            bracket.is_closed = len(bracket.names) == bracket.plan[0].trials
            bracket.states[name] = "under way"
            return
        bracket = self.of[name]
        if not bracket.is_closed and bracket.waiting[:1] == [name]:
            # Nothing new could start when this one was chosen.
            bracket.is_closed = True
            self.end_round(bracket)
        if bracket.states.get(name) == "chosen":
            bracket.states[name] = "under way"
        elif bracket.states.get(name) != "under way":
            self.leave(name)

    def leave(self, name: str) -> None:
        self.of[name].states.pop(name, None)
        self.of[name].scores.pop(name, None)

    def end_round(self, bracket: Bracket) -> None:
        if bracket.is_closed and (ranked := bracket.waiting):
            kept = max(1, len(bracket.names) // self.factor**bracket.round // self.factor)
            for place, name in enumerate(ranked):
                bracket.states[name] = "chosen" if place < kept else "out"
                self.places[name] = (self.brackets.index(bracket), place, name)
            bracket.scores.clear()
            bracket.round += 1

    def decided(self, name: str, now: int, loss: float | None) -> str:
        bracket = self.of[name]
        if now >= bracket.plan[-1].time:
            if self.last == "CONTINUE":
                self.leave(name)
                self.end_round(bracket)
            return self.last
        if name not in bracket.states or now < bracket.plan[bracket.round].time:
            return "CONTINUE"
        if name not in bracket.scores:
            if loss is None:
                return "CONTINUE"
            bracket.scores[name] = (math.isnan(loss), 0 if math.isnan(loss) else loss, bracket.names.index(name))
        return "PAUSE"

    def wanted(self) -> list[str]:
        for state, verb in (("out", "Release"), ("chosen", "Resume")):
            found = [self.places[name] for each in self.brackets for name in each.states if each.states[name] == state]
            if found:
                return [f"{verb} {min(found)[-1]}"] * 2
        open_ = self.brackets[-1].waiting if not self.brackets[-1].is_closed else []
        return ["Start", f"Resume {open_[0]}" if open_ else "Wait"]


@given(
    rng=rngs,
    slots=st.integers(1, 12),
    trials=st.integers(1, 40),
    factor=st.integers(2, 3),
    brackets=st.sampled_from([1, 2, None]),
    stops=st.booleans(),
    faults=some_faults,
    checkpoints=st.booleans(),
)
@settings(max_examples=2 * settings.default.max_examples)
def test_every_decision_and_choice_is_the_one_that_the_rule_gives(
    rng: random.Random,
    slots: int,
    trials: int,
    factor: int,
    brackets: int | None,
    stops: bool,
    faults: Faults,
    checkpoints: bool,
) -> None:
    scheduler = hyperband(max_t=9, reduction_factor=factor, brackets=brackets, stop_last_trials=stops)
    play = Play(scheduler, partial, slots, trials, rng, faults=faults, checkpoints=checkpoints, keeps_calls=True).run()

    Rule(scheduler, factor, "COMPLETE" if stops else "CONTINUE").follow(play)
    play.check_end()
