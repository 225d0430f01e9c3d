from __future__ import annotations

import math
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import CheckpointId, SavedCheckpoint, checkpoint_id, is_in_memory
from mqtune.driver.retention import References, Retention

Checkpoints = dict[CheckpointId, SavedCheckpoint]
SCORES = st.floats() | st.integers() | st.none() | st.booleans() | st.text(max_size=2)
MODES: st.SearchStrategy[Literal["min", "max"]] = st.sampled_from(["min", "max"])
RULES = st.builds(Retention, st.none() | st.integers(1, 4), st.integers(0, 4), st.just("loss"), MODES)
NOTHING = CheckpointId("")
TRIALS = st.lists(st.tuples(SCORES, st.booleans()), max_size=15)


def id_of(number: int, *, in_memory: bool = False) -> CheckpointId:
    return checkpoint_id("1", 1, number, in_memory=in_memory)


def trial(*scores: Any, in_memory: tuple[int, ...] = ()) -> Checkpoints:
    ids = [id_of(number, in_memory=number in in_memory) for number in range(1, len(scores) + 1)]
    return {id_: SavedCheckpoint(id_, 0.0, {"loss": score}) for id_, score in zip(ids, scores, strict=True)}


def made_of(saved: list[tuple[Any, bool]]) -> Checkpoints:
    dicts = tuple(number for number, (_, in_memory) in enumerate(saved, 1) if in_memory)
    return trial(*(score for score, _ in saved), in_memory=dicts)


def kept(rule: Retention, checkpoints: Checkpoints, pinned: tuple[CheckpointId, ...] = ()) -> list[int]:
    gone = rule.to_delete(checkpoints, pinned)
    return [int(id_.rpartition("-")[2]) for id_ in checkpoints if id_ not in gone]


def test_the_newest_and_the_best_are_kept() -> None:
    rule = Retention().of("loss", "min")

    assert kept(rule, trial(3, 1, 2, 5)) == [2, 4]
    assert kept(rule.of("loss", "max"), trial(3, 1, 2, 5)) == [2, 4]
    assert kept(Retention().of("loss", "max"), trial(3, 9, 2, 5)) == [2, 4]
    assert kept(Retention(2, 2).of("loss", "min"), trial(1, 9, 2, 8, 7, 6)) == [1, 3, 5, 6]
    assert kept(Retention(keep_last=3, keep_best=0), trial(1, 2, 3, 4, 5)) == [3, 4, 5]
    assert kept(Retention(keep_last=None), trial(1, 2, 3)) == [1, 2, 3]


def test_a_score_of_its_own_counts_instead_of_the_experiments() -> None:
    rule = Retention(score="accuracy", mode="max").of("loss", "min")
    checkpoints = {
        id_of(n): SavedCheckpoint(id_of(n), 0.0, {"loss": n, "accuracy": accuracy})
        for n, accuracy in enumerate([0.1, 0.9, 0.2], 1)
    }

    assert kept(rule, checkpoints) == [2, 3]


def test_of_equal_scores_the_newer_is_kept() -> None:
    assert kept(Retention().of("loss", "min"), trial(1, 1, 2, 2)) == [2, 4]


@pytest.mark.parametrize("nothing", [math.nan, None, "low", True, [1]])
def test_what_has_no_score_is_never_best(nothing: Any) -> None:
    assert kept(Retention().of("loss", "min"), trial(nothing, 7, nothing, nothing)) == [2, 4]
    assert kept(Retention().of("loss", "max"), trial(nothing, 7, nothing, nothing)) == [2, 4]


def test_when_nothing_has_a_score_the_newest_alone_is_kept() -> None:
    assert kept(Retention(1, 3).of("loss", "min"), trial(math.nan, math.nan, math.nan)) == [3]


def test_what_is_pinned_stays_until_it_is_not() -> None:
    rule, checkpoints, references = Retention().of("loss", "min"), trial(3, 1, 2, 5), References()
    references.hold("fork", id_of(1))

    assert rule.to_delete(checkpoints, references) == [id_of(3)]
    assert references.hold("fork", NOTHING) == id_of(1)
    assert rule.to_delete(checkpoints, references) == [id_of(1), id_of(3)]


def test_a_dict_is_kept_while_it_is_the_newest() -> None:
    rule = Retention(3, 3).of("loss", "min")

    assert kept(rule, trial(1, 2, 3, in_memory=(1, 2, 3))) == [3]
    assert kept(rule, trial(1, 2, 3, in_memory=(2,))) == [1, 3]
    assert kept(rule, trial(1, 2, 3, in_memory=(3,))) == [1, 2, 3]
    assert kept(rule, trial(1, 2, 3, in_memory=(1, 2)), (id_of(1, in_memory=True),)) == [1, 3]
    assert kept(Retention(keep_last=None), trial(1, 2, 3, in_memory=(1,))) == [2, 3]


def test_huge_numbers_are_scores_too() -> None:
    assert kept(Retention().of("loss", "max"), trial(10**400, 5, 1)) == [1, 3]
    assert kept(Retention().of("loss", "min"), trial(-(10**400), 5, 1)) == [1, 3]


@given(RULES, TRIALS, st.integers(0, 15))
def test_the_newest_is_kept_whatever_the_rule(rule: Retention, saved: list[tuple[Any, bool]], pins: int) -> None:
    checkpoints = made_of(saved)
    pinned = list(checkpoints)[:pins:2]

    gone = rule.to_delete(checkpoints, pinned)

    assert gone == [id_ for id_ in checkpoints if id_ in gone]
    assert not {*gone} & {*pinned, *list(checkpoints)[-1:]}
    dicts = [id_ for id_ in checkpoints if is_in_memory(id_) and id_ not in gone and id_ not in pinned]
    assert dicts in ([], list(checkpoints)[-1:])


@given(RULES, TRIALS, st.sets(st.integers(0, 14)))
def test_it_makes_no_difference_how_often_the_rule_is_asked(
    rule: Retention, saved: list[tuple[Any, bool]], asked_at: set[int]
) -> None:
    there: Checkpoints = {}
    for number, (id_, checkpoint) in enumerate(made_of(saved).items()):
        there[id_] = checkpoint
        if number in asked_at:
            for gone in rule.to_delete(there):
                del there[gone]
    for gone in rule.to_delete(there):
        del there[gone]

    everything = made_of(saved)
    assert list(there) == [id_ for id_ in everything if id_ not in rule.to_delete(everything)]
    assert rule.to_delete(there) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"keep_last": 0}, "keep_last=0"),
        ({"keep_last": -1}, "keep_last=-1"),
        ({"keep_last": 1.0}, r"keep_last=1\.0"),
        ({"keep_last": True}, "keep_last=True"),
        ({"keep_best": -1}, "keep_best=-1"),
        ({"keep_best": None}, "keep_best=None"),
        ({"score": "loss"}, "both"),
        ({"mode": "min"}, "both"),
        ({"score": "loss", "mode": "least"}, "'least'"),
        ({"score": 3, "mode": "min"}, "score=3"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Retention(**arguments)


def test_a_rule_that_does_not_know_the_metric_says_so() -> None:
    with pytest.raises(ConfigurationError, match=r"call of\("):
        Retention().to_delete(trial(1, 2, 3))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4))))
def test_what_is_named_is_what_the_holders_hold(steps: list[tuple[int, int]]) -> None:
    references, held = References(), dict[int, CheckpointId]()

    for holder, number in steps:
        named = set(held.values())
        freed = references.hold(holder, id_of(number) if number else NOTHING)
        held.pop(holder, None)
        if number:
            held[holder] = id_of(number)
        assert {freed} - {""} == named - set(held.values())
        assert {id_of(n) for n in range(1, 5) if id_of(n) in references} == set(held.values())
        assert NOTHING not in references
