"""What the driver does now and then: it takes no lease for lost that its worker had no chance to renew."""

from __future__ import annotations

import errno
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

import pytest
from bench import NAME, Bench, Copy

from mqtune.core.timing import Timing
from mqtune.core.trial import FORGOTTEN, AttemptEnd, Trial, TrialId
from mqtune.journal import JOURNAL_FILE, JournalFile, MemoryJournal, TrialState, UnderWay

TIMING: Final = Timing()
LEASE_GRACE_S: Final = TIMING.lease_grace_s
LOOK_AT_ATTEMPTS_S: Final = TIMING.look_at_attempts_s
LOOK_AT_LEASES_S: Final = TIMING.look_at_leases_s
STALL_S: Final = TIMING.stall_s
UNCLAIMED_S: Final = TIMING.unclaimed_s
KEEP_LOCK_S: Final = TIMING.keep_lock_s

ONE = "0001"
TWO = "0002"

#: A worker's, so that leases run out here.
LEASE_S = 15.0


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """One running trial, whose lease is new, when the driver has looked at leases for a while."""
    bench = Bench(tmp_path, max_trials=1).step().start()
    bench.worker.renew(list(bench.claims.values()), LEASE_S)
    return wait(bench, LEASE_GRACE_S)


def wait(bench: Bench, seconds: float) -> Bench:
    """Let time pass, and have the driver look as often as it does."""
    until = bench.clock.now + seconds
    while bench.clock.now < until:
        bench.clock.now += LOOK_AT_LEASES_S
        bench.step()
    return bench


def ends(bench: Bench) -> list[AttemptEnd | None]:
    return [attempt.end for attempt in bench.trial().attempts]


@pytest.mark.parametrize("late_s", [0.0, STALL_S])
def test_a_lease_that_runs_out_before_the_drivers_eyes_is_lost_at_once(bench: Bench, late_s: float) -> None:
    """Also before those of a driver that is a little late."""
    bench.clock.now += late_s
    bench.step()
    wait(bench, LEASE_S - LEASE_GRACE_S - late_s + 2 * LOOK_AT_LEASES_S)

    assert ends(bench)[0] is AttemptEnd.LOST


@pytest.mark.parametrize(("renews", "end"), [(True, None), (False, AttemptEnd.LOST)])
def test_after_a_freeze_workers_have_their_turn_before_their_leases_are_reaped(
    bench: Bench, renews: bool, end: AttemptEnd | None
) -> None:
    """Neither the driver nor anybody else has seen an error: the server, or the machine, did nothing for a while."""
    bench.clock.now += 2 * LEASE_S
    bench.step()
    wait(bench, LEASE_GRACE_S / 2)
    assert ends(bench) == [None]
    if renews:
        bench.worker.renew(list(bench.claims.values()), LEASE_S)

    wait(bench, LEASE_GRACE_S)

    assert ends(bench)[0] is end


@pytest.mark.parametrize(("late_s", "end"), [(LOOK_AT_LEASES_S, AttemptEnd.LOST), (4.0, None)])
def test_a_driver_without_processor_after_an_outage_gives_workers_as_many_looks_to_renew(
    bench: Bench, late_s: float, end: AttemptEnd | None
) -> None:
    """A starved machine starves the workers on it, too: only the driver's own looks count."""
    bench.clock.now += 2 * LEASE_S
    bench.step()
    until = bench.clock.now + 2 * LEASE_GRACE_S
    while bench.clock.now < until:
        bench.clock.now += late_s
        bench.step()

    assert ends(bench)[0] is end
    wait(bench, LEASE_GRACE_S)
    assert ends(bench)[0] is AttemptEnd.LOST, "a worker that never renews again is found all the same"


def test_a_look_that_itself_waited_for_the_server_reaps_nothing(bench: Bench) -> None:
    journal = bench.journal
    expired = journal.expired

    def slow_to_answer() -> list[str]:
        bench.clock.now += 2 * LEASE_S
        found = expired()
        journal.outages += 1
        return found  # type: ignore[return-value]

    journal.expired = slow_to_answer  # type: ignore[assignment, method-assign]
    bench.clock.now += LOOK_AT_LEASES_S
    bench.step()
    assert ends(bench) == [None]

    journal.expired = expired  # type: ignore[method-assign]
    bench.worker.renew(list(bench.claims.values()), LEASE_S)
    wait(bench, LEASE_GRACE_S)
    assert ends(bench) == [None]


# What Redis has lost of single attempts.


def state(bench: Bench) -> TrialState:
    return bench.server.experiments[NAME].trials[bench.trial().id]


def test_an_attempt_whose_key_is_gone_is_lost_with_the_reason_and_the_trial_runs_again(bench: Bench) -> None:
    del bench.server.experiments[NAME].trials[bench.trial().id]

    wait(bench, 2 * LOOK_AT_ATTEMPTS_S + LOOK_AT_LEASES_S)

    first, second = bench.trial().attempts
    assert (first.end, first.error_type) == (AttemptEnd.LOST, FORGOTTEN)
    assert "noeviction" in first.error
    assert (second.number, second.end) == (2, None)
    assert bench.replayed().trials[bench.trial().id].status is bench.trial().status


def test_an_attempt_whose_key_is_gone_is_lost_once_the_driver_has_read_on_although_more_comes_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, slots=2).step().start(ONE).start(TWO)
    last = int(bench.driver.reader.last.partition("-")[0])
    # Behind the first entry that is still to come, and further and further behind.
    newest = iter([last + 1, *range(last + 1_000, last + 100_000, 1_000)])

    def lacks_one(attempts: Sequence[tuple[TrialId, int]], lease_s: float) -> UnderWay:
        return UnderWay(f"{next(newest)}-0", [trial != ONE for trial, _ in attempts])

    monkeypatch.setattr(bench.journal, "look", lacks_one)
    del bench.server.experiments[NAME].trials[TrialId(ONE)]
    wait(bench, 3 * LOOK_AT_ATTEMPTS_S)
    assert bench.trial(ONE).attempt.end is None

    bench.report(TWO, 1.0)
    wait(bench, LOOK_AT_LEASES_S)

    assert bench.trial(ONE).attempts[0].error_type == FORGOTTEN


def test_of_many_attempts_a_part_is_checked_at_a_time_and_each_one_in_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the driver asks it decides nothing: no report is to wait for a check of thousands."""
    bench = Bench(tmp_path, max_trials=1_000, slots=1_000).step()
    checked: list[int] = []
    look = bench.journal.look

    def counted(attempts: Sequence[tuple[TrialId, int]], lease_s: float) -> UnderWay:
        checked.append(len(attempts))
        return look(attempts, lease_s)

    monkeypatch.setattr(bench.journal, "look", counted)
    assert len(bench.experiment.trials) >= 1_000

    wait(bench, 2 * LOOK_AT_ATTEMPTS_S - LOOK_AT_LEASES_S)

    assert sum(checked) == len(bench.experiment.trials)
    assert max(checked) <= 300


def test_one_that_waits_and_whose_key_is_gone_is_staged_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_trials=1).step()
    del bench.server.experiments[NAME].trials[bench.trial().id]

    wait(bench, 2 * LOOK_AT_ATTEMPTS_S + LOOK_AT_LEASES_S)

    assert ends(bench) == [AttemptEnd.LOST, None]
    assert bench.backend.published[-1] == ("0001", 2)


def test_an_attempt_whose_lease_is_gone_is_lost_unless_its_worker_renews_it(bench: Bench) -> None:
    state(bench).lease_until = math.inf
    wait(bench, LOOK_AT_ATTEMPTS_S + LOOK_AT_LEASES_S)
    bench.worker.renew(list(bench.claims.values()), LEASE_S)
    assert ends(bench) == [None]

    state(bench).lease_until = math.inf
    wait(bench, LOOK_AT_ATTEMPTS_S + LEASE_S + 2 * LOOK_AT_LEASES_S)

    assert ends(bench)[0] is AttemptEnd.LOST


def test_an_end_that_the_driver_has_not_read_yet_is_no_loss(bench: Bench) -> None:
    """A driver may lag behind its journal for as long as it takes to decide on a flood of reports."""
    journal = bench.journal
    read = journal.read
    journal.read = lambda *_, **__: []  # type: ignore[method-assign]
    bench.report("0001", 0.5)
    bench.end()
    wait(bench, 4 * LOOK_AT_ATTEMPTS_S)
    assert ends(bench) == [None]

    journal.read = read  # type: ignore[method-assign]
    bench.step()

    assert ends(bench) == [AttemptEnd.COMPLETED]


def test_a_report_that_the_driver_has_not_read_yet_is_shown_before_its_attempt_is_lost(bench: Bench) -> None:
    journal = bench.journal
    read = journal.read
    journal.read = lambda *_, **__: []  # type: ignore[method-assign]
    bench.report("0001", 0.5)
    wait(bench, LEASE_S + 2 * LOOK_AT_LEASES_S)
    assert ends(bench) == [None]

    journal.read = read  # type: ignore[method-assign]
    wait(bench, LOOK_AT_LEASES_S)

    assert bench.trial().reports == 1
    assert ends(bench)[0] is AttemptEnd.LOST


def test_what_is_listed_and_is_no_trial_ends_no_driver(bench: Bench) -> None:
    trials = bench.server.experiments[NAME].trials
    trials[TrialId("nonsense")] = TrialState(1, b"", state="running", lease_until=0.0)
    trials[TrialId("more")] = TrialState(1, b"", state="staged")
    bench.worker.renew(list(bench.claims.values()), LEASE_S)

    wait(bench, UNCLAIMED_S + LOOK_AT_LEASES_S)

    assert ends(bench) == [None]


def test_no_timer_goes_through_all_trials(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    class FoundByName(dict[TrialId, Trial]):
        """Trials that can be looked up and not gone through."""

        def values(self) -> NoReturn:
            raise AssertionError("a timer goes through all trials")

        __iter__ = items = keys = values

    checked: list[TrialId] = []
    look = bench.journal.look

    def note(live: Sequence[tuple[TrialId, int]], lease_s: float) -> UnderWay:
        checked.extend(trial for trial, _ in live)
        return look(live, lease_s)

    monkeypatch.setattr(bench.journal, "look", note)
    bench.experiment.trials = FoundByName(bench.experiment.trials)

    wait(bench, LOOK_AT_ATTEMPTS_S + LOOK_AT_LEASES_S)

    assert ONE in checked


def test_while_many_workers_come_a_driver_has_most_of_its_time_for_other_work(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def refresh() -> None:
        nonlocal looks
        looks += 1
        bench.clock.now += 0.02

    monkeypatch.setattr(bench.backend, "refresh", refresh)
    for _ in range(1_000):
        bench.clock.now += 0.001
        bench.journal.fleet_changed = True
        bench.step()

    assert 2 <= looks <= 7
    before = looks
    bench.clock.now += 0.5
    bench.step()
    assert looks == before + 1, "the last of them is seen too"


def test_a_copy_that_could_not_be_written_is_completed_with_the_lock_also_where_nothing_new_comes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Copy, "append", no_room)
    bench.worker.renew(list(bench.claims.values()), 2 * LEASE_S)
    bench.report(ONE, 1.0)
    wait(bench, 2 * KEEP_LOCK_S)
    copy = JournalFile(bench.folder / JOURNAL_FILE)
    entries = MemoryJournal(bench.server, NAME).read("0-0", count=10**6)
    assert list(copy.read()) == entries[:-1]

    monkeypatch.undo()
    wait(bench, KEEP_LOCK_S + LOOK_AT_LEASES_S)

    assert list(copy.read()) == entries
