"""Promotion ASHA: the rule by hand and against an oracle, and games with events in any order."""

from __future__ import annotations

import math
import random
from typing import Any

from hypothesis import given, settings, strategies as st
from scheduler_play import Faults, Play, partial, rngs, some_faults, told
from scheduler_table import Table, bound

from mqtune import PromotionASHA
from mqtune.core.trial import TrialId, TrialStatus
from mqtune.schedulers import START, Release, Resume


def promotion(mode: str = "min", **arguments: Any) -> Any:
    return bound(PromotionASHA(**{"max_t": 9, **arguments}), mode)


def test_of_more_than_may_stay_paused_at_a_rung_the_worst_is_released_and_its_score_counts() -> None:
    table = Table(promotion(most_paused=2))
    table.arrive(1, b=2, a=1)
    assert table.choose() == START
    table.arrive(1, d=4, c=3)

    assert table.choose() == Resume(TrialId("a"), "at iteration 1: among the best 1 of 4")
    table.stage("a")
    released = Release(TrialId("d"), "at iteration 1: not among the best 2 of those that are paused there")
    assert table.choose() == table.choose(can_start=False) == released
    table.end("d", TrialStatus.EARLY_STOPPED)
    assert table.choose() == START
    assert table.scheduler.rung_sizes == (4, 0, 0)


class Rule:
    """The rule as the docstring states it, from plain lists: the decision on a report, and the use of a free slot."""

    def __init__(self, scheduler: PromotionASHA, factor: int, last: str) -> None:
        #: The decision at max_t.
        self.last = last
        self.levels = scheduler.rung_levels
        self.factor = factor
        #: The ranks of all trials that have entered a rung, each with its name.
        self.rungs: list[list[tuple[bool, float, int, str]]] = [[] for _ in self.levels]
        #: The rung that each trial was given.
        self.at: dict[str, int] = {}
        self.under_way: set[str] = set()
        #: The trials that wait at their rung, without trials that a person has paused.
        self.paused: set[str] = set()
        self.entries = 0

    def follow(self, play: Play) -> None:
        """Check each decision and each choice of a game."""
        for call in play.calls:
            name = call.trial.id
            if call.method == "on_queue":
                self.at[name] = self.at.get(name, 0) + (name in self.paused)
                self.paused.discard(name)
                self.under_way.add(name)
            elif call.method == "on_trial_pause":
                self.under_way.discard(name)
                self.paused |= {name} if self.has_entered(name) and self.at[name] < self.top else set()
            elif call.method == "on_abandon":
                self.rungs = [[each for each in rung if each[-1] != name] for rung in self.rungs]
                # Nobody asks for a choice before it is told of the end, too.
                continue
            elif call.method == "on_trial_end":
                self.under_way.discard(name)
                self.paused.discard(name)
            elif call.report is not None and call.answer is not None:
                metrics = call.report.metrics
                assert call.answer.action.name == self.decided(name, metrics["training_iteration"], metrics.get("loss"))
            free = f"Resume {promoted}" if (promoted := self.promoted()) else ""
            ends = f"Release {released}" if (released := self.released()) else "Wait"
            assert [*map(told, call.choices)] == [free or "Start", free or ends]

    @property
    def top(self) -> int:
        return len(self.levels) - 1

    def has_entered(self, name: str) -> bool:
        return any(each[-1] == name for each in self.rungs[self.at[name]])

    def decided(self, name: str, now: int, loss: float | None) -> str:
        if now < self.levels[self.at[name]]:
            return "CONTINUE"
        reached = sum(level <= now for level in self.levels) - 1
        if not self.has_entered(name):
            if loss is None and reached < self.top:
                return "CONTINUE"
            self.at[name] = reached
            if loss is not None:
                rank = (math.isnan(loss), 0 if math.isnan(loss) else loss, self.entries, name)
                self.rungs[reached].append(rank)
                self.entries += 1
        return self.last if reached == self.top else "PAUSE"

    def waiting(self, index: int, ranks: list[tuple[bool, float, int, str]]) -> str:
        """The best of these that wait at a rung."""
        return next((name for *_, name in ranks if name in self.paused and self.at[name] == index), "")

    def promoted(self) -> str:
        best = (
            self.waiting(index, sorted(rung)[: len(rung) // self.factor])
            for index, rung in reversed([*enumerate(self.rungs[:-1])])
        )
        return next(filter(None, best), "")

    def released(self) -> str:
        """The best of the lowest rung at which any wait, unless one is under way to it or to one below."""
        for index, rung in enumerate(self.rungs[:-1]):
            if any(self.at[name] == index for name in self.under_way):
                return ""
            if found := self.waiting(index, sorted(rung)):
                return found
        return ""


@given(
    rng=rngs,
    slots=st.integers(1, 8),
    trials=st.integers(1, 25),
    factor=st.integers(2, 4),
    stops=st.booleans(),
    faults=some_faults,
    checkpoints=st.booleans(),
)
@settings(max_examples=2 * settings.default.max_examples)
def test_every_decision_and_choice_is_the_one_that_the_rule_gives(
    rng: random.Random, slots: int, trials: int, factor: int, stops: bool, faults: Faults, checkpoints: bool
) -> None:
    scheduler = promotion(reduction_factor=factor, stop_last_trials=stops)
    play = Play(scheduler, partial, slots, trials, rng, faults=faults, checkpoints=checkpoints, keeps_calls=True).run()

    Rule(scheduler, factor, "COMPLETE" if stops else "CONTINUE").follow(play)
    play.check_end()
