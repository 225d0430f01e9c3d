"""Populations larger than the slots, which take turns, and populations that come along in generations."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from population_table import pbt, population, starting
from scheduler_play import Play, rngs
from scheduler_table import Table

from mqtune.core.trial import CONTINUE, Action, Config, Decision, Metrics, TrialId, TrialStatus
from mqtune.schedulers.base import START, Resume, Wait

# Taking turns


def test_without_a_size_nobody_takes_turns() -> None:
    table = population()
    table.stage("a", "b", "c")

    for name, loss in {"a": 1, "b": 2, "c": 1.5}.items():
        assert table.report(name, 1, loss) is CONTINUE
    assert table.report("a", 2, 1) is CONTINUE
    assert table.choose() == START


def test_a_member_pauses_at_its_milestone_while_others_have_not_begun() -> None:
    table = population(population_size=3)
    table.stage("a")

    assert table.report("a", 1, 1) is CONTINUE
    assert table.report("a", 2, 1) == Decision(Action.PAUSE, "its turn is over at 2: others wait for a slot")
    table.pause("a")
    assert table.choose() == START
    assert table.choose(can_start=False) == Resume(TrialId("a"), "its turn, from 2 on")


def test_who_has_come_least_far_is_next() -> None:
    table = population(population_size=3)
    table.stage("a")
    table.report("a", 4, 1)
    table.pause("a")
    table.stage("b")
    table.report("b", 2, 0.5)
    table.pause("b")
    table.stage("c")
    table.report("c", 2, 0.7)
    table.pause("c")

    # The population is full, so that no other starts.
    order = []
    for _ in range(3):
        order.append(table.resumed().trial)
        table.stage(order[-1])
    assert order == ["b", "c", "a"]
    assert isinstance(table.choose(), Wait)


def test_nobody_pauses_where_all_have_a_slot() -> None:
    table = population(population_size=3)
    table.stage("a", "b", "c")

    for now in (2, 4, 6):
        for name in "abc":
            assert table.report(name, now, 1, saves=False) is CONTINUE


def test_a_member_pauses_while_another_waits_in_a_queue() -> None:
    table = population(population_size=2)
    table.stage("a", "b")
    # Its worker is gone, and no slot is free.
    table.stage("b")
    table.trials["b"].status = TrialStatus.STAGED

    assert table.report("a", 2, 1).action is Action.PAUSE
    table.pause("a")
    table.trials["b"].status = TrialStatus.RUNNING
    table.stage("a")
    assert table.report("b", 2, 0) is CONTINUE


def test_nobody_waits_for_members_that_can_not_be_started() -> None:
    table = population(population_size=3)
    table.stage("a", "b")
    table.report("a", 2, 1)
    table.pause("a")
    assert table.choose(can_start=False) == Resume(TrialId("a"), "its turn, from 2 on")
    table.stage("a")

    assert table.report("b", 2, 0) is CONTINUE
    assert table.report("a", 4, 0) is CONTINUE
    # A person adds one.
    table.stage("c")
    table.end("c")
    assert table.report("b", 4, 0).action is Action.PAUSE


def test_who_is_replaced_waits_as_far_as_what_it_copies() -> None:
    table = population(population_size=3)
    table.stage("a")
    table.report("a", 6, 1)
    table.pause("a")
    table.stage("b")
    assert table.report("b", 2, 2).source == "a"
    table.pause("b")
    table.stage("c")
    table.report("c", 4, 1.5)
    table.pause("c")

    assert table.resumed() == Resume(TrialId("c"), "its turn, from 4 on")
    table.stage("c")
    assert table.resumed() == Resume(TrialId("a"), "its turn, from 6 on")
    table.stage("a")
    assert (table.resumed().trial, table.resumed().source) == ("b", "a")


def test_the_first_of_a_population_copy_those_that_begin_after_them() -> None:
    table = population(population_size=2)
    table.stage("a")
    table.report("a", 2, 5)
    table.pause("a")
    table.stage("b")
    table.report("b", 2, 1)
    table.pause("b")
    table.stage("a")

    assert table.report("a", 4, 5, sequence=1).reason == "among the worst 1 of 2 at 4: goes on from trial b"


def test_a_member_that_ended_makes_room_for_another() -> None:
    table = population(population_size=2)
    table.stage("a", "b")
    assert isinstance(table.choose(), Wait)

    table.end("a")
    assert table.choose() == START


def test_one_that_a_person_paused_takes_nobodys_place() -> None:
    table = population(population_size=2)
    table.stage("a", "b")
    table.report("a", 1, 1)
    table.pause("a")

    assert table.choose() == START
    table.stage("a")
    assert isinstance(table.choose(), Wait)


# Generations


def generations(**arguments: Any) -> Table:
    return population(**{"synchronous": True, "population_size": 4, **arguments})


def come_to(table: Table, now: int, losses: dict[str, float]) -> None:
    """Let members come to a milestone and pause there."""
    for name, loss in losses.items():
        sequence = len(table.trials[name].attempts) * 100 + now
        assert table.report(name, now, loss, sequence=sequence).action is Action.PAUSE
        table.pause(name)


def all_resumed(table: Table, *, can_start: bool = True) -> list[Resume]:
    """Resume whoever may go on, and return the choices."""
    found = []
    while isinstance(choice := table.choose(can_start=can_start), Resume):
        found.append(choice)
        table.stage(choice.trial, config=choice.config, source=choice.source)
    return found


def test_a_generation_waits_for_its_last_member() -> None:
    table = generations()
    table.stage("a", "b")
    assert table.report("a", 1, 3) is CONTINUE
    assert table.report("a", 2, 3) == Decision(Action.PAUSE, "generation 1: waits for the others at 2")
    table.pause("a")
    assert table.choose() == START
    table.stage("c", "d")
    come_to(table, 2, {"b": 1, "c": 2})

    assert isinstance(table.choose(), Wait)
    come_to(table, 2, {"d": 4})

    assert [(one.trial, one.source) for one in all_resumed(table)] == [
        ("d", "b"),
        ("b", None),
        ("c", None),
        ("a", None),
    ]


def test_all_members_of_a_generation_are_judged_by_the_same_scores() -> None:
    table = generations(quantile_fraction=0.5, resample_probability=0, perturbation_factors=(0.8,))
    table.stage("a", "b", "c", "d")
    table.trials["a"].attempt.config = {"lr": 0.1}
    table.trials["b"].attempt.config = {"lr": 0.2}
    come_to(table, 2, {"d": 4, "c": 3, "b": 2, "a": 1})

    copies = all_resumed(table)[:2]

    assert [one.trial for one in copies] == ["c", "d"]
    assert {one.reason[:41] for one in copies} == {"generation 1: among the worst 2 of 4 at 2"}
    for one in copies:
        assert one.source in ("a", "b")
        assert one.config == {"lr": pytest.approx({"a": 0.08, "b": 0.16}[one.source])}


def test_the_next_generation_ends_at_the_milestone_behind_the_furthest() -> None:
    table = generations(population_size=2)
    table.stage("a", "b")
    come_to(table, 2, {"a": 1})
    come_to(table, 5, {"b": 2})
    assert len(all_resumed(table)) == 2

    assert table.report("a", 4, 1, sequence=201) is CONTINUE
    assert table.report("a", 6, 1, sequence=202).reason == "generation 2: waits for the others at 6"


def test_a_copy_is_judged_with_the_others_at_the_next_milestone() -> None:
    table = generations(population_size=2, interval=1)
    table.stage("a", "b")
    for now in range(1, 4):
        come_to(table, now, {"a": 1, "b": 2})
        assert [(one.trial, one.source) for one in all_resumed(table)] == [("b", "a"), ("a", None)]


def test_a_member_that_ends_or_fails_does_not_hold_the_others_up() -> None:
    table = generations()
    table.stage("a", "b", "c", "d")
    come_to(table, 2, {"a": 1, "b": 2, "c": 3})

    table.end("d")

    assert [(one.trial, one.source) for one in all_resumed(table)] == [("c", "a"), ("a", None), ("b", None)]
    come_to(table, 4, {"a": 1, "b": 2})
    table.end("b", TrialStatus.ABANDONED)
    table.end("c", TrialStatus.COMPLETED)
    assert [one.trial for one in all_resumed(table)] == ["a"]


def test_those_that_begin_when_a_population_is_full_are_the_next_one() -> None:
    table = generations(population_size=2)
    table.stage("a", "b")
    assert isinstance(table.choose(), Wait)
    come_to(table, 2, {"a": 1, "b": 2})
    table.end("b")
    assert len(all_resumed(table)) == 1

    assert table.choose() == START
    table.stage("c")
    come_to(table, 4, {"a": 1})
    # a is all of its population, and c waits for another one.
    assert [one.trial for one in all_resumed(table)] == ["a"]
    come_to(table, 2, {"c": 1})
    table.end("a")
    assert table.choose() == START
    table.stage("d")
    come_to(table, 2, {"d": 2})
    assert [(one.trial, one.source) for one in all_resumed(table)] == [("d", "c"), ("c", None)]


def test_a_population_that_nobody_can_join_goes_on_as_it_is() -> None:
    table = generations(population_size=9)
    table.stage("a", "b", "c")
    come_to(table, 2, {"a": 1, "b": 2, "c": 3})
    assert table.choose() == START

    assert [(one.trial, one.source) for one in all_resumed(table, can_start=False)] == [
        ("c", "a"),
        ("a", None),
        ("b", None),
    ]
    come_to(table, 4, {"a": 1, "b": 2, "c": 3})
    assert len(all_resumed(table)) == 3


def test_a_generation_goes_on_without_one_that_a_person_has_paused() -> None:
    table = generations(population_size=3)
    table.stage("a", "b", "c")
    table.report("a", 1, 1)
    table.pause("a")
    come_to(table, 2, {"b": 1, "c": 2})
    assert [(one.trial, one.source) for one in all_resumed(table)] == [("c", "b"), ("b", None)]

    table.stage("a")
    come_to(table, 4, {"b": 1, "c": 2})
    assert not isinstance(table.choose(), Resume)
    come_to(table, 4, {"a": 0})
    assert [(one.trial, one.source) for one in all_resumed(table)] == [("c", "a"), ("a", None), ("b", None)]


def test_one_that_a_person_resumes_scores_again() -> None:
    table = generations(population_size=2)
    table.stage("a", "b")
    come_to(table, 2, {"a": 1})
    table.stage("a")
    come_to(table, 2, {"b": 2})

    assert isinstance(table.choose(), Wait)
    come_to(table, 3, {"a": 3})
    assert [(one.trial, one.source) for one in all_resumed(table)] == [("a", "b"), ("b", None)]


def test_without_checkpoints_all_go_on_as_they_are() -> None:
    table = generations(population_size=2)
    table.stage("a", "b")
    for name, loss in {"a": 1, "b": 2}.items():
        table.report(name, 2, loss, saves=False)
        table.pause(name)

    assert [(one.trial, one.source) for one in all_resumed(table)] == [("a", None), ("b", None)]


# Games


@given(rng=rngs, size=st.integers(2, 8))
@settings(max_examples=40)
def test_in_one_slot_nobody_gets_two_intervals_ahead(rng: random.Random, size: int) -> None:
    def even(config: Config, now: int) -> Metrics | None:
        return None if now > 12 else {"loss": config["lr"]}

    play = Play(pbt(population_size=size), even, slots=1, trials=size, rng=rng, configs=starting, keeps_calls=True)
    play.run()

    reached = dict.fromkeys(play.known, 0)
    for call in play.calls:
        if call.report is not None and call.answer is not None and call.report.metrics["training_iteration"] < 12:
            reached[call.trial.id] = call.report.metrics["training_iteration"]
            if call.answer.source is not None:
                # It is as far as what it is to copy.
                reached[call.trial.id] = reached[call.answer.source]
            assert max(reached.values()) - min(reached.values()) <= 2


@given(rng=rngs, slots=st.integers(1, 9), fraction=st.sampled_from([0.2, 0.25, 0.5]))
@settings(max_examples=30)
def test_what_a_generation_decides_does_not_depend_on_the_slots(
    rng: random.Random, slots: int, fraction: float
) -> None:
    def noisy(config: Config, now: int) -> Metrics | None:
        return None if now > 12 else {"loss": random.Random(f"{config['lr']} {now}").random()}

    def configs(slots: int) -> list[list[Config]]:
        scheduler = pbt(population_size=8, synchronous=True, quantile_fraction=fraction)
        play = Play(scheduler, noisy, slots=slots, trials=8, rng=rng, configs=starting).run()
        play.check_end()
        return [play.histories[name] for name in sorted(play.histories)]

    assert configs(slots) == configs(8)
