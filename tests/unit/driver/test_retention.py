from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mqtune.core.errors import ConfigurationError
from mqtune.core.objective import Mode
from mqtune.core.trial import CheckpointId, SavedCheckpoint, checkpoint_id, is_in_memory
from mqtune.driver import References, Retention

Checkpoints = dict[CheckpointId, SavedCheckpoint]
SCORES = st.floats() | st.integers() | st.none() | st.booleans() | st.text(max_size=2)
MODES: tuple[Mode, ...] = ("min", "max")
RULES = st.builds(Retention, st.none() | st.integers(1, 4), st.integers(0, 4), st.just("loss"), st.sampled_from(MODES))
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


@pytest.mark.parametrize(
    ("rule", "mode", "scores", "left"),
    [
        (Retention(), "min", (3, 1, 2, 5), [2, 4]),
        (Retention(), "max", (3, 9, 2, 5), [2, 4]),
        (Retention(2, 2), "min", (1, 9, 2, 8, 7, 6), [1, 3, 5, 6]),
        (Retention(keep_last=3, keep_best=0), "min", (1, 2, 3, 4, 5), [3, 4, 5]),
        (Retention(keep_last=None), "min", (1, 2, 3), [1, 2, 3]),
        # Of equal scores the first.
        (Retention(), "min", (1, 1, 2, 2), [1, 4]),
        (Retention(1, 2), "max", (1, 9, 9, 9, 1), [2, 3, 5]),
        # What has no score is never best.
        *((Retention(), mode, (no, 7, no, no), [2, 4]) for no in (math.nan, None, "low", True, [1]) for mode in MODES),
        (Retention(1, 3), "min", (math.nan, math.nan, math.nan), [3]),
        # Huge numbers are scores too.
        (Retention(), "max", (10**400, 5, 1), [1, 3]),
        (Retention(), "min", (-(10**400), 5, 1), [1, 3]),
    ],
)
def test_the_newest_and_the_best_are_kept(
    rule: Retention, mode: Mode, scores: tuple[Any, ...], left: list[int]
) -> None:
    assert kept(rule.of("loss", mode), trial(*scores)) == left
    by_its_own = Retention(rule.keep_last, rule.keep_best, "loss", mode).of("accuracy", "max")
    assert kept(by_its_own, trial(*scores)) == left
    with pytest.raises(ConfigurationError, match=r"call of\("):
        Retention().to_delete(trial(1, 2, 3))


@pytest.mark.parametrize(
    ("rule", "dicts", "pinned", "left"),
    [
        (Retention(3, 3), (1, 2, 3), (), [3]),
        (Retention(3, 3), (2,), (), [1, 3]),
        (Retention(3, 3), (3,), (), [1, 2, 3]),
        (Retention(3, 3), (1, 2), (1,), [1, 3]),
        (Retention(keep_last=None), (1,), (), [2, 3]),
    ],
)
def test_a_dict_is_kept_while_it_is_the_newest(
    rule: Retention, dicts: tuple[int, ...], pinned: tuple[int, ...], left: list[int]
) -> None:
    names = tuple(id_of(number, in_memory=True) for number in pinned)
    assert kept(rule.of("loss", "min"), trial(1, 2, 3, in_memory=dicts), names) == left


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
        ({"keep_last": 1.0}, r"keep_last=1\.0"),
        ({"keep_best": -1}, "keep_best=-1"),
        ({"keep_best": None}, "keep_best=None"),
        ({"score": "loss"}, "both"),
        ({"score": "loss", "mode": "least"}, "'least'"),
        ({"score": 3, "mode": "min"}, "score=3"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Retention(**arguments)


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
