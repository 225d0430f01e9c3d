"""Which checkpoints live: what is named is never deleted, what nothing needs is."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench import Bench, Obedient
from simulation import simulate
from waiting import eventually

from mqtune.checkpoints import open_store
from mqtune.checkpoints.directory import DirectoryStore
from mqtune.core.errors import ConfigurationError, StoreUnavailable, UserCodeFailed
from mqtune.core.events import AttemptStarted, CheckpointsDropped
from mqtune.core.trial import Action, AttemptEnd, CheckpointId, Decision, Report, Trial, TrialId, TrialStatus
from mqtune.driver.checkpoints import LOOK_APART_S, MOST_GATHERED
from mqtune.driver.retention import Retention
from mqtune.schedulers.base import Resume

ONE, TWO, THREE, FOUR = "0001", "0002", "0003", "0004"


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    store = open_store(str(tmp_path / "store"))
    store.create()
    assert isinstance(store, DirectoryStore)
    return store


@pytest.fixture
def begin(tmp_path: Path, store: DirectoryStore) -> Callable[..., Bench]:
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
    begin: Callable[..., Bench], store: DirectoryStore
) -> None:
    bench = begin()

    names = [save(bench, ONE, loss) for loss in (3.0, 1.0, 2.0, 5.0)]

    kept = [names[1], names[3]]
    assert list(bench.trial().checkpoints) == kept
    assert dropped(bench) == [names[0], names[2]]
    eventually(lambda: store.ids() == sorted(kept))


def test_a_deletion_is_journaled_before_anything_is_deleted(begin: Callable[..., Bench], store: DirectoryStore) -> None:
    bench = begin()
    # A store may be asked to delete the same one twice: by what is left over when deletions begin, and by the queue.
    seen: set[tuple[CheckpointId, bool]] = set()
    delete = store.delete

    def look_and_delete(id: CheckpointId) -> None:
        seen.add((id, id in dropped(bench)))
        delete(id)

    store.delete = look_and_delete  # type: ignore[method-assign]
    for loss in (1.0, 2.0, 3.0, 4.0):
        save(bench, ONE, loss)
    bench.driver.close()

    assert len(dropped(bench)) == 2
    assert seen == {(each, True) for each in dropped(bench)}


def test_what_a_paused_trial_may_go_on_from_is_kept(begin: Callable[..., Bench]) -> None:
    bench = begin(retention=Retention(keep_last=1, keep_best=0))
    name = save(bench, ONE, 3.0)

    bench.hand.trial(ONE).pause()
    bench.end(ONE)

    assert list(bench.trial().checkpoints) == [name]
    bench.hand.trial(ONE).resume()
    assert bench.trial(ONE).attempt.checkpoint == name


def test_what_an_attempt_began_with_is_kept_until_it_has_ended(begin: Callable[..., Bench]) -> None:
    """It may be lost before it saves one of its own, and then begins there again."""
    bench = begin(retention=Retention(keep_last=1, keep_best=0), max_failures=3)
    donor = save(bench, TWO, 3.0)
    bench.hand.add({}, source=TWO)
    bench.start(THREE)
    bench.backend.slots = 3

    newer = save(bench, TWO, 2.0)

    assert list(bench.trial(TWO).checkpoints) == [donor, newer]
    assert bench.lose(THREE).trial(THREE).attempt.checkpoint == donor
    bench.start(THREE)
    own = save(bench, THREE, 1.0)
    assert list(bench.trial(TWO).checkpoints) == [donor, newer]
    bench.end(THREE)
    assert (list(bench.trial(TWO).checkpoints), list(bench.trial(THREE).checkpoints)) == ([newer], [own])


def test_what_a_decided_restart_begins_with_is_kept_although_its_trial_saves_others(
    begin: Callable[..., Bench],
) -> None:
    bench = begin(retention=Retention(keep_last=1, keep_best=0))
    donor = save(bench, TWO, 3.0)

    bench.hand.trial(ONE).restart(source=TWO)
    newer = save(bench, TWO, 2.0)

    assert list(bench.trial(TWO).checkpoints) == [donor, newer]
    bench.end(ONE)
    assert bench.trial(ONE).attempt.checkpoint == donor
    assert list(bench.trial(TWO).checkpoints) == [donor, newer]


def test_what_a_scheduler_exploits_is_kept_until_the_attempt_has_ended(
    begin: Callable[..., Bench], store: DirectoryStore
) -> None:
    """Population based training resumes a trial from another one's checkpoint; in Ray Tune that may be deleted by then."""
    bench = begin(retention=Retention(keep_last=1, keep_best=0))
    donor = save(bench, TWO, 1.0)
    bench.hand.trial(ONE).pause()
    bench.scheduler.choices.append(Resume(bench.trial(ONE).id, "exploit", {"lr": 0.5, "depth": 3}, bench.trial(TWO).id))
    bench.end(ONE)

    save(bench, TWO, 0.5)

    assert bench.start(ONE).grant.assignment.checkpoint == donor
    assert donor in bench.trial(TWO).checkpoints
    assert store.exists(donor)


def test_a_completed_trial_keeps_its_last_and_best_and_no_dicts(begin: Callable[..., Bench]) -> None:
    bench = begin()
    best = save_dict(bench, TWO, 0.5)
    folder, in_redis = save(bench, ONE, 3.0), save_dict(bench, ONE, 2.0)

    bench.end(ONE)

    assert list(bench.trial(ONE).checkpoints) == [folder]
    assert bench.worker.checkpoint(in_redis) is None
    bench.end(TWO)
    assert bench.worker.checkpoint(best) == b"state", "the best trial's stays"


#: What is said of it -> whether a completed, a stopped, an abandoned and the best trial keep theirs.
KEPT: dict[Any, tuple[bool, ...]] = {
    False: (True, True, True, True),
    "stopped": (True, False, False, True),
    True: (False, False, False, True),
    "all": (False, False, False, False),
}


@pytest.mark.parametrize(("delete", "kept"), KEPT.items(), ids=map(str, KEPT))
def test_who_loses_all_checkpoints_at_its_end_is_what_was_asked_for(
    tmp_path: Path, store: DirectoryStore, delete: Any, kept: tuple[bool, ...]
) -> None:
    bench = Bench(tmp_path, store=store, slots=4, max_trials=4, delete_checkpoints=delete).step()
    names = {}
    for trial, loss in ((ONE, 2.0), (TWO, 3.0), (THREE, 4.0), (FOUR, 1.0)):
        bench.start(trial)
        names[trial] = save(bench, trial, loss)
    bench.hand.trial(TWO).stop()
    bench.hand.trial(THREE).abandon("bad")
    for trial in (TWO, THREE, ONE, FOUR):
        bench.end(trial)

    bench.driver.close()

    assert [bench.trial(trial).status for trial in names] == [
        TrialStatus.COMPLETED,
        TrialStatus.EARLY_STOPPED,
        TrialStatus.ABANDONED,
        TrialStatus.COMPLETED,
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
    begin: Callable[..., Bench],
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


def test_however_fast_dicts_come_few_more_are_in_redis_than_are_needed(begin: Callable[..., Bench]) -> None:
    bench = begin()
    held = []

    for _ in range(3 * MOST_GATHERED):
        save_dict(bench, ONE, 3.0, after_s=0.0)
        held.append(len(bench.worker.checkpoints()))

    assert max(held) == MOST_GATHERED
    assert list(map(len, dropped_together(bench))) == [MOST_GATHERED] * 2


def test_dicts_of_one_batch_of_reports_are_dropped_before_it_is_over(begin: Callable[..., Bench]) -> None:
    bench = begin()
    step, bench.step = bench.step, lambda times=1: bench  # type: ignore[method-assign]
    names = [save_dict(bench, ONE, 3.0, after_s=0.0) for _ in range(2 * MOST_GATHERED)]
    looks: list[int] = []
    bench.driver.listen_to_reports(lambda trial, _: looks.append(len(trial.checkpoints)))

    step()

    assert max(looks) == MOST_GATHERED + 1
    assert bench.worker.checkpoints() == {names[-1]}


def test_what_is_named_before_it_is_dropped_stays(begin: Callable[..., Bench]) -> None:
    bench = begin()
    one, two, three, newest = save_dicts(bench, ONE, 4)
    fork = bench.hand.add({}, checkpoint=two)

    bench.clock.now += LOOK_APART_S
    bench.step()

    assert dropped(bench) == [one, three]
    assert list(bench.trial(ONE).checkpoints) == [two, newest]
    assert fork.attempt.checkpoint == two
    assert bench.worker.checkpoint(two) == b"state"


def test_a_scheduler_may_exploit_what_the_same_batch_replaces(begin: Callable[..., Bench]) -> None:
    def copying() -> Obedient:
        scheduler = Obedient()
        scheduler.decisions[TWO, 1] = Decision(Action.PAUSE, "copies 0001", TrialId(ONE))
        return scheduler

    bench = begin(scheduler=copying)
    step, bench.step = bench.step, lambda times=1: bench  # type: ignore[method-assign]
    one, named = save_dicts(bench, ONE, 2)
    bench.report(TWO, 9.0)
    newest = save_dicts(bench, ONE, MOST_GATHERED)[-1]

    step()

    assert list(bench.trial(ONE).checkpoints) == [named, newest]
    assert one in dropped(bench)


def test_a_folder_that_a_dict_replaces_goes_with_the_rest(begin: Callable[..., Bench]) -> None:
    bench = begin(retention=Retention(keep_last=1, keep_best=0))
    first = save(bench, ONE, 3.0)
    in_redis = save_dict(bench, ONE, 3.0, after_s=0.0)
    second = save(bench, ONE, 3.0, after_s=0.0)
    assert dropped(bench) == []

    bench.clock.now += LOOK_APART_S
    bench.step()

    assert sorted(dropped(bench)) == sorted([first, in_redis])
    assert list(bench.trial(ONE).checkpoints) == [second]


def test_a_driver_that_ends_drops_what_has_gathered(begin: Callable[..., Bench]) -> None:
    bench = begin()
    *old, newest = save_dicts(bench, ONE, 4)

    bench.driver.end("interrupted", "Ctrl-C")

    assert dropped_together(bench) == [old]
    assert bench.worker.checkpoints() == {newest}


def test_closing_a_driver_drops_nothing_as_its_redis_may_be_away(begin: Callable[..., Bench]) -> None:
    bench = begin()
    save_dicts(bench, ONE, 4)

    bench.driver.close()

    assert dropped(bench) == []


def test_what_a_killed_driver_had_gathered_the_next_one_drops(begin: Callable[..., Bench]) -> None:
    bench = begin()
    *old, newest = save_dicts(bench, ONE, 4)
    assert dropped(bench) == []

    bench.begin()

    assert dropped_together(bench) == [old]
    assert bench.worker.checkpoints() == {newest}


def test_by_hand_what_has_gathered_is_deleted_too_and_only_once(begin: Callable[..., Bench]) -> None:
    bench = begin()
    *old, newest = save_dicts(bench, ONE, 4)

    assert bench.hand.trial(ONE).delete_checkpoints(even_best=True) == old

    bench.driver.close()
    assert dropped_together(bench) == [old]
    assert bench.worker.checkpoints() == {newest}


def test_a_driver_whose_scheduler_has_failed_drops_nothing_that_the_next_one_decides_on(
    begin: Callable[..., Bench],
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


def test_no_drop_stands_at_a_report_that_is_in_hand(begin: Callable[..., Bench]) -> None:
    """It would count as acted on, and not be handed out again."""
    bench = begin()
    *old, newest = save_dicts(bench, ONE, 3)
    step, bench.step = bench.step, lambda times=1: bench  # type: ignore[method-assign]
    save_dict(bench, ONE, 2.0)

    in_hand = bench.driver.next_report(0)

    assert in_hand is not None
    assert dropped_together(bench) == [old], "before it was handed out"
    bench.driver.close()
    assert dropped_together(bench) == [old]
    bench.begin()
    assert dropped_together(bench)[1:] == [[newest]]
    assert step().trial(ONE).reports == 4


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


def test_a_trials_checkpoints_are_deleted_by_hand_and_the_rest_stays(
    begin: Callable[..., Bench], store: DirectoryStore
) -> None:
    bench = begin(retention=Retention(keep_last=None))
    others = [save(bench, TWO, loss) for loss in (0.5, 0.4)]
    names = [save(bench, ONE, loss) for loss in (3.0, 2.0)]
    bench.end(ONE)

    assert bench.hand.trial(ONE).delete_checkpoints() == names

    assert (bench.trial(ONE).checkpoints, bench.trial(ONE).checkpoint) == ({}, "")
    assert bench.hand.trial(ONE).delete_checkpoints() == []
    bench.driver.close()
    assert store.ids() == sorted(others)
    assert dropped(bench) == names


def test_by_hand_a_trial_that_may_go_on_keeps_what_it_goes_on_from(begin: Callable[..., Bench]) -> None:
    bench = begin(retention=Retention(keep_last=None))
    save(bench, TWO, 0.5)
    first, newest = [save(bench, ONE, loss) for loss in (3.0, 2.0)]
    assert bench.hand.trial(ONE).delete_checkpoints() == [first]
    bench.hand.trial(ONE).pause()
    bench.end(ONE)

    assert bench.hand.trial(ONE).delete_checkpoints() == []

    bench.hand.trial(ONE).resume()
    assert bench.trial(ONE).attempt.checkpoint == newest


def test_by_hand_a_paused_trial_loses_what_it_goes_on_from_only_if_that_is_asked_for(
    begin: Callable[..., Bench],
) -> None:
    bench = begin()
    save(bench, TWO, 0.5)
    newest = save(bench, ONE, 3.0)
    assert bench.hand.trial(ONE).delete_checkpoints(even_paused=True) == []
    bench.hand.trial(ONE).pause()
    bench.end(ONE)

    assert bench.hand.trial(ONE).delete_checkpoints(even_paused=True) == [newest]

    bench.hand.trial(ONE).resume()
    assert (bench.trial(ONE).attempt.number, bench.trial(ONE).attempt.checkpoint) == (2, "")
    bench.begin()
    assert bench.trial(ONE).checkpoints == {}


def test_by_hand_what_a_fork_has_begun_with_stays(begin: Callable[..., Bench]) -> None:
    bench = begin(retention=Retention(keep_last=None))
    save(bench, TWO, 0.5)
    first, newest = [save(bench, ONE, loss) for loss in (3.0, 2.0)]
    fork = bench.hand.add({}, checkpoint=newest)
    bench.end(ONE)

    assert bench.hand.trial(ONE).delete_checkpoints() == [first]

    assert list(bench.trial(ONE).checkpoints) == [newest] == [fork.attempt.checkpoint]


def test_by_hand_the_best_trials_are_deleted_only_if_that_is_asked_for(
    begin: Callable[..., Bench], store: DirectoryStore
) -> None:
    bench = begin()
    name = save(bench, ONE, 0.1)
    bench.end(ONE)

    with pytest.raises(ConfigurationError, match=r"trial 0001 is the best so far.*even_best=True"):
        bench.hand.trial(ONE).delete_checkpoints()
    assert store.exists(name)

    assert bench.hand.trial(ONE).delete_checkpoints(even_best=True) == [name]
    bench.driver.close()
    assert not store.exists(name)


def test_a_paused_trial_that_is_released_loses_its_checkpoints_on_request(begin: Callable[..., Bench]) -> None:
    bench = begin(delete_checkpoints=True)
    save(bench, TWO, 0.5)
    name = save(bench, ONE, 3.0)
    bench.hand.trial(ONE).pause()
    bench.end(ONE)
    assert name in bench.trial(ONE).checkpoints

    bench.hand.trial(ONE).stop()

    assert (bench.trial(ONE).status, bench.trial(ONE).checkpoints) == (TrialStatus.EARLY_STOPPED, {})


def test_the_best_trial_keeps_its_checkpoints_even_when_it_was_stopped(begin: Callable[..., Bench]) -> None:
    bench = begin(delete_checkpoints=True)
    name = save(bench, ONE, 0.1)

    bench.hand.trial(ONE).stop()
    bench.end(ONE)

    assert list(bench.trial(ONE).checkpoints) == [name]


def test_the_trials_on_the_pareto_front_keep_theirs_and_lose_them_with_their_place(begin: Callable[..., Bench]) -> None:
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


def test_what_somebody_began_with_outlives_its_trial(begin: Callable[..., Bench]) -> None:
    bench = begin(delete_checkpoints=True)
    save(bench, TWO, 0.1)
    name = save(bench, ONE, 3.0)
    bench.hand.add({}, source=ONE)

    bench.hand.trial(ONE).stop()
    bench.end(ONE)
    assert list(bench.trial(ONE).checkpoints) == [name]

    bench.start(THREE).report(THREE, 1.0)
    bench.end(THREE)
    assert list(bench.trial(ONE).checkpoints) == []


def test_a_later_driver_gives_up_what_the_earlier_one_did_not_come_to(begin: Callable[..., Bench]) -> None:
    bench = begin(retention=Retention(keep_last=None))
    names = [save(bench, ONE, loss) for loss in (3.0, 2.0, 1.0)]
    bench.retention = Retention(keep_last=1, keep_best=0)

    bench.begin()

    assert list(bench.trial(ONE).checkpoints) == names[-1:]
    assert dropped(bench) == names[:-1]


def test_a_store_that_fails_is_a_warning_and_the_experiment_goes_on(
    begin: Callable[..., Bench], store: DirectoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    bench = begin(retention=Retention(keep_last=1, keep_best=0))

    def fail(id: CheckpointId) -> None:
        raise StoreUnavailable("the disk is on fire")

    store.delete = fail  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING):
        names = [save(bench, ONE, loss) for loss in (3.0, 2.0)]
        bench.driver.close()

    assert f"checkpoint {names[0]} could not be deleted: the disk is on fire" in caplog.text
    assert bench.trial(ONE).status is TrialStatus.RUNNING


def test_a_slow_store_holds_no_decision_up(begin: Callable[..., Bench], store: DirectoryStore) -> None:
    bench = begin(retention=Retention(keep_last=1, keep_best=0))
    gate: list[str] = []
    delete = store.delete

    def wait(id: CheckpointId) -> None:
        eventually(lambda: gate)
        delete(id)

    store.delete = wait  # type: ignore[method-assign]
    names = [save(bench, ONE, loss) for loss in (3.0, 2.0, 1.0)]

    assert bench.trial(ONE).reports == 3
    assert store.exists(names[0])
    gate.append("open")
    bench.driver.close()
    assert store.ids() == names[-1:]


@pytest.mark.parametrize("takes_over", [False, True])
def test_what_a_decision_will_have_a_trial_go_on_from_is_kept_until_it_does(
    begin: Callable[..., Bench], takes_over: bool
) -> None:
    def copying() -> Obedient:
        scheduler = Obedient()
        scheduler.decisions[TWO, 1] = Decision(Action.PAUSE, "copies 0001", TrialId(ONE))
        return scheduler

    bench = begin(scheduler=copying, retention=Retention(keep_last=1, keep_best=0))
    named = save(bench, ONE, 3.0)
    bench.report(TWO, 9.0)
    if takes_over:
        bench.begin()
    newer = save(bench, ONE, 2.0)
    bench.end(TWO)
    assert list(bench.trial(ONE).checkpoints) == [named, newer]

    bench.hand.trial(TWO).resume()
    save(bench, ONE, 1.0)

    assert named not in bench.trial(ONE).checkpoints


def test_a_later_driver_deletes_what_the_earlier_one_gave_up_and_did_not_come_to_delete(
    begin: Callable[..., Bench], store: DirectoryStore
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
    begin: Callable[..., Bench], store: DirectoryStore, end: AttemptEnd, exit_code: int
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


def test_a_trial_that_has_ended_loses_its_dicts_when_it_is_the_best_no_longer(begin: Callable[..., Bench]) -> None:
    bench = begin()
    best = save_dict(bench, ONE, 0.5)
    bench.end(ONE)
    assert bench.worker.checkpoint(best) == b"state"

    bench.report(TWO, 0.4)

    assert bench.worker.checkpoint(best) is None


def test_a_trial_that_was_the_best_for_the_length_of_a_batch_loses_its_dicts_too(begin: Callable[..., Bench]) -> None:
    """A driver that takes over reads much at once."""
    bench = begin()
    step, bench.step = bench.step, lambda times=1: bench  # type: ignore[method-assign]
    best = save_dict(bench, ONE, 0.5)
    bench.end(ONE)
    bench.report(TWO, 0.4)

    step()

    assert bench.worker.checkpoint(best) is None


def test_a_dict_whose_report_never_came_is_given_up_by_the_next_driver(begin: Callable[..., Bench]) -> None:
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
