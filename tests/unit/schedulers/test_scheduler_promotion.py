"""Promotion ASHA: the rule by hand and against an oracle, and games with events in any order."""

from __future__ import annotations

import math
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_play import Play, rngs, rough, work
from scheduler_table import Table, bound

from mqtune.core.trial import CONTINUE, Action, Decision, TrialId, TrialStatus
from mqtune.schedulers.asha import PromotionASHA
from mqtune.schedulers.base import START, Release, Resume, Wait

NAN, INF = math.nan, math.inf


def promotion(mode: str = "min", **arguments: Any) -> Any:
    return bound(PromotionASHA(**{"max_t": 9, **arguments}), mode)


# The rule, by hand


def test_the_best_third_is_promoted_and_everybody_else_waits() -> None:
    table = Table(promotion())

    table.arrive(1, a=5)
    assert table.choose() == START
    table.arrive(1, b=4)
    assert table.choose() == START
    table.arrive(1, c=6)
    assert table.choose() == Resume(TrialId("b"), "rung 1: among the best 1 of 3")


def test_one_rung_after_the_other_is_reached_until_max_t_completes() -> None:
    table = Table(promotion())
    table.arrive(1, a=1, b=2, c=3)
    table.stage("a")

    assert table.report("a", 2, 1) is CONTINUE
    assert table.report("a", 3, 1) == Decision(Action.PAUSE, "rung 3: waits to be promoted")
    table.pause("a")
    table.arrive(1, d=0, e=0)
    for name in "de":
        if table.choose() == START:
            table.arrive(1, **{name + "2": 9})
        table.stage(name)
        table.report(name, 3, 2)
        table.pause(name)

    assert table.scheduler.rung_sizes == (6, 3, 0)
    assert table.choose() == Resume(TrialId("a"), "rung 3: among the best 1 of 3")
    table.stage("a")
    assert table.report("a", 8, 1) is CONTINUE
    assert table.report("a", 9, 1) == Decision(Action.COMPLETE, "reached max_t=9")


def test_nan_is_worse_than_every_number() -> None:
    table = Table(promotion())
    table.arrive(1, a=NAN, b=INF, c=NAN)
    assert table.choose() == Resume(TrialId("b"), "rung 1: among the best 1 of 3")

    table = Table(promotion("max"))
    table.arrive(1, a=NAN, b=-INF, c=NAN)
    assert table.choose() == Resume(TrialId("b"), "rung 1: among the best 1 of 3")

    table = Table(promotion())
    table.arrive(1, a=NAN, b=NAN, c=NAN)
    assert table.choose() == Resume(TrialId("a"), "rung 1: among the best 1 of 3")


def test_the_score_of_a_trial_that_ended_keeps_its_place() -> None:
    table = Table(promotion())
    table.arrive(1, a=1, b=2, c=3)
    table.end("a", TrialStatus.ABANDONED)

    assert table.choose() == START
    table.arrive(1, d=4, e=5, f=6)
    assert table.choose() == Resume(TrialId("b"), "rung 1: among the best 2 of 6")


# Reports that are not like the others


def test_a_report_without_the_metric_enters_no_rung_and_the_next_one_does() -> None:
    table = Table(promotion())
    table.stage("a")

    assert table.report("a", 1) is CONTINUE
    assert table.report("a", 2, 1).action is Action.PAUSE
    assert table.scheduler.rung_sizes == (1, 0, 0)


def test_max_t_completes_a_trial_without_the_metric() -> None:
    table = Table(promotion())
    table.stage("a")

    assert table.report("a", 9).action is Action.COMPLETE


def test_a_report_that_skips_rungs_enters_the_highest_that_it_reached() -> None:
    table = Table(promotion(reduction_factor=2, max_t=8))
    table.stage("a")

    assert table.report("a", 5, 1).action is Action.PAUSE
    assert table.scheduler.rung_sizes == (0, 0, 1, 0)


def test_a_resume_without_a_checkpoint_is_looked_at_only_from_its_rung_on() -> None:
    table = Table(promotion(reduction_factor=1.5, max_t=2))
    table.arrive(1, a=1, b=2)
    table.stage("a")

    assert table.report("a", 1, 9, sequence=1) is CONTINUE
    assert table.report("a", 2, 9, sequence=2).action is Action.COMPLETE
    assert table.scheduler.rung_sizes == (2, 0, 1)


def test_a_retry_goes_for_the_same_rung() -> None:
    table = Table(promotion())
    table.arrive(1, a=1, b=2, c=3)
    table.stage("a")
    assert table.report("a", 2, 1) is CONTINUE

    table.stage("a")

    assert table.report("a", 1, 1) is CONTINUE
    assert table.report("a", 3, 1).action is Action.PAUSE
    assert table.scheduler.rung_sizes == (3, 1, 0)


def test_a_retry_of_a_trial_that_was_to_pause_pauses_again_with_the_score_that_it_had() -> None:
    table = Table(promotion())
    table.arrive(1, a=1, b=3)
    table.stage("c")
    table.report("c", 1, 2)

    table.stage("c")
    assert table.report("c", 1, 0).action is Action.PAUSE
    table.pause("c")

    assert table.scheduler.rung_sizes == (3, 0, 0)
    assert table.choose() == Resume(TrialId("a"), "rung 1: among the best 1 of 3")


# By hand


def test_a_trial_that_a_person_resumes_is_promoted() -> None:
    table = Table(promotion())
    table.arrive(1, a=1, b=2)
    table.stage("b")

    assert table.report("b", 2, 9) is CONTINUE
    assert table.report("b", 3, 9).action is Action.PAUSE
    assert table.scheduler.rung_sizes == (2, 1, 0)


def test_a_trial_that_a_person_pauses_is_left_alone_until_a_person_resumes_it() -> None:
    table = Table(promotion())
    table.stage("a")
    table.pause("a")

    assert table.choose() == START
    assert isinstance(table.choose(can_start=False), Wait)
    table.stage("a")
    assert table.report("a", 1, 1).action is Action.PAUSE


# The end


def test_paused_trials_are_released_when_nobody_comes_who_could_have_them_promoted() -> None:
    table = Table(promotion())
    table.arrive(1, a=1, b=2)
    table.stage("c")

    assert isinstance(table.choose(can_start=False), Wait)
    table.end("c")

    assert table.choose() == START
    released = table.choose(can_start=False)
    assert released == Release(TrialId("a"), "rung 1: not among the best 0 of 2, and no other trial comes there")
    table.end("a", TrialStatus.EARLY_STOPPED)
    assert table.choose(can_start=False)[0] == "b"
    table.end("b", TrialStatus.EARLY_STOPPED)
    assert isinstance(table.choose(can_start=False), Wait)


def test_of_more_than_may_stay_paused_at_a_rung_the_worst_is_released_and_its_score_counts() -> None:
    table = Table(promotion(most_paused=2))
    table.arrive(1, b=2, a=1)
    assert table.choose() == START
    table.arrive(1, d=4, c=3)

    assert table.choose() == Resume(TrialId("a"), "rung 1: among the best 1 of 4")
    table.stage("a")
    released = Release(TrialId("d"), "rung 1: not among the best 2 of those that are paused there")
    assert table.choose() == table.choose(can_start=False) == released
    table.end("d", TrialStatus.EARLY_STOPPED)
    assert table.choose() == START
    assert table.scheduler.rung_sizes == (4, 0, 0)


def test_a_rung_is_released_as_soon_as_all_trials_are_past_it() -> None:
    table = Table(promotion())
    table.arrive(1, a=1, b=2, c=3)
    table.stage("a")

    assert table.choose(can_start=False)[0] == "b"


def test_a_rung_waits_for_a_trial_that_pauses_below_it() -> None:
    table = Table(promotion(reduction_factor=2))
    table.arrive(1, a=1, b=2)
    table.stage("a")
    table.report("a", 2, 1)
    table.pause("a")
    table.arrive(1, c=0)
    table.stage("d")
    table.report("d", 1, 0.5)
    table.end("b", TrialStatus.ABANDONED)
    table.stage("c")
    table.end("c")

    # d may be promoted once it has paused, and with it a.
    assert isinstance(table.choose(can_start=False), Wait)
    table.pause("d")
    assert table.choose(can_start=False) == Resume(TrialId("d"), "rung 1: among the best 2 of 4")


# Games


class Rule:
    """The rule as the docstring states it, from plain lists: what a free slot is for."""

    def __init__(self, scheduler: PromotionASHA, factor: int) -> None:
        self.levels = scheduler.rung_levels
        self.factor = factor
        self.rungs: list[list[tuple[bool, float, int, str]]] = [[] for _ in self.levels]
        self.promoted: set[tuple[int, str]] = set()
        self.at: dict[str, int] = {}
        self.entered: dict[str, bool] = {}

    def follow(self, play: Play) -> None:
        """Check each choice of a game without faults."""
        paused: set[str] = set()
        for call in play.calls:
            name = call.trial.id
            if call.method == "on_stage":
                if name in paused:
                    self.promoted.add((self.at[name], name))
                    paused.discard(name)
                    self.at[name] += 1
                self.at.setdefault(name, 0)
            elif call.method == "on_trial_pause":
                paused.add(name)
            elif call.method == "on_trial_end":
                paused.discard(name)
            elif call.report is not None and call.answer is not None and call.answer.action is Action.PAUSE:
                index, loss = self.at[name], call.report.metrics["loss"]
                assert call.report.metrics["training_iteration"] == self.levels[index]
                rung = self.rungs[index]
                rung.append((math.isnan(loss), 0 if math.isnan(loss) else loss, len(rung), name))
            wanted = self.wanted(paused)
            assert (call.choices[0][0] if wanted else call.choices[0]) == (wanted or START)

    def wanted(self, paused: set[str]) -> str:
        for index in range(len(self.levels) - 2, -1, -1):
            rung = sorted(self.rungs[index])
            for *_, name in rung[: len(rung) // self.factor]:
                if (index, name) not in self.promoted and name in paused:
                    return name
        return ""


@given(
    rng=rngs,
    slots=st.integers(1, 8),
    trials=st.integers(1, 25),
    factor=st.integers(2, 4),
)
@settings(max_examples=60)
def test_every_choice_is_the_one_that_the_rule_gives(rng: random.Random, slots: int, trials: int, factor: int) -> None:
    scheduler = promotion(reduction_factor=factor)

    play = Play(scheduler, rough, slots=slots, trials=trials, rng=rng, keeps_calls=True).run()

    Rule(scheduler, factor).follow(play)
    play.check_end()


# Cost


def test_neither_a_report_nor_a_choice_grows_with_the_trials() -> None:
    def steps_for_50(entered: int) -> int:
        table = Table(promotion())

        def arrive(first: str, count: int) -> None:
            for number in range(count):
                table.arrive(1, **{f"{first}{number}": number * 7919 % 100_003})

        def arrive_and_choose() -> None:
            for number in range(50):
                table.arrive(1, **{f"n{number}": number * 7919 % 100_003})
                table.choose()

        return work(lambda: arrive("t", entered), arrive_and_choose)

    # Work in proportion to the trials would make it 100 times as much.
    assert steps_for_50(10_000) < 3 * steps_for_50(100)
