"""Drivers restore a journal that their server has lost, all of it or its end."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from bench import NAME, Bench, Obedient
from losing import set_back, snapshot

from mqtune.core.callback import Callback
from mqtune.core.codec import pack_metrics, segment_bytes
from mqtune.core.errors import JournalGone
from mqtune.core.events import AttemptEnded, CheckpointsDropped, DriverStarted, ExperimentCreated, Requested
from mqtune.core.machine import DICTS
from mqtune.core.timing import Timing
from mqtune.core.trial import CONTINUE, FORGOTTEN, Action, AttemptEnd, Decision, Report, Trial, TrialId, TrialStatus
from mqtune.driver import AnswerQuestion
from mqtune.journal import FENCED, JOURNAL_FILE, JournalFile, JournalReader, MemoryJournal, Segment
from mqtune.services.recovery.driver import reopen

#: Entries.
MORE_THAN_ONE_READ = 100
TIMING: Final = Timing()
KEEP_LOCK_S: Final = TIMING.keep_lock_s

ONE, TWO, THREE = "0001", "0002", "0003"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Two running trials, of which the first has reported."""
    bench = Bench(tmp_path).step().start(ONE).start(TWO)
    bench.report(ONE, 3.0, 2.0)
    return bench


def forgotten(bench: Bench) -> list[tuple[str, int]]:
    return [(event.trial, event.attempt) for event in bench.of(AttemptEnded) if event.error_type == FORGOTTEN]


def notice(bench: Bench) -> Bench:
    """Have the driver notice by itself, and go on."""
    bench.clock.now += KEEP_LOCK_S
    return bench.step(2)


def state_of(experiment: Any) -> list[Any]:
    """Return the parts of the trials that are the same after a replay."""
    return [
        (
            (t.id, t.status, t.reason, t.reports, t.failures, t.checkpoint, list(t.checkpoints), repr(t.best_value)),
            [(a.number, a.end, a.checkpoint, a.intent, a.error) for a in t.attempts],
        )
        for t in experiment.trials.values()
    ]


class Moody(Obedient):
    """Stops some trials, by their names and sequence numbers."""

    def on_report(self, trial: Trial, report: Report) -> Decision:
        stops = random.Random(f"{trial.id} {report.sequence}").random() < 0.1
        return Decision(Action.STOP, "mood") if stops else CONTINUE


def test_an_emptied_server_gets_its_journal_back_and_the_trials_run_again(bench: Bench) -> None:
    bench.options["max_trials"] = 5
    bench.begin()
    before, newest = bench.events(), bench.worker.definition()
    set_back(bench.server)
    assert bench.told() == FENCED

    notice(bench)

    assert bench.events()[: len(before)] == before
    assert bench.worker.definition() == newest is not None
    assert forgotten(bench) == [(ONE, 1), (TWO, 1)]
    assert [(t.status, t.attempt.number) for t in bench.experiment.trials.values()] == [(TrialStatus.QUEUED, 2)] * 2
    assert bench.backend.published[-2:] == [(ONE, 2), (TWO, 2)]
    assert state_of(bench.replayed()) == state_of(bench.experiment)
    # The workers of lost attempts are refused.
    assert bench.told() == FENCED
    assert bench.report(ONE, 1.0) == [FENCED]
    assert bench.trial().reports == 2


@pytest.mark.parametrize("can_be_read", [True, False])
def test_a_dict_that_an_earlier_driver_has_kept_is_put_back(tmp_path: Path, can_be_read: bool) -> None:
    bench = Bench(tmp_path).step().start(ONE)
    kept = bench.save(ONE)
    file = bench.folder / DICTS / kept
    file.parent.mkdir()
    file.write_bytes(b"state") if can_be_read else file.mkdir()
    bench.server.experiments[NAME].checkpoints.clear()

    bench.begin()

    assert [event.checkpoints for event in bench.of(CheckpointsDropped)] == ([] if can_be_read else [[kept]])
    assert bench.trial(ONE).checkpoint == (kept if can_be_read else "")
    assert bench.server.experiments[NAME].checkpoints == ({kept: b"state"} if can_be_read else {})


@pytest.mark.parametrize("when", ["before", "after", "before and after"])
def test_an_experiment_begins_after_an_early_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    record, read = MemoryJournal.record, MemoryJournal.read
    lost: list[str] = []

    def lose(journal: MemoryJournal, moment: str) -> None:
        if moment in when and moment not in lost:
            lost.append(moment)
            set_back(journal.server)
            journal.outages += 1

    def lose_and_record(journal: MemoryJournal, *args: Any, **kwargs: Any) -> None:
        lose(journal, "before")
        record(journal, *args, **kwargs)

    def lose_and_read(journal: MemoryJournal, *args: Any, **kwargs: Any) -> Any:
        lose(journal, "after")
        return read(journal, *args, **kwargs)

    monkeypatch.setattr(MemoryJournal, "record", lose_and_record)
    monkeypatch.setattr(MemoryJournal, "read", lose_and_read)
    bench = Bench(tmp_path).step().start(ONE).start(TWO)
    for trial in (ONE, TWO):
        bench.report(trial, 3.0)
        bench.end(trial)

    assert lost == when.split(" and ")
    assert [type(event).__name__ for event in bench.events()][:2] == ["ExperimentCreated", "DriverStarted"]
    assert len(bench.of(ExperimentCreated)) == 1
    assert bench.experiment.counts[TrialStatus.COMPLETED] == 2
    assert state_of(bench.replayed()) == state_of(bench.experiment)


@pytest.mark.parametrize("others", [0, MORE_THAN_ONE_READ])
def test_a_dict_that_was_lost_before_a_report_named_it_is_gone_on_from_by_nobody(bench: Bench, others: int) -> None:
    early = snapshot(bench.server)
    claim, name = bench.claims[ONE], bench.new_checkpoint(ONE)
    bench.worker.put_checkpoint(claim, name, b"state")
    bench.hand.trial(TWO).stop()
    set_back(bench.server, early)
    for number in range(3, others + 4):
        packed = [pack_metrics(2.0, {"loss": 1.0}, name if number == others + 3 else "")]
        data = segment_bytes(claim.trial, claim.attempt, number, packed)
        assert bench.worker.report([Segment(claim, number, 1, 2.0, data)]) == [""]

    bench.journal.outages += 1
    bench.step(5)

    assert bench.trial(ONE).reports == others + 3
    assert [event.checkpoints for event in bench.of(CheckpointsDropped)] == [[name]]
    assert bench.trial(ONE).attempt.checkpoint == ""


def test_a_loss_is_told_in_words_and_to_callbacks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told: list[tuple[int, int]] = []
    callback = Callback()
    callback.in_loop = True
    callback.on_restore = lambda *counts: told.append(counts)  # type: ignore[method-assign]
    bench = Bench(tmp_path, callbacks=[callback]).step().start(ONE).start(TWO)
    bench.step()
    early = snapshot(bench.server)
    bench.report(ONE, 1.0)
    total = len(bench.events())

    set_back(bench.server, early)
    notice(bench)
    more = len(bench.step().events())
    set_back(bench.server)
    notice(bench)

    assert told == [(total, 1), (more, more)]
    assert f"came back without 1 of the {total} entries" in caplog.messages[0]
    assert "2 attempts that were under way are lost" in caplog.messages[0]


@pytest.mark.parametrize(("lacks", "says"), [("the end", r"lacks the end.*another name"), ("all", "No such file")])
def test_a_copy_that_lacks_the_end_or_is_not_there_is_an_error(bench: Bench, lacks: str, says: str) -> None:
    path = bench.folder / JOURNAL_FILE
    whole = list(JournalFile(path).read())
    path.unlink()
    if lacks == "the end":
        behind = JournalFile(path)
        behind.begin(whole[:-1])
        behind.close()
    set_back(bench.server)

    bench.clock.now += KEEP_LOCK_S
    with pytest.raises(JournalGone, match=says):
        bench.step()


def test_a_folder_without_a_copy_or_of_another_experiment_is_left(bench: Bench, tmp_path: Path) -> None:
    path = bench.folder / JOURNAL_FILE
    journal = MemoryJournal(bench.server, "other")
    journal.lock("driver", "process 1 on head", math.inf)

    for place in (tmp_path / "nowhere" / JOURNAL_FILE, path):
        assert reopen(journal, JournalFile(place), at=0.0) is None
    assert journal.read("0-0", count=10) == []

    path.write_bytes(b"no journal")
    set_back(bench.server)
    with pytest.raises(JournalGone, match="is not a journal of mqtune"):
        reopen(MemoryJournal(bench.server, bench.experiment.name), JournalFile(path), at=0.0)
    assert path.read_bytes() == b"no journal"


def test_a_driver_leaves_what_another_has_made_of_its_server(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    early = snapshot(bench.server)
    for loss in (1.0, 0.9, 0.8):
        bench.report(ONE, loss)
    old = list(JournalFile(bench.folder / JOURNAL_FILE).read())
    set_back(bench.server, early)
    elsewhere = MemoryJournal(bench.server, bench.experiment.name)
    elsewhere.lock("driver", "", math.inf)
    cursor = bench.of(DriverStarted)[0].cursor
    elsewhere.record(DriverStarted(driver="elsewhere", version="1", at=1.0, cursor=cursor).encode())

    bench.begin()

    assert bench.trial().best_value == 2.0
    assert forgotten(bench) == []
    (aside,) = bench.folder.glob("journal-*.msgpack")
    assert list(JournalFile(aside).read()) == old
    assert aside.name in caplog.text


class Killed(BaseException):
    """The driver's process is gone."""


def test_what_a_killed_driver_wrote_to_a_set_back_server_follows_what_the_server_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, max_trials=3).step().start(ONE).start(TWO)
    bench.report(ONE, 3.0)
    early, stage = snapshot(bench.server), MemoryJournal.stage
    written: list[list[Any]] = []

    def lose_stage_and_die(journal: MemoryJournal, *args: Any) -> None:
        # A command is repeated after an outage, before the driver can look at what the server has.
        written.append(bench.events())
        set_back(bench.server, early)
        assert stage(journal, *args)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(MemoryJournal, "stage", lose_stage_and_die)
        with pytest.raises(Killed):
            bench.end(ONE).step()
    (before,) = written
    own = bench.events()[-1]
    assert before[-1].end is AttemptEnd.COMPLETED
    bench.begin()
    bench.step(2)

    assert bench.events()[: len(before) + 1] == [*before, own]
    assert not [*bench.folder.glob("journal-*.msgpack")]
    assert bench.trial(ONE).status is TrialStatus.COMPLETED
    assert state_of(bench.replayed()) == state_of(bench.experiment)


def losing_within_writes(lose: Callable[[], None], patch: pytest.MonkeyPatch, rng: random.Random) -> Callable[[], None]:
    """Return a function that has the server lose all within the driver's next write."""
    armed: list[None] = []

    def within(write: Callable[..., Any]) -> Callable[..., Any]:
        def written(journal: MemoryJournal, *args: Any, **kwargs: Any) -> Any:
            if armed:
                armed.clear()
                # Lost before the write; or with its answer, before or after the second try.
                tries = rng.randrange(3)
                for _ in range(tries):
                    answer = write(journal, *args, **kwargs)
                lose()
                if tries == 2:
                    return answer
            return write(journal, *args, **kwargs)

        return written

    for name in ("stage", "intend", "close_trial", "drop_checkpoints", "record"):
        patch.setattr(MemoryJournal, name, within(getattr(MemoryJournal, name)))
    return lambda: armed.append(None)


@pytest.mark.parametrize("seed", range(12))
def test_an_experiment_ends_after_any_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench(tmp_path, slots=3, max_trials=6, scheduler=rng.choice([Obedient, Moody]), lockstep=rng.random() < 0.3)
    bench.step()
    before = snapshot(bench.server)
    losses = 0

    def lose() -> None:
        nonlocal losses
        losses += 1
        to = before if rng.random() < 0.6 else None
        set_back(bench.server, to)
        # A server that is set back was away. An empty one is noticed anyway.
        bench.journal.outages += to is not None or rng.random() < 0.5

    lose_within = losing_within_writes(lose, monkeypatch, rng)
    for _ in range(5_000):
        if bench.driver.is_finished:
            break
        chance = rng.random()
        states = bench.server.experiments[bench.experiment.name].trials
        claimed = {trial: claim.attempt for trial, claim in bench.claims.items()}
        runs = [t for t, state in states.items() if state.state == "running" and claimed.get(t) == state.attempt]
        staged = [t for t, state in states.items() if state.state == "staged" and t in bench.experiment.trials]
        if chance < 0.02 and losses < 12:
            lose()
        elif chance < 0.06 and losses < 12:
            lose_within()
        elif chance < 0.1:
            before = snapshot(bench.server)
        elif chance < 0.13 and runs:
            bench.save(rng.choice(runs))
        elif chance < 0.4 and staged:
            bench.start(rng.choice(staged))
        elif chance < 0.95 and runs:
            bench.report(rng.choice(runs), rng.random() * 9)
        elif runs:
            trial = rng.choice(runs)
            if bench.sequences[trial] or bench.told(trial):
                bench.end(trial, AttemptEnd.LOST if rng.random() < 0.1 else None)
        if not bench.driver.is_finished:
            bench.clock.now += rng.choice([0.0, 0.5, KEEP_LOCK_S])
            bench.step()

    assert bench.driver.is_finished
    bench.driver.end("finished", "")
    assert losses
    # To give up twice what was lost twice does no harm.
    others = [event for event in bench.events() if not isinstance(event, CheckpointsDropped)]
    own = [event for event in others if getattr(event, "cursor", None) is not None]
    assert not [event for place, event in enumerate(own) if event in own[:place]], "nothing is there twice"
    assert bench.experiment.live == 0
    assert state_of(bench.replayed()) == state_of(bench.experiment)


def test_requests_are_put_back_where_they_were_and_known_by_their_ids(bench: Bench) -> None:
    def requested(id_: str) -> Requested:
        return Requested(id=id_, action="nothing", trial=ONE, arguments={}, by="ada", at=1.0)

    first = bench.worker.request(requested("read"))
    bench.step()
    # Unread requests are lost with the server; their clients repeat them.
    bench.worker.request(requested("lost"))
    set_back(bench.server)
    notice(bench)

    assert bench.worker.request(requested("read")) == first
    bench.worker.request(requested("lost"))
    assert [event.id for event in bench.of(Requested)] == ["read", "lost"]


def test_an_answer_and_an_order_to_save_are_given_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, slots=3, max_trials=3).step().start(ONE).start(TWO).start(THREE)
    states = [bench.server.experiments[NAME].trials[TrialId(id_)] for id_ in (ONE, TWO, THREE)]
    bench.hand.trial(ONE).save()
    bench.hand.trial(TWO).save()
    bench.save(TWO)
    bench.report(THREE, 1.0)
    bench.driver.carry_out(AnswerQuestion(Report(TrialId(THREE), 1, 1, bench.clock.now, {"loss": 1.0}), "go on"))
    answer = bench.told(THREE)
    assert answer.startswith("go:1:")
    for state in states:
        state.orders.clear()

    assert [notice(bench).told(ONE), bench.told(TWO), bench.told(THREE)] == ["", "", ""]
    bench.journal.outages += 1
    notice(bench)

    # By the same number, so that a trial that has saved since does not save again.
    assert [bench.told(ONE), bench.told(TWO), bench.told(THREE)] == ["save:1", "save:1", answer]
    # Orders to an earlier attempt are not repeated.
    bench.lose(ONE).step().start(ONE)
    bench.journal.outages += 1
    bench.step()
    assert (bench.trial().attempt.number, bench.told(ONE)) == (2, "")


def test_an_emptied_server_gets_no_earlier_experiment_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    catch_up = JournalReader.catch_up

    def lose_and_catch_up(reader: JournalReader) -> Any:
        # The driver has taken its lock and looked for the experiment, and begins to read it.
        monkeypatch.undo()
        set_back(bench.server)
        return catch_up(reader)

    set_back(bench.server)
    monkeypatch.setattr(JournalReader, "catch_up", lose_and_catch_up)

    bench.begin()
    bench.step(2)

    [created] = bench.of(ExperimentCreated)
    assert created == bench.events()[0]
    assert [trial.attempt.number for trial in bench.experiment.trials.values()] == [1, 1]
    assert len(list(bench.folder.glob("journal-*"))) == 1, "the earlier one's copy is kept"


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_trial_in_lockstep_goes_on_when_a_server_has_lost_that_it_may(tmp_path: Path, has_ended: bool) -> None:
    bench = Bench(tmp_path, lockstep=True, slots=2).step().start(ONE).start(TWO)
    bench.report(ONE, 1.0)
    bench.report(TWO, 1.0)
    assert bench.told(ONE) == "go:1"
    if has_ended:
        bench.end(TWO)
    # As one that was set back to the moment after the report.
    bench.server.experiments[NAME].trials[TrialId(ONE)].orders.clear()
    assert bench.told(ONE) == ""

    bench.step()
    assert bench.told(ONE) == ""
    bench.journal.outages += 1
    bench.step()

    assert bench.told(ONE) == "go:1"
    # It is said once for an outage.
    bench.server.experiments[NAME].trials[TrialId(ONE)].orders.clear()
    assert bench.step().told(ONE) == ""


@pytest.mark.parametrize("drives", [True, False])
def test_a_server_that_was_set_back_gets_the_end_back(bench: Bench, drives: bool) -> None:
    kept = bench.save(ONE)
    early = snapshot(bench.server)
    bench.report(TWO, 1.0, 0.9)
    before = bench.events()
    set_back(bench.server, early)

    if drives:
        bench.journal.outages += 1
    else:
        bench.begin()
    bench.step(2)

    assert bench.events()[: len(before)] == before
    assert forgotten(bench) == [(ONE, 1), (TWO, 1)]
    assert bench.trial(TWO).best_value == 0.9
    # A checkpoint that Redis still has is used.
    assert (bench.trial(ONE).attempt.checkpoint, bench.of(CheckpointsDropped)) == (kept, [])
    assert state_of(bench.replayed()) == state_of(bench.experiment)
