"""What every journal keeps of the promises in mqtune.journal.base; subclass JournalContract and give it a world."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, TypeVar

import pytest
from waiting import DEADLINE_S, eventually

from mqtune.errors import DriverFenced, NameTaken
from mqtune.journal.base import FENCED, GAP, Claim, Entry, Grant, Journal, Segment
from mqtune.messages import (
    START,
    AttemptEnded,
    AttemptStarted,
    DecisionTaken,
    ExperimentCreated,
    ExperimentEnded,
    Reports,
    TrialStaged,
    decode_event,
    pack_metrics,
    segment_bytes,
)
from mqtune.trial import AttemptEnd, Intent, TrialId

T = TypeVar("T")

#: A lease or lock that runs out while a test waits for it, and one that doesn't.
SHORT_S: Final = 0.03
LONG_S: Final = 600.0

ONE: Final = TrialId("0001")
TWO: Final = TrialId("0002")
THREE: Final = TrialId("0003")
CONFIG: Final[dict[str, Any]] = {
    "lr": 0.1 + 0.2,
    "layers": [1, {"kind": "ü"}],
    "raw": b"\x00\xff",
    "inf": math.inf,
    "no": None,
}


class World(Protocol):
    """A server, and a way for its time to pass."""

    def journal(self, experiment: str = "x") -> Journal:
        """Return a new object for an experiment's journal; a process of its own would have one."""

    def let_pass(self, seconds: float) -> None:
        """Return when this much more time has passed on the server."""


def staged(trial: TrialId = ONE, attempt: int = 1) -> bytes:
    return TrialStaged(trial=trial, attempt=attempt, config=CONFIG, at=1.0, cursor=START).encode()


def started(claim: Claim) -> bytes:
    return AttemptStarted(
        trial=claim.trial, attempt=claim.attempt, worker=f"w-{claim.token}", host="h", devices=["0"], at=2.0
    ).encode()


def decided(trial: TrialId = ONE, attempt: int = 1, intent: Intent = Intent.STOP) -> bytes:
    return DecisionTaken(
        trial=trial, attempt=attempt, sequence=1, action="stop", intent=intent, reason="", at=3.0, cursor=START
    ).encode()


def ended(trial: TrialId = ONE, attempt: int = 1, end: AttemptEnd = AttemptEnd.COMPLETED) -> bytes:
    return AttemptEnded(trial=trial, attempt=attempt, end=end, at=4.0).encode()


def closed(outcome: str = "finished") -> bytes:
    return ExperimentEnded(outcome=outcome, reason="", at=5.0, cursor=START).encode()


def segment(claim: Claim, first: int, count: int = 1, *, timestamp: float | None = None, **metrics: Any) -> Segment:
    """Reports of an attempt; each holds its own sequence number."""
    times = [100.0 + n for n in range(first, first + count)]
    if timestamp is not None:
        times[-1] = timestamp
    packed = [pack_metrics(at, {"n": first + i, **metrics}) for i, at in enumerate(times)]
    return Segment(claim, first, count, times[-1], segment_bytes(claim.trial, claim.attempt, first, packed))


def entries(journal: Journal) -> list[Entry]:
    return journal.read("0-0", count=1_000_000)


def kinds(journal: Journal) -> list[str]:
    """What the journal holds, one word for each entry."""
    return [type(decode_event(entry.data)).__name__ for entry in entries(journal)]


def reported(journal: Journal) -> list[list[tuple[str, int, int]]]:
    """The reports that the journal holds: trial, attempt and sequence number, entry by entry."""
    events = [decode_event(entry.data) for entry in entries(journal)]
    return [[(r.trial, r.attempt, r.sequence) for r in event] for event in events if isinstance(event, Reports)]


def all_at_once(calls: Iterable[Callable[[], T]]) -> list[T | BaseException]:
    """Run *calls* in threads that begin together, and return what they returned or raised."""
    calls = list(calls)
    results: list[T | BaseException] = [AssertionError("did not end")] * len(calls)
    barrier = threading.Barrier(len(calls))

    def run(index: int, call: Callable[[], T]) -> None:
        try:
            barrier.wait(DEADLINE_S)
            results[index] = call()
        except BaseException as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    return results


class JournalContract:
    @pytest.fixture
    def world(self) -> World:
        raise NotImplementedError

    @pytest.fixture
    def driver(self, world: World) -> Journal:
        """The journal as its driver has it."""
        journal = world.journal()
        journal.lock("driver-1", "process 1 on head", LONG_S)
        return journal

    @pytest.fixture
    def worker(self, world: World) -> Journal:
        """The journal as a worker has it."""
        return world.journal()

    @pytest.fixture
    def held(self, driver: Journal, worker: Journal) -> Claim:
        """A claim on trial 0001 that runs."""
        return self.start(driver, worker)

    @staticmethod
    def start(
        driver: Journal, worker: Journal, trial: TrialId = ONE, attempt: int = 1, lease_s: float = LONG_S
    ) -> Claim:
        claim = Claim(trial, attempt, f"token-{trial}-{attempt}")
        assert driver.stage(trial, attempt, CONFIG, staged(trial, attempt))
        assert isinstance(worker.claim(claim, "w", lease_s, started(claim)), Grant)
        return claim

    # The driver's lock.

    DRIVER_WRITES: Final[dict[str, Callable[[Journal], object]]] = {
        "record": lambda journal: journal.record(closed()),
        "stage": lambda journal: journal.stage(THREE, 1, {}, staged(THREE)),
        "intend": lambda journal: journal.intend(ONE, 1, Intent.STOP, decided(), ended()),
        "reap": lambda journal: journal.reap(ONE, 1, ended()),
        "forfeit": lambda journal: journal.forfeit_leases(),
    }

    @pytest.mark.parametrize("write", DRIVER_WRITES)
    def test_who_never_took_the_lock_may_not_write_as_the_driver(self, world: World, write: str) -> None:
        stranger = world.journal()

        with pytest.raises(DriverFenced):
            self.DRIVER_WRITES[write](stranger)

        assert kinds(stranger) == []

    @pytest.mark.parametrize("write", [*DRIVER_WRITES, "lock"])
    def test_a_driver_that_was_replaced_is_refused_and_changes_nothing(self, world: World, write: str) -> None:
        old, new = world.journal(), world.journal()
        old.lock("old", "", SHORT_S)
        self.start(old, world.journal(), lease_s=0.0)
        old.stage(TWO, 1, {}, staged(TWO))
        self.start(old, world.journal(), TrialId("0004"))
        world.let_pass(SHORT_S)
        new.lock("new", "", LONG_S)
        before = entries(new)

        with pytest.raises(DriverFenced):
            self.DRIVER_WRITES.get(write, lambda journal: journal.lock("old", "", LONG_S))(old)

        assert entries(new) == before
        assert new.expired() == [ONE]

    def test_the_lock_of_a_living_driver_is_refused_and_the_refusal_says_who_has_it(
        self, driver: Journal, world: World
    ) -> None:
        second = world.journal()

        with pytest.raises(NameTaken, match="process 1 on head"):
            second.lock("driver-2", "", LONG_S)

        driver.record(closed())
        with pytest.raises(DriverFenced):
            second.record(closed())

    def test_a_driver_that_was_away_too_long_does_not_take_the_lock_back_from_its_heir(self, world: World) -> None:
        old, new = world.journal(), world.journal()
        old.lock("old", "", SHORT_S)
        world.let_pass(SHORT_S)
        new.lock("new", "", SHORT_S)
        world.let_pass(SHORT_S)

        with pytest.raises(DriverFenced):
            old.lock("old", "", LONG_S)

        new.record(closed())
        new.lock("new", "", LONG_S)

    def test_a_driver_keeps_its_lock_by_taking_it_again_even_after_it_ran_out(self, world: World) -> None:
        driver = world.journal()
        driver.lock("a", "", SHORT_S)
        world.let_pass(SHORT_S)

        driver.lock("a", "", LONG_S)
        driver.lock("a", "", LONG_S)

        driver.record(closed())
        with pytest.raises(NameTaken):
            world.journal().lock("b", "", LONG_S)

    def test_a_lock_that_was_given_back_can_be_taken_at_once(self, driver: Journal, world: World) -> None:
        driver.unlock("driver-1")

        heir = world.journal()
        heir.lock("driver-2", "", LONG_S)

        heir.record(closed())
        with pytest.raises(DriverFenced):
            driver.record(closed())

    def test_the_lock_of_a_driver_that_is_known_to_be_dead_can_be_taken_at_once(
        self, driver: Journal, world: World
    ) -> None:
        heir = world.journal()

        with pytest.raises(NameTaken) as taken:
            heir.lock("driver-2", "process 2 on head", LONG_S, dead="process 9 on head")
        heir.lock("driver-2", "process 2 on head", LONG_S, dead=taken.value.holder)

        assert taken.value.holder == "process 1 on head"
        assert 0 < taken.value.left_s <= LONG_S
        heir.record(closed())
        with pytest.raises(DriverFenced):
            driver.record(closed())
        with pytest.raises(NameTaken, match="process 2 on head"):
            world.journal().lock("driver-3", "", LONG_S, dead="process 1 on head")

    def test_a_driver_without_a_description_is_not_taken_for_a_dead_one(self, world: World) -> None:
        world.journal().lock("driver-1", "", LONG_S)

        with pytest.raises(NameTaken):
            world.journal().lock("driver-2", "", LONG_S)

    def test_nobody_can_give_back_what_another_holds(self, driver: Journal, world: World) -> None:
        world.journal().unlock("driver-2")

        with pytest.raises(NameTaken):
            world.journal().lock("driver-2", "", LONG_S)

    def test_experiments_are_apart(self, driver: Journal, world: World) -> None:
        other = world.journal("y")
        other.lock("driver-2", "", LONG_S)
        driver.stage(ONE, 1, CONFIG, staged())
        claim = Claim(ONE, 1, "t")

        assert other.definition() is None
        assert entries(other) == []
        assert other.claim(claim, "w", LONG_S, started(claim)) == "unknown"
        assert other.unclaimed(0) == []

    def test_of_eight_drivers_that_come_at_once_one_gets_the_lock(self, world: World) -> None:
        journals = [world.journal() for _ in range(8)]

        results = all_at_once(
            [lambda j=journal, n=number: j.lock(f"driver-{n}", "", LONG_S) for number, journal in enumerate(journals)]
        )

        assert sorted(type(result).__name__ for result in results) == ["NameTaken"] * 7 + ["NoneType"]
        journals[results.index(None)].record(closed())

    # What concerns the whole experiment.

    def test_there_is_no_definition_until_an_event_brings_one(self, driver: Journal) -> None:
        assert driver.definition() is None

        driver.record(closed())

        assert driver.definition() is None

    def test_a_definition_is_written_once(self, driver: Journal, world: World) -> None:
        created = ExperimentCreated(name="x", definition={"a": 1}, at=1.0).encode()

        driver.record(created, definition=b"first \x00\xff")
        driver.record(created, definition=b"second")

        assert world.journal().definition() == b"first \x00\xff"
        assert kinds(driver) == ["ExperimentCreated"] * 2

    def test_the_same_event_recorded_twice_on_purpose_is_two_entries(self, driver: Journal) -> None:
        driver.record(closed())
        driver.record(closed())

        assert kinds(driver) == ["ExperimentEnded"] * 2

    # Staging.

    def test_a_staged_attempt_can_be_claimed_and_its_config_arrives_as_it_was(
        self, driver: Journal, worker: Journal
    ) -> None:
        assert driver.stage(ONE, 1, CONFIG, staged()) is True

        claim = Claim(ONE, 1, "t")
        assert worker.claim(claim, "w", LONG_S, started(claim)) == Grant(CONFIG, 0.0)
        assert [entry.data for entry in entries(worker)] == [staged(), started(claim)]

    def test_staging_twice_journals_once(self, driver: Journal) -> None:
        driver.stage(ONE, 1, CONFIG, staged())

        assert driver.stage(ONE, 1, CONFIG, staged()) is False

        assert kinds(driver) == ["TrialStaged"]

    def test_staging_an_earlier_attempt_changes_nothing(self, driver: Journal, worker: Journal) -> None:
        claim = self.start(driver, worker, attempt=2)
        before = entries(driver)

        assert driver.stage(ONE, 1, {}, staged()) is False

        assert entries(driver) == before
        assert worker.renew([claim], LONG_S) == [""]

    def test_staging_again_does_not_take_a_running_attempt_away_from_its_worker(
        self, driver: Journal, worker: Journal, held: Claim
    ) -> None:
        driver.stage(ONE, 1, CONFIG, staged())

        assert worker.report([segment(held, 1)]) == [""]

    def test_a_later_attempt_supersedes_the_one_before_it(self, driver: Journal, worker: Journal, held: Claim) -> None:
        driver.stage(ONE, 2, CONFIG, staged(ONE, 2))
        before = entries(driver)

        assert worker.claim(held, "w", LONG_S, started(held)) == "superseded"
        assert worker.report([segment(held, 1)]) == [FENCED]
        assert worker.renew([held], LONG_S) == [FENCED]
        assert worker.end(held, ended()) is False
        assert driver.intend(ONE, 1, Intent.STOP, decided(), ended()) == "superseded"
        assert driver.reap(ONE, 1, ended()) is False
        assert entries(driver) == before
        assert driver.unclaimed(0) == [ONE]

    def test_the_lease_of_a_superseded_attempt_does_not_run_out_for_the_next_one(
        self, driver: Journal, worker: Journal
    ) -> None:
        self.start(driver, worker, lease_s=0.0)
        eventually(driver.expired)

        driver.stage(ONE, 2, CONFIG, staged(ONE, 2))

        assert driver.expired() == []

    # Claiming.

    def test_an_attempt_that_was_never_staged_is_unknown(self, worker: Journal) -> None:
        claim = Claim(ONE, 1, "t")

        assert worker.claim(claim, "w", LONG_S, started(claim)) == "unknown"
        assert kinds(worker) == []

    @pytest.mark.parametrize("attempt", [1, 3])
    def test_only_the_current_attempt_can_be_claimed(self, driver: Journal, worker: Journal, attempt: int) -> None:
        driver.stage(ONE, 2, CONFIG, staged(ONE, 2))
        claim = Claim(ONE, attempt, "t")

        assert worker.claim(claim, "w", LONG_S, started(claim)) == "superseded"
        assert kinds(worker) == ["TrialStaged"]

    def test_a_claim_can_be_repeated_with_its_token_and_is_journaled_once(
        self, driver: Journal, worker: Journal, held: Claim
    ) -> None:
        assert worker.claim(held, "w", LONG_S, started(held)) == Grant(CONFIG, 0.0)

        assert kinds(worker) == ["TrialStaged", "AttemptStarted"]

    def test_a_claim_that_is_repeated_renews_its_lease(self, driver: Journal, worker: Journal, world: World) -> None:
        claim = self.start(driver, worker, lease_s=SHORT_S)

        worker.claim(claim, "w", LONG_S, started(claim))
        world.let_pass(SHORT_S)

        assert driver.expired() == []

    def test_a_claim_with_another_token_finds_the_attempt_taken(self, worker: Journal, held: Claim) -> None:
        other = held._replace(token="other")

        assert worker.claim(other, "w", LONG_S, started(other)) == "taken"
        assert kinds(worker) == ["TrialStaged", "AttemptStarted"]
        assert worker.renew([held, other], LONG_S) == ["", FENCED]

    def test_an_attempt_whose_lease_ran_out_stays_taken_until_it_is_reaped(
        self, driver: Journal, worker: Journal
    ) -> None:
        self.start(driver, worker, lease_s=0.0)
        eventually(driver.expired)
        other = Claim(ONE, 1, "other")

        assert worker.claim(other, "w", LONG_S, started(other)) == "taken"

    def test_an_ended_attempt_can_not_be_claimed_again_not_even_by_who_had_it(
        self, worker: Journal, held: Claim
    ) -> None:
        worker.end(held, ended())
        before = entries(worker)

        assert worker.claim(held, "w", LONG_S, started(held)) == "ended"
        assert worker.claim(held._replace(token="other"), "w", LONG_S, started(held)) == "ended"
        assert entries(worker) == before

    def test_a_grant_carries_the_time_of_the_last_report_of_an_earlier_attempt(
        self, driver: Journal, worker: Journal, held: Claim
    ) -> None:
        exact = 1_700_000_000.123_456_7
        worker.report([segment(held, 1, 3, timestamp=exact)])
        worker.end(held, ended())
        driver.stage(ONE, 2, CONFIG, staged(ONE, 2))
        claim = Claim(ONE, 2, "t")

        grant = worker.claim(claim, "w", LONG_S, started(claim))

        assert grant == Grant(CONFIG, exact)

    def test_of_eight_claims_at_once_one_is_granted(self, driver: Journal, world: World) -> None:
        for number in range(1, 11):
            trial = TrialId(f"{number:04d}")
            driver.stage(trial, 1, CONFIG, staged(trial))
            claims = [Claim(trial, 1, f"token-{n}") for n in range(8)]

            answers = all_at_once(
                [lambda c=claim: world.journal().claim(c, "w", LONG_S, started(c)) for claim in claims]
            )

            assert sorted(map(str, answers), key=len) == ["taken"] * 7 + [str(Grant(CONFIG, 0.0))]
            winner = claims[answers.index(Grant(CONFIG, 0.0))]
            assert entries(driver)[-1].data == started(winner)
            assert driver.renew(claims, LONG_S) == ["" if claim is winner else FENCED for claim in claims]
        assert kinds(driver) == ["TrialStaged", "AttemptStarted"] * 10

    # Reporting.

    def test_reports_are_journaled_as_one_entry_that_decodes_to_what_was_sent(
        self, worker: Journal, held: Claim
    ) -> None:
        batch = segment(held, 1, 3, raw=b"a b\n\x00", loss=math.inf)

        assert worker.report([batch]) == [""]

        event = decode_event(entries(worker)[-1].data)
        assert isinstance(event, Reports)
        assert [(r.trial, r.attempt, r.sequence, r.timestamp) for r in event] == [
            (ONE, 1, n, 100.0 + n) for n in (1, 2, 3)
        ]
        assert [r.metrics for r in event] == [{"n": n, "raw": b"a b\n\x00", "loss": math.inf} for n in (1, 2, 3)]

    def test_a_batch_that_is_sent_again_is_not_journaled_again(self, worker: Journal, held: Claim) -> None:
        worker.report([segment(held, 1, 2)])
        assert worker.report([segment(held, 1, 2)]) == [""]
        worker.report([segment(held, 3, 2)])

        assert worker.report([segment(held, 1, 2)]) == [""]
        assert worker.report([segment(held, 3, 2)]) == [""]

        assert reported(worker) == [[(ONE, 1, 1), (ONE, 1, 2)], [(ONE, 1, 3), (ONE, 1, 4)]]

    @pytest.mark.parametrize(("first", "count"), [(2, 1), (4, 1), (4, 3), (9, 1)])
    def test_reports_behind_a_gap_are_refused(self, worker: Journal, held: Claim, first: int, count: int) -> None:
        sent = 0 if first == 2 else 2
        if sent:
            worker.report([segment(held, 1, sent)])

        assert worker.report([segment(held, first, count)]) == [GAP]

        assert worker.report([segment(held, sent + 1)]) == [""]
        assert reported(worker)[-1] == [(ONE, 1, sent + 1)]

    def test_a_segment_that_was_cut_anew_is_refused_and_not_written_in_part(self, worker: Journal, held: Claim) -> None:
        worker.report([segment(held, 1, 3)])

        assert worker.report([segment(held, 2, 3)]) == [GAP]

        assert reported(worker) == [[(ONE, 1, 1), (ONE, 1, 2), (ONE, 1, 3)]]

    @pytest.mark.parametrize("change", [{"token": "other"}, {"attempt": 2}, {"trial": TWO}, {"token": ""}])
    def test_reports_of_anyone_but_the_holder_are_refused(
        self, driver: Journal, worker: Journal, held: Claim, change: dict[str, Any]
    ) -> None:
        assert worker.report([segment(held._replace(**change), 1)]) == [FENCED]

        assert reported(worker) == []

    def test_reports_of_an_attempt_that_nobody_has_claimed_are_refused(self, driver: Journal, worker: Journal) -> None:
        driver.stage(ONE, 1, CONFIG, staged())

        assert worker.report([segment(Claim(ONE, 1, ""), 1)]) == [FENCED]

    def test_reports_after_the_end_are_refused(self, worker: Journal, held: Claim) -> None:
        worker.report([segment(held, 1)])
        worker.end(held, ended())

        assert worker.report([segment(held, 2)]) == [FENCED]
        assert worker.report([segment(held, 1)]) == [FENCED]
        assert reported(worker) == [[(ONE, 1, 1)]]

    def test_reports_are_taken_while_the_lease_has_run_out_and_nobody_has_reaped_it(
        self, driver: Journal, worker: Journal
    ) -> None:
        claim = self.start(driver, worker, lease_s=0.0)
        eventually(driver.expired)

        assert worker.report([segment(claim, 1)]) == [""]

    def test_a_batch_keeps_what_is_right_and_drops_what_is_refused(self, driver: Journal, worker: Journal) -> None:
        claims = [self.start(driver, worker, trial) for trial in (ONE, TWO, THREE)]
        gone = Claim(TrialId("0009"), 1, "t")
        worker.end(claims[0], ended(ONE))
        driver.intend(THREE, 1, Intent.PAUSE, decided(THREE), ended(THREE))

        answers = worker.report(
            [segment(claims[0], 1), segment(claims[1], 1, 2), segment(gone, 1), segment(claims[2], 1)]
        )

        assert answers == [FENCED, "", FENCED, "pause"]
        assert reported(worker) == [[(TWO, 1, 1), (TWO, 1, 2), (THREE, 1, 1)]]

    def test_a_batch_of_old_and_new_segments_journals_the_new_ones(self, driver: Journal, worker: Journal) -> None:
        one, two = self.start(driver, worker, ONE), self.start(driver, worker, TWO)
        worker.report([segment(one, 1)])

        assert worker.report([segment(one, 1), segment(two, 1)]) == ["", ""]

        assert reported(worker) == [[(ONE, 1, 1)], [(TWO, 1, 1)]]

    def test_a_batch_of_which_nothing_is_new_makes_no_entry(self, worker: Journal, held: Claim) -> None:
        worker.report([segment(held, 1)])
        before = entries(worker)

        worker.report([segment(held, 1)])
        worker.report([segment(held._replace(token="other"), 2)])
        worker.report([])

        assert entries(worker) == before

    def test_sequence_numbers_begin_anew_with_each_attempt(self, driver: Journal, worker: Journal, held: Claim) -> None:
        worker.report([segment(held, 1, 5)])
        worker.end(held, ended())
        second = self.start(driver, worker, attempt=2)

        assert worker.report([segment(second, 6)]) == [GAP]
        assert worker.report([segment(second, 1)]) == [""]

    def test_a_large_batch_arrives_whole(self, driver: Journal, worker: Journal) -> None:
        claims = [self.start(driver, worker, TrialId(f"{n:04d}")) for n in range(1, 101)]

        answers = worker.report([segment(claim, 1, 200) for claim in claims])

        assert answers == [""] * 100
        assert [len(batch) for batch in reported(worker)] == [20_000]

    def test_reports_of_eight_workers_at_once_keep_their_order_within_each_trial(
        self, driver: Journal, world: World
    ) -> None:
        claims = [self.start(driver, driver, TrialId(f"{n:04d}")) for n in range(1, 9)]

        def stream(claim: Claim) -> list[str]:
            journal = world.journal()
            return [answer for first in range(1, 41, 2) for answer in journal.report([segment(claim, first, 2)])]

        answers = all_at_once([lambda c=claim: stream(c) for claim in claims])

        assert answers == [[""] * 20] * 8
        arrived = [report for batch in reported(driver) for report in batch]
        for claim in claims:
            assert [n for trial, _, n in arrived if trial == claim.trial] == list(range(1, 41))

    # Intents.

    def test_a_running_attempt_hears_its_intent_with_every_answer_until_it_ends(
        self, driver: Journal, worker: Journal, held: Claim
    ) -> None:
        assert driver.intend(ONE, 1, Intent.STOP, decided(), ended()) == "running"

        assert worker.report([segment(held, 1)]) == ["stop"]
        assert worker.report([segment(held, 1)]) == ["stop"]
        assert worker.renew([held], LONG_S) == ["stop"]
        assert kinds(worker) == ["TrialStaged", "AttemptStarted", "DecisionTaken", "Reports"]

    def test_an_attempt_that_nobody_has_claimed_is_ended_by_the_decision(
        self, driver: Journal, worker: Journal
    ) -> None:
        driver.stage(ONE, 1, CONFIG, staged())

        assert driver.intend(ONE, 1, Intent.STOP, decided(), ended(ONE, 1, AttemptEnd.STOPPED)) == "unclaimed"

        assert [entry.data for entry in entries(driver)] == [staged(), decided(), ended(ONE, 1, AttemptEnd.STOPPED)]
        claim = Claim(ONE, 1, "t")
        assert worker.claim(claim, "w", LONG_S, started(claim)) == "ended"
        assert driver.unclaimed(0) == []

    def test_a_decision_about_an_attempt_that_has_ended_is_journaled_all_the_same(
        self, driver: Journal, worker: Journal, held: Claim
    ) -> None:
        worker.end(held, ended())

        assert driver.intend(ONE, 1, Intent.STOP, decided(), ended()) == "ended"

        assert kinds(driver) == ["TrialStaged", "AttemptStarted", "AttemptEnded", "DecisionTaken"]

    def test_nothing_can_be_intended_of_an_attempt_that_is_not_the_current_one(
        self, driver: Journal, worker: Journal
    ) -> None:
        driver.stage(ONE, 2, CONFIG, staged(ONE, 2))

        assert driver.intend(ONE, 1, Intent.STOP, decided(), ended()) == "superseded"
        assert driver.intend(ONE, 3, Intent.STOP, decided(), ended()) == "superseded"
        assert driver.intend(TWO, 1, Intent.STOP, decided(), ended()) == "superseded"

        assert kinds(driver) == ["TrialStaged"]

    @pytest.mark.parametrize("state", ["running", "unclaimed", "ended"])
    def test_the_same_decision_twice_is_journaled_once_and_answered_alike(
        self, driver: Journal, worker: Journal, state: str
    ) -> None:
        driver.stage(ONE, 1, CONFIG, staged())
        claim = Claim(ONE, 1, "t")
        if state != "unclaimed":
            worker.claim(claim, "w", LONG_S, started(claim))
        if state == "ended":
            worker.end(claim, ended())

        first = driver.intend(ONE, 1, Intent.STOP, decided(), ended())
        before = entries(driver)
        second = driver.intend(ONE, 1, Intent.STOP, decided(), ended())

        assert (first, second) == (state, state)
        assert entries(driver) == before

    def test_another_decision_about_the_same_attempt_is_journaled_and_counts(
        self, driver: Journal, worker: Journal, held: Claim
    ) -> None:
        driver.intend(ONE, 1, Intent.STOP, decided(), ended())

        assert driver.intend(ONE, 1, Intent.HAND_BACK, decided(intent=Intent.HAND_BACK), ended()) == "running"

        assert worker.renew([held], LONG_S) == ["hand_back"]
        assert kinds(driver).count("DecisionTaken") == 2

    def test_an_intent_ends_with_its_attempt(self, driver: Journal, worker: Journal, held: Claim) -> None:
        driver.intend(ONE, 1, Intent.STOP, decided(), ended())
        worker.end(held, ended())

        second = self.start(driver, worker, attempt=2)

        assert worker.renew([second], LONG_S) == [""]
        assert driver.intend(ONE, 2, Intent.STOP, decided(ONE, 2), ended(ONE, 2)) == "running"
        assert kinds(driver).count("DecisionTaken") == 2

    def test_a_claim_and_a_decision_at_once_leave_the_attempt_either_running_and_told_or_ended(
        self, driver: Journal, world: World
    ) -> None:
        for number in range(1, 21):
            trial = TrialId(f"{number:04d}")
            driver.stage(trial, 1, CONFIG, staged(trial))
            claim, worker = Claim(trial, 1, "t"), world.journal()

            granted, intended = all_at_once(
                [
                    lambda c=claim, w=worker: w.claim(c, "w", LONG_S, started(c)),
                    lambda t=trial: driver.intend(t, 1, Intent.STOP, decided(t), ended(t)),
                ]
            )

            if intended == "running":
                assert isinstance(granted, Grant)
                assert worker.renew([claim], LONG_S) == ["stop"]
            else:
                assert (granted, intended) == ("ended", "unclaimed")
                assert worker.renew([claim], LONG_S) == [FENCED]

    # Leases.

    def test_a_lease_runs_out_unless_it_is_renewed(self, driver: Journal, worker: Journal, world: World) -> None:
        self.start(driver, worker, ONE, lease_s=SHORT_S)
        kept = self.start(driver, worker, TWO, lease_s=SHORT_S)
        self.start(driver, worker, THREE, lease_s=LONG_S)

        worker.renew([kept], LONG_S)
        world.let_pass(SHORT_S)

        assert driver.expired() == [ONE]

    def test_a_lease_that_ran_out_can_be_renewed_until_it_is_reaped(self, driver: Journal, worker: Journal) -> None:
        claim = self.start(driver, worker, lease_s=0.0)
        eventually(driver.expired)

        assert worker.renew([claim], LONG_S) == [""]

        assert driver.expired() == []
        assert driver.reap(ONE, 1, ended()) is False
        assert kinds(driver) == ["TrialStaged", "AttemptStarted"]

    def test_renewing_answers_for_each_attempt_in_its_place(self, driver: Journal, worker: Journal) -> None:
        claims = [self.start(driver, worker, trial) for trial in (ONE, TWO, THREE)]
        worker.end(claims[0], ended(ONE))
        driver.intend(THREE, 1, Intent.HAND_BACK, decided(THREE), ended(THREE))
        stranger = Claim(TrialId("0009"), 1, "t")

        assert worker.renew([*claims, stranger], LONG_S) == [FENCED, "", "hand_back", FENCED]
        assert worker.renew([], LONG_S) == []

    def test_reaping_ends_an_attempt_and_fences_its_worker(self, driver: Journal, worker: Journal) -> None:
        claim = self.start(driver, worker, lease_s=0.0)
        worker.report([segment(claim, 1)])
        driver.intend(ONE, 1, Intent.STOP, decided(), ended())
        eventually(driver.expired)
        lost = ended(ONE, 1, AttemptEnd.LOST)

        assert driver.reap(ONE, 1, lost) is True

        assert entries(driver)[-1].data == lost
        before = entries(driver)
        assert driver.expired() == []
        assert worker.renew([claim], LONG_S) == [FENCED]
        assert worker.report([segment(claim, 2)]) == [FENCED]
        assert worker.end(claim, ended()) is False
        assert worker.claim(claim, "w", LONG_S, started(claim)) == "ended"
        assert entries(driver) == before

    def test_reaping_twice_journals_once_and_answers_alike(self, driver: Journal, worker: Journal) -> None:
        self.start(driver, worker, lease_s=0.0)
        eventually(driver.expired)
        driver.reap(ONE, 1, ended())
        before = entries(driver)

        assert driver.reap(ONE, 1, ended()) is True

        assert entries(driver) == before

    def test_forfeited_leases_have_all_run_out(self, driver: Journal, worker: Journal) -> None:
        one, two = self.start(driver, worker, ONE), self.start(driver, worker, TWO)
        worker.end(self.start(driver, worker, THREE), ended(THREE))
        driver.stage(TrialId("0004"), 1, CONFIG, staged(TrialId("0004")))

        driver.forfeit_leases()
        driver.forfeit_leases()

        assert sorted(driver.expired()) == [ONE, TWO]
        assert driver.reap(ONE, 1, ended(ONE, 1, AttemptEnd.LOST)) is True
        # Somebody was left after all, and is not forgotten.
        assert worker.renew([one, two], LONG_S) == [FENCED, ""]
        assert driver.expired() == []

    def test_there_may_be_no_leases_to_forfeit(self, driver: Journal) -> None:
        driver.forfeit_leases()

        assert driver.expired() == []
        assert entries(driver) == []

    def test_only_an_attempt_whose_lease_ran_out_can_be_reaped(self, driver: Journal, worker: Journal) -> None:
        self.start(driver, worker, ONE)
        driver.stage(TWO, 1, CONFIG, staged(TWO))
        over = self.start(driver, worker, THREE, lease_s=0.0)
        worker.end(over, ended(THREE))
        before = entries(driver)

        assert driver.reap(ONE, 1, ended()) is False
        assert driver.reap(ONE, 2, ended()) is False
        assert driver.reap(TWO, 1, ended()) is False
        assert driver.reap(THREE, 1, ended()) is False
        assert driver.reap(TrialId("0009"), 1, ended()) is False

        assert entries(driver) == before

    @pytest.mark.parametrize("attempt", [1, 3])
    def test_no_other_attempt_can_be_reaped_for_the_one_whose_lease_ran_out(
        self, driver: Journal, worker: Journal, attempt: int
    ) -> None:
        self.start(driver, worker, attempt=2, lease_s=0.0)
        eventually(driver.expired)

        assert driver.reap(ONE, attempt, ended(ONE, attempt)) is False
        assert driver.expired() == [ONE]

    def test_a_renewal_and_a_reap_at_once_leave_the_attempt_either_held_or_ended(
        self, driver: Journal, world: World
    ) -> None:
        for number in range(1, 21):
            trial = TrialId(f"{number:04d}")
            claim, worker = self.start(driver, driver, trial, lease_s=0.0), world.journal()
            eventually(lambda t=trial: t in driver.expired())

            renewed, reaped = all_at_once(
                [
                    lambda c=claim, w=worker: w.renew([c], LONG_S),
                    lambda t=trial: driver.reap(t, 1, ended(t, 1, AttemptEnd.LOST)),
                ]
            )

            assert (renewed, reaped) in (([""], False), ([FENCED], True))

    def test_attempts_are_unclaimed_from_staging_to_the_claim(
        self, driver: Journal, worker: Journal, world: World
    ) -> None:
        driver.stage(ONE, 1, CONFIG, staged(ONE))
        driver.stage(TWO, 1, CONFIG, staged(TWO))
        world.let_pass(SHORT_S)

        assert sorted(driver.unclaimed(SHORT_S)) == [ONE, TWO]
        assert driver.unclaimed(LONG_S) == []

        claim = Claim(ONE, 1, "t")
        worker.claim(claim, "w", LONG_S, started(claim))
        assert driver.unclaimed(SHORT_S) == [TWO]

    @pytest.mark.parametrize("was_claimed", [True, False])
    def test_a_new_attempt_is_unclaimed_from_its_own_staging(
        self, driver: Journal, worker: Journal, world: World, was_claimed: bool
    ) -> None:
        if was_claimed:
            worker.end(self.start(driver, worker), ended())
        else:
            driver.stage(ONE, 1, CONFIG, staged())
        world.let_pass(SHORT_S)

        attempts = itertools.count(2)

        def is_new_when_staged() -> bool:
            attempt = next(attempts)
            driver.stage(ONE, attempt, CONFIG, staged(ONE, attempt))
            return driver.unclaimed(SHORT_S) == []

        # On a busy machine more time may pass between the two steps than makes it old again.
        eventually(is_new_when_staged)
        assert driver.unclaimed(0) == [ONE]

    # Ending.

    def test_an_end_is_journaled_once_and_gives_up_the_lease(
        self, driver: Journal, worker: Journal, world: World
    ) -> None:
        claim = self.start(driver, worker, lease_s=SHORT_S)

        assert worker.end(claim, ended()) is True
        assert worker.end(claim, ended()) is True
        world.let_pass(SHORT_S)

        assert kinds(worker) == ["TrialStaged", "AttemptStarted", "AttemptEnded"]
        assert driver.expired() == []

    @pytest.mark.parametrize("change", [{"token": "other"}, {"attempt": 2}, {"trial": TWO}])
    def test_only_the_holder_can_end_an_attempt(self, worker: Journal, held: Claim, change: dict[str, Any]) -> None:
        assert worker.end(held._replace(**change), ended()) is False

        assert kinds(worker) == ["TrialStaged", "AttemptStarted"]
        assert worker.renew([held], LONG_S) == [""]

    def test_an_attempt_that_the_driver_ended_can_not_be_ended_by_a_worker(
        self, driver: Journal, worker: Journal
    ) -> None:
        driver.stage(ONE, 1, CONFIG, staged())
        driver.intend(ONE, 1, Intent.STOP, decided(), ended())
        before = entries(driver)

        assert worker.end(Claim(ONE, 1, "t"), ended()) is False
        assert worker.end(Claim(ONE, 1, ""), ended()) is False

        assert entries(driver) == before

    # Reading.

    def test_entries_have_one_order_for_everybody_and_ids_that_grow(
        self, driver: Journal, worker: Journal, held: Claim
    ) -> None:
        for first in range(1, 51):
            worker.report([segment(held, first)])

        found = entries(driver)

        assert entries(worker) == found
        keys = [tuple(map(int, entry.id.split("-"))) for entry in found]
        assert keys == sorted(set(keys))
        assert [n for batch in reported(worker) for _, _, n in batch] == list(range(1, 51))

    def test_a_read_begins_behind_its_id_and_takes_no_more_than_it_was_asked_for(
        self, driver: Journal, worker: Journal, held: Claim
    ) -> None:
        for first in range(1, 9):
            worker.report([segment(held, first)])
        everything = entries(driver)

        assert len(everything) == 10
        assert driver.read("0-0", count=3) == everything[:3]
        assert driver.read("0-0", count=3, block_s=LONG_S) == everything[:3]
        assert driver.read(everything[2].id, count=4) == everything[3:7]
        assert driver.read(everything[7].id, count=100) == everything[8:]
        assert driver.read(everything[-1].id, count=100) == []

    def test_a_journal_that_nobody_wrote_is_empty(self, world: World) -> None:
        assert world.journal("never").read("0-0", count=10) == []
        assert world.journal("never").read("0-0", count=10, block_s=0.001) == []

    def test_a_blocking_read_wakes_for_an_entry(self, driver: Journal, world: World) -> None:
        driver.record(closed("first"))
        last = entries(driver)[-1].id
        found: list[Entry] = []
        reader, reading = world.journal(), threading.Event()

        def read() -> None:
            reading.set()
            while not found:
                found.extend(reader.read(last, count=10, block_s=DEADLINE_S))

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        assert reading.wait(DEADLINE_S)
        driver.record(closed("second"))
        thread.join(DEADLINE_S)

        assert [entry.data for entry in found] == [closed("second")]

    def test_a_blocking_read_without_news_comes_back_empty(self, driver: Journal) -> None:
        driver.record(closed())

        assert driver.read(entries(driver)[-1].id, count=10, block_s=SHORT_S) == []
