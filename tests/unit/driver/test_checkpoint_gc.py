"""Which checkpoints live: what is named is never deleted, what nothing needs is."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench import Bench, Obedient
from hypothesis import given, strategies as st
from simulation import simulate
from waiting import eventually

from mqtune.checkpoints import DirectoryStore, open_store
from mqtune.core.errors import ConfigurationError, StoreUnavailable, UserCodeFailed
from mqtune.core.events import AttemptStarted, CheckpointsDropped
from mqtune.core.objective import Mode
from mqtune.core.trial import (
    Action,
    AttemptEnd,
    CheckpointId,
    Decision,
    Report,
    SavedCheckpoint,
    Trial,
    TrialId,
    TrialStatus,
    checkpoint_id,
    is_in_memory,
)
from mqtune.driver import LOOK_APART_S, MOST_GATHERED, Retention
from mqtune.schedulers import Resume

Checkpoints = dict[CheckpointId, SavedCheckpoint]

SCORES = st.floats() | st.integers() | st.none() | st.booleans() | st.text(max_size=2)

MODES: tuple[Mode, ...] = ("min", "max")

RULES = st.builds(Retention, st.none() | st.integers(1, 4), st.integers(0, 4), st.just("loss"), st.sampled_from(MODES))

SAVED = st.lists(st.tuples(SCORES, st.booleans()), max_size=15)


def id_of(number: int, *, in_memory: bool = False) -> CheckpointId:
    return checkpoint_id("1", 1, number, in_memory=in_memory)


def saved_of(*scores: Any, in_memory: tuple[int, ...] = ()) -> Checkpoints:
    ids = [id_of(number, in_memory=number in in_memory) for number in range(1, len(scores) + 1)]
    return {id_: SavedCheckpoint(id_, 0.0, {"loss": score}) for id_, score in zip(ids, scores, strict=True)}


def made_of(saved: list[tuple[Any, bool]]) -> Checkpoints:
    dicts = tuple(number for number, (_, in_memory) in enumerate(saved, 1) if in_memory)
    return saved_of(*(score for score, _ in saved), in_memory=dicts)


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
    assert kept_by(rule.of("loss", mode), saved_of(*scores)) == left
    by_its_own = Retention(rule.keep_last, rule.keep_best, "loss", mode).of("accuracy", "max")
    assert kept_by(by_its_own, saved_of(*scores)) == left
    with pytest.raises(ConfigurationError, match=r"call of\("):
        Retention().to_delete(saved_of(1, 2, 3))


@given(RULES, SAVED, st.integers(0, 15))
def test_the_newest_is_kept_whatever_the_rule(rule: Retention, saved: list[tuple[Any, bool]], pins: int) -> None:
    checkpoints = made_of(saved)
    pinned = list(checkpoints)[:pins:2]

    gone = rule.to_delete(checkpoints, pinned)

    assert gone == [id_ for id_ in checkpoints if id_ in gone]
    assert not {*gone} & {*pinned, *list(checkpoints)[-1:]}
    dicts = [id_ for id_ in checkpoints if is_in_memory(id_) and id_ not in gone and id_ not in pinned]
    assert dicts in ([], list(checkpoints)[-1:])


@given(RULES, SAVED, st.sets(st.integers(0, 14)))
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


def save(bench: Bench, trial: str, loss: float, *, after_s: float = LOOK_APART_S, **others: float) -> CheckpointId:
    """Report a loss, and other metrics, with a folder as the checkpoint; usually when it is time to look what it replaces."""
    store = bench.store
    assert store is not None
    bench.clock.now += after_s
    name = bench.new_checkpoint(trial, in_memory=False)
    folder = store.staging()
    (folder / "weights").write_text(name)
    store.save(name, folder, {})
    bench.report(trial, loss, checkpoint=name, **others)
    return name


def save_dict(bench: Bench, trial: str, loss: float, *, after_s: float = LOOK_APART_S) -> CheckpointId:
    bench.clock.now += after_s
    name = bench.new_checkpoint(trial)
    bench.worker.put_checkpoint(bench.claims[trial], name, b"state")
    bench.report(trial, loss, checkpoint=name)
    return name


def dropped(bench: Bench) -> list[str]:
    return [name for event in bench.of(CheckpointsDropped) for name in event.checkpoints]


def test_the_last_and_the_best_of_a_running_trial_are_kept_and_the_rest_is_deleted(
    begin: Begin, store: DirectoryStore
) -> None:
    bench = begin()

    names = [save(bench, ONE, loss) for loss in (3.0, 1.0, 2.0, 5.0)]

    kept = [names[1], names[3]]
    assert list(bench.trial().checkpoints) == kept
    assert dropped(bench) == [names[0], names[2]]
    eventually(lambda: store.ids() == sorted(kept))


@pytest.mark.parametrize("delete", [False, True])
def test_what_an_attempt_began_with_is_kept_until_it_has_ended(begin: Begin, delete: bool) -> None:
    """It may be lost before it saves one of its own, and then begins there again."""
    bench = begin(retention=Retention(keep_last=1, keep_best=0), max_failures=3, delete_checkpoints=delete)
    save(bench, ONE, 0.1)
    donor = save(bench, TWO, 3.0)
    bench.hand.add({}, source=TWO)
    bench.start(THREE)
    bench.backend.slots = 3
    newer = save(bench, TWO, 2.0)
    bench.hand.trial(TWO).stop()
    bench.end(TWO)
    # Also where a trial that was stopped loses its own.
    left = [] if delete else [newer]

    assert list(bench.trial(TWO).checkpoints) == [donor, *left]
    assert bench.lose(THREE).trial(THREE).attempt.checkpoint == donor
    bench.start(THREE)
    own = save(bench, THREE, 1.0)
    assert list(bench.trial(TWO).checkpoints) == [donor, *left]
    bench.hand.trial(THREE).complete()
    bench.end(THREE)
    assert list(bench.trial(TWO).checkpoints) == left
    assert list(bench.trial(THREE).checkpoints) == ([] if delete else [own])


def test_a_completed_trial_keeps_its_last_and_best_and_no_dicts(begin: Begin) -> None:
    bench = begin()
    best = save_dict(bench, TWO, 0.5)
    folder, in_redis = save(bench, ONE, 3.0), save_dict(bench, ONE, 2.0)

    bench.end(ONE)

    assert list(bench.trial(ONE).checkpoints) == [folder]
    assert bench.worker.checkpoint(in_redis) is None
    bench.end(TWO)
    assert bench.worker.checkpoint(best) == b"state", "the best trial's stays"


#: What is said of it -> whether a completed, a stopped, a released, an abandoned and the best trial keep theirs.
KEPT: dict[Any, tuple[bool, ...]] = {
    False: (True, True, True, True, True),
    "stopped": (True, False, False, False, True),
    True: (False, False, False, False, True),
    "all": (False, False, False, False, False),
}


@pytest.mark.parametrize(("delete", "kept"), KEPT.items(), ids=map(str, KEPT))
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

    assert [bench.trial(trial).status.name for trial in names] == [
        "COMPLETED",
        "EARLY_STOPPED",
        "EARLY_STOPPED",
        "ABANDONED",
        "EARLY_STOPPED",
    ]
    assert tuple(store.exists(name) for name in names.values()) == kept
    assert tuple(bool(bench.trial(trial).checkpoints) for trial in names) == kept


# What reports replace.


def save_dicts(bench: Bench, trial: str, count: int) -> list[CheckpointId]:
    """Report so many dicts; the first when it is time to look what it replaces, the others at once."""
    first = save_dict(bench, trial, 3.0)
    return [first, *(save_dict(bench, trial, 3.0, after_s=0.0) for _ in range(count - 1))]


def dropped_together(bench: Bench) -> list[list[str]]:
    return [event.checkpoints for event in bench.of(CheckpointsDropped)]


def test_what_reports_of_several_trials_replace_is_dropped_in_one_event_a_little_later(
    begin: Begin,
) -> None:
    bench = begin()
    ones, twos = save_dicts(bench, ONE, 3), save_dicts(bench, TWO, 3)
    assert dropped(bench) == [*ones[:2]], "the second trial began when it was time"

    bench.clock.now += LOOK_APART_S / 2
    assert dropped(bench.step()) == ones[:2]
    bench.clock.now += LOOK_APART_S / 2
    bench.step()

    assert dropped_together(bench) == [ones[:2], twos[:2]]
    assert bench.worker.checkpoints() == {ones[2], twos[2]}


def test_however_fast_dicts_come_few_more_are_in_redis_than_are_needed(begin: Begin) -> None:
    bench = begin()
    held = []

    for _ in range(3 * MOST_GATHERED):
        save_dict(bench, ONE, 3.0, after_s=0.0)
        held.append(len(bench.worker.checkpoints()))

    assert max(held) == MOST_GATHERED
    assert list(map(len, dropped_together(bench))) == [MOST_GATHERED] * 2


def test_dicts_of_one_batch_of_reports_are_dropped_before_it_is_over(begin: Begin) -> None:
    bench = begin()
    bench.is_away = True
    names = [save_dict(bench, ONE, 3.0, after_s=0.0) for _ in range(2 * MOST_GATHERED)]
    looks: list[int] = []
    bench.driver.listen_to_reports(lambda trial, _: looks.append(len(trial.checkpoints)))

    bench.is_away = False
    bench.step()

    assert max(looks) == MOST_GATHERED + 1
    assert bench.worker.checkpoints() == {names[-1]}


def test_what_is_named_before_it_is_dropped_stays(begin: Begin) -> None:
    bench = begin()
    one, two, three, newest = save_dicts(bench, ONE, 4)
    fork = bench.hand.add({}, checkpoint=two)

    bench.clock.now += LOOK_APART_S
    bench.step()

    assert dropped(bench) == [one, three]
    assert list(bench.trial(ONE).checkpoints) == [two, newest]
    assert fork.attempt.checkpoint == two
    assert bench.worker.checkpoint(two) == b"state"


def test_a_scheduler_may_exploit_what_the_same_batch_replaces(begin: Begin) -> None:
    bench = begin(scheduler=copying)
    bench.is_away = True
    one, named = save_dicts(bench, ONE, 2)
    bench.report(TWO, 9.0)
    newest = save_dicts(bench, ONE, MOST_GATHERED)[-1]

    bench.is_away = False
    bench.step()

    assert list(bench.trial(ONE).checkpoints) == [named, newest]
    assert one in dropped(bench)


def test_a_folder_that_a_dict_replaces_goes_with_the_rest(begin: Begin) -> None:
    bench = begin(retention=Retention(keep_last=1, keep_best=0))
    first = save(bench, ONE, 3.0)
    in_redis = save_dict(bench, ONE, 3.0, after_s=0.0)
    second = save(bench, ONE, 3.0, after_s=0.0)
    assert dropped(bench) == []

    bench.clock.now += LOOK_APART_S
    bench.step()

    assert sorted(dropped(bench)) == sorted([first, in_redis])
    assert list(bench.trial(ONE).checkpoints) == [second]


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_driver_that_ends_drops_what_has_gathered_and_the_next_one_where_it_was_only_closed(
    begin: Begin, is_closed: bool
) -> None:
    """Closing drops nothing: its Redis may be away."""
    bench = begin()
    *old, newest = save_dicts(bench, ONE, 4)
    if is_closed:
        bench.driver.close()
        assert dropped(bench) == []
        bench.begin()
    else:
        bench.driver.end("interrupted", "Ctrl-C")

    assert dropped_together(bench) == [old]
    assert bench.worker.checkpoints() == {newest}


def test_by_hand_what_has_gathered_is_deleted_too_and_only_once(begin: Begin) -> None:
    bench = begin()
    *old, newest = save_dicts(bench, ONE, 4)

    assert bench.hand.trial(ONE).delete_checkpoints(even_best=True) == old

    bench.driver.close()
    assert dropped_together(bench) == [old]
    assert bench.worker.checkpoints() == {newest}


def test_a_driver_whose_scheduler_has_failed_drops_nothing_that_the_next_one_decides_on(
    begin: Begin,
) -> None:
    class Failing(Obedient):
        def on_report(self, trial: Trial, report: Report) -> Decision:
            if report.metrics["loss"] > 5:
                raise ValueError("too much")
            return super().on_report(trial, report)

    bench = begin(scheduler=Failing)
    names = save_dicts(bench, ONE, 3)
    with pytest.raises(UserCodeFailed, match="too much"):
        save_dict(bench, ONE, 9.0, after_s=0.0)

    bench.driver.end("failed", "an error")
    bench.driver.close()

    assert dropped(bench) == []
    assert list(bench.trial(ONE).checkpoints)[:3] == names


def test_no_drop_stands_at_a_report_that_is_in_hand(begin: Begin) -> None:
    """It would count as acted on, and not be handed out again."""
    bench = begin()
    *old, newest = save_dicts(bench, ONE, 3)
    bench.is_away = True
    save_dict(bench, ONE, 2.0)

    in_hand = bench.driver.next_report(0)

    assert in_hand is not None
    assert dropped_together(bench) == [old], "before it was handed out"
    bench.driver.close()
    assert dropped_together(bench) == [old]
    bench.begin()
    assert dropped_together(bench)[1:] == [[newest]]
    bench.is_away = False
    assert bench.step().trial(ONE).reports == 4


def test_while_nothing_comes_what_has_gathered_goes_all_the_same() -> None:
    """The wait for news ends for it."""

    def reports(config: dict[str, Any]) -> list[tuple[float, dict[str, Any]]]:
        return [(seconds, {"loss": 1.0}) for seconds in (1.0, 1.0, 1.0, 1.0, 3_600.0)]

    simulation = simulate(reports, trials=1, slots=1, checkpoints=True)

    drops = [event for event in simulation.events() if isinstance(event, CheckpointsDropped)]
    began = next(event.at for event in simulation.events() if isinstance(event, AttemptStarted))
    assert [len(event.checkpoints) for event in drops[:-1]] == [3]
    assert drops[0].at - began == pytest.approx(1.0 + LOOK_APART_S)


# By hand.


def test_a_trials_checkpoints_are_deleted_by_hand_and_the_best_ones_only_if_that_is_asked_for(
    begin: Begin, store: DirectoryStore
) -> None:
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


def test_by_hand_what_a_fork_began_with_and_what_a_trial_goes_on_from_stays_unless_that_is_asked_for(
    begin: Begin,
) -> None:
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


def test_the_trials_on_the_pareto_front_keep_theirs_and_lose_them_with_their_place(begin: Begin) -> None:
    bench = begin(delete_checkpoints=True, metric=["loss", "speed"], mode=["min", "max"])
    bench.hand.add({})
    first, second = save(bench, ONE, 1.0, speed=1.0), save(bench, TWO, 2.0, speed=2.0)
    bench.end(ONE)
    bench.end(TWO)
    assert [list(bench.trial(each).checkpoints) for each in (ONE, TWO)] == [[first], [second]]
    with pytest.raises(ConfigurationError, match=r"trial 0002 is the best so far.*even_best=True"):
        bench.hand.trial(TWO).delete_checkpoints()

    bench.start(THREE)
    third = save(bench, THREE, 1.5, speed=3.0)
    assert list(bench.trial(TWO).checkpoints) == [second], "it may come off the front again"
    bench.end(THREE)

    assert [list(bench.trial(each).checkpoints) for each in (ONE, TWO, THREE)] == [[first], [], [third]]


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


def copying() -> Obedient:
    """Pauses the second trial at its first report, for a copy of the first one."""
    scheduler = Obedient()
    scheduler.decisions[TWO, 1] = Decision(Action.PAUSE, "copies 0001", TrialId(ONE))
    return scheduler


def copied(bench: Bench) -> None:
    bench.report(TWO, 9.0)


def restarted(bench: Bench) -> None:
    bench.hand.trial(TWO).restart(source=ONE)


def exploited(bench: Bench) -> None:
    bench.hand.trial(TWO).pause()
    bench.scheduler.choices.append(Resume(TrialId(TWO), "exploit", {"lr": 0.5, "depth": 3}, TrialId(ONE)))
    bench.end(TWO)
    bench.start(TWO)


@pytest.mark.parametrize("takes_over", [False, True])
@pytest.mark.parametrize("by", [copied, restarted, exploited])
def test_what_a_trial_is_to_go_on_from_is_kept_although_its_source_saves_others(
    begin: Begin, store: DirectoryStore, by: Callable[[Bench], None], takes_over: bool
) -> None:
    """In Ray Tune the checkpoint that population based training copies may be deleted by then."""
    bench = begin(scheduler=copying if by is copied else Obedient, retention=Retention(keep_last=1, keep_best=0))
    named = save(bench, ONE, 3.0)
    by(bench)
    if takes_over:
        bench.begin()
    newer = save(bench, ONE, 2.0)
    if by is not exploited:
        bench.end(TWO)
    assert list(bench.trial(ONE).checkpoints) == [named, newer]
    if by is copied:
        bench.hand.trial(TWO).resume()
        save(bench, ONE, 1.0)
        assert named not in bench.trial(ONE).checkpoints
    else:
        assert bench.trial(TWO).attempt.checkpoint == named
        assert store.exists(named)


def test_a_later_driver_deletes_what_the_earlier_one_gave_up_and_did_not_come_to_delete(
    begin: Begin, store: DirectoryStore
) -> None:
    bench = begin(retention=Retention(keep_last=1, keep_best=0))
    delete, store.delete = store.delete, lambda _: None  # type: ignore[method-assign, misc]
    names = [save(bench, ONE, loss) for loss in (3.0, 2.0)]
    bench.driver.close()
    store.delete = delete  # type: ignore[method-assign]
    assert store.ids() == names

    bench.begin()
    bench.driver.close()

    assert store.ids() == names[-1:]


@pytest.mark.parametrize(
    ("end", "exit_code"), [(AttemptEnd.FAILED, 74), (AttemptEnd.STOPPED, 0)], ids=["died", "was stopped"]
)
def test_what_a_trial_saved_and_did_not_come_to_report_is_deleted_at_the_end(
    begin: Begin, store: DirectoryStore, end: AttemptEnd, exit_code: int
) -> None:
    bench = begin()
    named = save(bench, ONE, 3.0)
    unnamed = bench.new_checkpoint(ONE, in_memory=False)
    folder = store.staging()
    (folder / "weights").write_text("saved, and not reported")
    store.save(unnamed, folder, {})
    if end is AttemptEnd.STOPPED:
        bench.hand.trial(ONE).stop()

    bench.end(ONE, end, exit_code=exit_code)
    bench.driver.close()

    assert store.ids() == [named]


@pytest.mark.parametrize("at_once", [False, True])
def test_a_trial_that_has_ended_loses_its_dicts_when_it_is_the_best_no_longer(begin: Begin, at_once: bool) -> None:
    """Also one that was the best for the length of a batch: a driver that takes over reads much at once."""
    bench = begin()
    bench.is_away = at_once
    best = save_dict(bench, ONE, 0.5)
    bench.end(ONE)
    assert bench.worker.checkpoint(best) == b"state"
    bench.report(TWO, 0.4)

    bench.is_away = False
    bench.step()

    assert bench.worker.checkpoint(best) is None


def test_a_dict_whose_report_never_came_is_given_up_by_the_next_driver(begin: Begin) -> None:
    """Its process was killed in between."""
    bench = begin(max_failures=3)
    unnamed, named = bench.new_checkpoint(ONE), save_dict(bench, TWO, 0.5)
    bench.worker.put_checkpoint(bench.claims[ONE], unnamed, b"state")
    bench.begin()
    assert bench.worker.checkpoint(unnamed) == b"state", "its report may still come"
    bench.fail(ONE)

    bench.begin()

    assert bench.worker.checkpoint(unnamed) is None
    assert bench.worker.checkpoint(named) == b"state"


def test_a_dict_that_its_worker_wrote_again_after_it_was_dropped_goes_at_the_end(begin: Begin) -> None:
    """As it does after an outage, in which the journal may have lost it."""
    bench = begin()
    first, last = save_dict(bench, ONE, 0.5), save_dict(bench, ONE, 0.4)
    assert dropped(bench) == [first]
    bench.worker.put_checkpoint(bench.claims[ONE], first, b"state")
    bench.end(ONE)
    assert bench.worker.checkpoint(first) == b"state"

    bench.driver.end("finished", "")

    assert bench.worker.checkpoint(first) is None
    assert bench.worker.checkpoint(last) == b"state", "the best one stays"
