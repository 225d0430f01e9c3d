"""Checkpoints with a use are never deleted, and all others are."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench import Bench, writer_of
from hypothesis import given, strategies as st
from waiting import eventually

import mqtune
from mqtune.checkpoints import DirectoryStore, open_store
from mqtune.core.errors import ConfigurationError, StoreUnavailable
from mqtune.core.events import CheckpointsDropped
from mqtune.core.objective import Mode
from mqtune.core.trial import AttemptEnd, CheckpointId, SavedCheckpoint, TrialStatus, checkpoint_id, is_in_memory
from mqtune.driver import LOOK_APART_S, Retention

Checkpoints = dict[CheckpointId, SavedCheckpoint]

SCORES = st.floats() | st.integers() | st.none() | st.booleans() | st.text(max_size=2)

MODES: tuple[Mode, ...] = ("min", "max")

RULES = st.builds(Retention, st.none() | st.integers(1, 4), st.integers(0, 4), st.just("loss"), st.sampled_from(MODES))

SAVED = st.lists(st.tuples(SCORES, st.booleans()), max_size=15)


def saved_of(*scores: Any, in_memory: tuple[int, ...] = ()) -> Checkpoints:
    ids = [checkpoint_id("1", 1, number, in_memory=number in in_memory) for number in range(1, len(scores) + 1)]
    return {id_: SavedCheckpoint(id_, 0.0, {"loss": score}) for id_, score in zip(ids, scores, strict=True)}


def kept_by(rule: Retention, checkpoints: Checkpoints, pinned: tuple[CheckpointId, ...] = ()) -> list[int]:
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
        # A checkpoint without a score is never best.
        *((Retention(), mode, (no, 7, no, no), [2, 4]) for no in (math.nan, None, "low", True, [1]) for mode in MODES),
        (Retention(1, 3), "min", (math.nan, math.nan, math.nan), [3]),
        # Huge numbers are scores too.
        (Retention(), "max", (10**400, 5, 1), [1, 3]),
        (Retention(), "min", (-(10**400), 5, 1), [1, 3]),
    ],
)
def test_newest_and_best_are_kept(rule: Retention, mode: Mode, scores: tuple[Any, ...], left: list[int]) -> None:
    assert kept_by(rule.of("loss", mode), saved_of(*scores)) == left
    by_its_own = Retention(rule.keep_last, rule.keep_best, "loss", mode).of("accuracy", "max")
    assert kept_by(by_its_own, saved_of(*scores)) == left
    with pytest.raises(ConfigurationError, match=r"call of\("):
        Retention().to_delete(saved_of(1, 2, 3))


@given(RULES, SAVED, st.integers(0, 15))
def test_the_newest_is_kept_whatever_the_rule(rule: Retention, saved: list[tuple[Any, bool]], pins: int) -> None:
    dicts = tuple(number for number, (_, in_memory) in enumerate(saved, 1) if in_memory)
    checkpoints = saved_of(*(score for score, _ in saved), in_memory=dicts)
    pinned = list(checkpoints)[:pins:2]

    gone = rule.to_delete(checkpoints, pinned)

    assert gone == [id_ for id_ in checkpoints if id_ in gone]
    assert not {*gone} & {*pinned, *list(checkpoints)[-1:]}
    dicts = [id_ for id_ in checkpoints if is_in_memory(id_) and id_ not in gone and id_ not in pinned]
    assert dicts in ([], list(checkpoints)[-1:])


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


ONE, TWO, THREE, FOUR = "0001", "0002", "0003", "0004"

Begin = Callable[..., Bench]


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    store = open_store(str(tmp_path / "store"))
    store.create()
    assert isinstance(store, DirectoryStore)
    return store


@pytest.fixture
def begin(tmp_path: Path, store: DirectoryStore) -> Begin:
    """Begin with two running trials, and a real store."""

    def begin(**options: Any) -> Bench:
        return Bench(tmp_path, store=store, **options).step().start(ONE).start(TWO)

    return begin


def save(bench: Bench, trial: str, loss: float) -> CheckpointId:
    """Report a loss with a folder as the checkpoint, when it is time to look what it replaces."""
    store = bench.store
    assert store is not None
    bench.clock.now += LOOK_APART_S
    name = bench.new_checkpoint(trial, in_memory=False)
    folder = store.staging()
    (folder / "weights").write_text(name)
    store.save(name, folder, {})
    bench.report(trial, loss, checkpoint=name)
    return name


def dropped(bench: Bench) -> list[str]:
    return [name for event in bench.of(CheckpointsDropped) for name in event.checkpoints]


def test_what_an_attempt_began_with_is_kept_until_it_has_ended(begin: Begin) -> None:
    bench = begin(retention=Retention(keep_last=1, keep_best=0), max_failures=3, delete_checkpoints=True)
    save(bench, ONE, 0.1)
    donor = save(bench, TWO, 3.0)
    bench.hand.add({}, source=TWO)
    bench.start(THREE)
    bench.backend.slots = 3
    save(bench, TWO, 2.0)
    bench.hand.trial(TWO).stop()
    bench.end(TWO)

    assert list(bench.trial(TWO).checkpoints) == [donor]
    assert bench.lose(THREE).trial(THREE).attempt.checkpoint == donor
    bench.start(THREE)
    save(bench, THREE, 1.0)
    assert list(bench.trial(TWO).checkpoints) == [donor]
    bench.hand.trial(THREE).complete()
    bench.end(THREE)
    assert list(bench.trial(TWO).checkpoints) == []
    assert list(bench.trial(THREE).checkpoints) == []


def test_what_is_named_before_it_is_dropped_stays(begin: Begin) -> None:
    bench, names = begin(), []
    bench.clock.now += LOOK_APART_S
    for _ in range(4):
        names.append(bench.new_checkpoint(ONE))
        bench.worker.put_checkpoint(bench.claims[ONE], names[-1], b"state")
        bench.report(ONE, 3.0, checkpoint=names[-1])
    one, two, three, newest = names
    assert bench.hand.add({}, checkpoint=two).attempt.checkpoint == two

    bench.clock.now += LOOK_APART_S
    bench.step()

    assert dropped(bench) == [one, three]
    assert list(bench.trial(ONE).checkpoints) == [two, newest]
    assert bench.worker.checkpoint(two) == b"state"


@pytest.mark.parametrize(
    ("delete", "kept"),
    [
        # Whether a completed, a stopped, a released, an abandoned and the best trial keep theirs.
        (False, (True, True, True, True, True)),
        ("stopped", (True, False, False, False, True)),
        (True, (False, False, False, False, True)),
        ("all", (False, False, False, False, False)),
    ],
)
def test_who_loses_all_checkpoints_at_its_end_is_what_was_asked_for(
    tmp_path: Path, store: DirectoryStore, delete: Any, kept: tuple[bool, ...]
) -> None:
    bench = Bench(tmp_path, store=store, slots=5, max_trials=5, delete_checkpoints=delete).step()
    names = {}
    for number, loss in enumerate((2.0, 3.0, 3.5, 4.0, 1.0), 1):
        trial = f"{number:04d}"
        bench.start(trial)
        names[trial] = save(bench, trial, loss)
    bench.hand.trial("0002").stop()
    bench.hand.trial("0003").pause()
    bench.end("0003")
    assert names["0003"] in bench.trial("0003").checkpoints
    bench.hand.trial("0003").stop()
    bench.hand.trial("0004").abandon("bad")
    bench.hand.trial("0005").stop()
    for trial in ("0002", "0004", "0001", "0005"):
        bench.end(trial)

    bench.driver.close()

    stopped = "EARLY_STOPPED"
    statuses = [bench.trial(trial).status.name for trial in names]
    assert statuses == ["COMPLETED", stopped, stopped, "ABANDONED", stopped]
    assert tuple(store.exists(name) for name in names.values()) == kept
    assert tuple(bool(bench.trial(trial).checkpoints) for trial in names) == kept


def test_the_best_trials_that_have_ended_keep_their_checkpoints(tmp_path: Path, store: DirectoryStore) -> None:
    checkpoints = mqtune.Checkpoints(delete=True, keep_trials=3)
    bench = Bench(tmp_path, store=store, slots=6, max_trials=6, checkpoints=checkpoints).step()
    losses = {"0001": 3.0, "0002": math.nan, "0003": 2.0, "0004": 4.0, "0005": 0.5, "0006": 1.0}
    names = {trial: save(bench.start(trial), trial, loss) for trial, loss in losses.items()}
    bench.hand.trial("0005").abandon("bad")

    def kept_after(*ends: str) -> set[str]:
        """Return the ended trials that have their checkpoints once these have ended, too."""
        for trial in ends:
            bench.end(trial)
        trials = (bench.trial(trial) for trial in names)
        return {trial.id for trial in trials if trial.status.is_terminal and trial.checkpoints}

    # The best trial, which runs, has one of the three places.
    assert kept_after("0005", "0002", "0001", "0004") == {"0001", "0004"}
    assert kept_after("0003") == {"0001", "0003"}
    assert kept_after("0006") == {"0001", "0003", "0006"}
    bench.driver.close()
    assert {trial for trial, name in names.items() if store.exists(name)} == {"0001", "0003", "0006"}


@pytest.mark.parametrize(
    ("options", "metric", "message"),
    [
        ({"keep_trials": 0, "delete": True}, "loss", "keep_trials=0"),
        ({"keep_trials": 3}, "loss", "keep_trials=3, delete=False"),
        ({"keep_trials": 3, "delete": "all"}, "loss", "keep_trials=3, delete='all'"),
        ({"keep_trials": 3, "delete": True}, ["loss", "size"], "the Pareto front keeps its checkpoints"),
    ],
)
def test_a_number_of_best_trials_without_a_meaning_is_refused(
    options: dict[str, Any], metric: Any, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        writer_of(metric=metric, checkpoints=mqtune.Checkpoints(**options))


def test_checkpoints_are_deleted_by_hand(begin: Begin, store: DirectoryStore) -> None:
    bench = begin(retention=Retention(keep_last=None))
    others = [save(bench, TWO, loss) for loss in (0.5, 0.4)]
    names = [save(bench, ONE, loss) for loss in (3.0, 2.0)]
    bench.end(ONE)
    bench.end(TWO)

    assert bench.hand.trial(ONE).delete_checkpoints() == names
    with pytest.raises(ConfigurationError, match=r"trial 0002 is the best so far.*even_best=True"):
        bench.hand.trial(TWO).delete_checkpoints()

    assert (bench.trial(ONE).checkpoints, bench.trial(ONE).checkpoint) == ({}, "")
    assert bench.hand.trial(ONE).delete_checkpoints() == []
    assert dropped(bench) == names
    eventually(lambda: store.ids() == sorted(others))
    assert bench.hand.trial(TWO).delete_checkpoints(even_best=True) == others
    bench.driver.close()
    assert store.ids() == []


def test_by_hand_what_a_fork_or_a_paused_trial_needs_stays(begin: Begin) -> None:
    bench = begin(retention=Retention(keep_last=None))
    save(bench, TWO, 0.5)
    first, forked, newest = [save(bench, ONE, loss) for loss in (3.0, 2.5, 2.0)]
    fork = bench.hand.add({}, checkpoint=forked)
    assert bench.hand.trial(ONE).delete_checkpoints(even_paused=True) == [first]
    bench.hand.trial(ONE).pause()
    bench.end(ONE)

    assert bench.hand.trial(ONE).delete_checkpoints() == []
    assert list(bench.trial(ONE).checkpoints) == [forked, newest]
    assert fork.attempt.checkpoint == forked
    bench.hand.trial(fork).stop()
    assert bench.hand.trial(ONE).delete_checkpoints(even_paused=True) == [forked, newest]

    bench.hand.trial(ONE).resume()
    assert (bench.trial(ONE).attempt.number, bench.trial(ONE).attempt.checkpoint) == (2, "")
    bench.begin()
    assert bench.trial(ONE).checkpoints == {}


@pytest.mark.parametrize("fails", [False, True])
def test_a_store_that_is_slow_or_fails_holds_no_decision_up_and_that_it_failed_is_a_warning(
    begin: Begin, store: DirectoryStore, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    bench = begin(retention=Retention(keep_last=1, keep_best=0))
    gate: list[str] = []
    delete = store.delete

    def wait(id: CheckpointId) -> None:
        eventually(lambda: gate)
        if fails:
            raise StoreUnavailable("the disk is on fire")
        delete(id)

    store.delete = wait  # type: ignore[method-assign]
    names = [save(bench, ONE, loss) for loss in (3.0, 2.0, 1.0)]

    assert (bench.trial(ONE).reports, bench.trial(ONE).status) == (3, TrialStatus.RUNNING)
    assert store.exists(names[0])
    gate.append("open")
    bench.driver.close()
    assert store.ids() == (names if fails else names[-1:])
    assert (f"checkpoint {names[0]} could not be deleted: the disk is on fire" in caplog.text) is fails


def test_what_a_trial_saved_and_never_reported_is_deleted(begin: Begin, store: DirectoryStore) -> None:
    bench = begin()
    named = save(bench, ONE, 3.0)
    folder = store.staging()
    (folder / "weights").write_text("saved, and not reported")
    store.save(bench.new_checkpoint(ONE, in_memory=False), folder, {})

    bench.end(ONE, AttemptEnd.FAILED, exit_code=74)
    bench.driver.close()

    assert store.ids() == [named]
