"""What a journal promises of leases and of their end."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from contract.journals.world import (
    ASSIGNMENT,
    LONG_S,
    ONE,
    OTHER,
    SHORT_S,
    THREE,
    TWO,
    InWorld,
    World,
    decided,
    ended,
    entries,
    kinds,
    segment,
    staged,
    started,
    unlike,
)
from waiting import eventually

from mqtune.core.trial import AttemptEnd, Intent, TrialId
from mqtune.journal import FENCED, Claim, Grant, Journal, LastAttempt, Order, Unclaimed

#: From how many entries on that a driver has not read it is to read them first.
UNREAD = 100


class LeaseContract(InWorld):
    """A lease is renewed, runs out, or ends with its attempt; each end is journaled once."""

    def test_a_worker_learns_how_attempts_fare_on_others(self, driver: Journal, worker: Journal, world: World) -> None:
        claim = self.start(driver, worker)
        self.start(driver, worker, TWO)
        assert worker.compare("well", "w", "0") == (math.inf, math.inf, False, 2)
        assert worker.compare("failed", "w", "0") == (math.inf, math.inf, False, 2), "its own notes are no others'"
        worker.end(claim, ended())
        world.let_pass(SHORT_S)

        well, failed, broken, running = worker.compare("failed", "other", "0")

        assert SHORT_S - 0.002 <= well < LONG_S
        assert failed >= SHORT_S - 0.002
        assert (broken, running) == (False, 1)
        assert worker.compare("well", "other", "0").failed == math.inf, "the last note is its own"
        assert worker.compare("well", "w", "0").failed < LONG_S

    def test_one_device_of_an_experiment_counts_as_broken_at_a_time(self, driver: Journal, worker: Journal) -> None:
        self.start(driver, worker)

        assert not worker.compare("broken", "w", "0").broken
        assert not worker.compare("broken", "w", "0").broken, "the same one"
        for other in (("w", "1"), ("v", "0")):
            for _ in range(2):
                assert worker.compare("broken", *other).broken
        found = worker.compare("well", "w", "0")
        assert not found.broken
        assert found.failed < LONG_S, "a second device that is said to be broken is a failure there"

    def test_a_lost_attempt_is_ended_by_the_driver_once(self, driver: Journal, worker: Journal, world: World) -> None:
        claim = self.start(driver, worker)
        driver.stage(TWO, 1, ASSIGNMENT, staged(TWO))
        kept = self.start(driver, worker, THREE)
        for trial in (ONE, TWO):
            world.forget(trial, "trial")

        found = driver.look([(ONE, 1), (TWO, 1), (THREE, 1), (THREE, 2)], LONG_S)

        assert found == (entries(driver)[-1].id, [False, False, True, False])
        for _ in range(2):
            assert driver.lose(ONE, 1, "gone", ended(ONE, 1, AttemptEnd.LOST), timestamp=7.5, read=found.newest) is True
            assert driver.lose(TWO, 1, "gone", ended(TWO, 1, AttemptEnd.LOST), read=found.newest) is True
        assert driver.lose(THREE, 1, "gone", ended(THREE), read=found.newest) is False
        assert [entry.data for entry in entries(driver)[-2:]] == [
            ended(ONE, 1, AttemptEnd.LOST),
            ended(TWO, 1, AttemptEnd.LOST),
        ]
        # Whoever still runs it is fenced, and it is not run once more; the next attempt goes on behind its time.
        assert worker.renew([claim, kept], LONG_S) == [FENCED, ""]
        assert worker.claim(claim, "w", LONG_S, started(claim)) == "ended"
        assert worker.end(claim, ended()) is False
        assert driver.expired() == []
        assert driver.stage(ONE, 1, ASSIGNMENT, staged()) is False
        driver.stage(ONE, 2, ASSIGNMENT, staged(ONE, 2))
        again = Claim(ONE, 2, "token-2")
        assert worker.claim(again, "w", LONG_S, started(again)) == Grant(ASSIGNMENT, 7.5)
        assert driver.lose(ONE, 1, "gone", ended(), timestamp=7.5, read=found.newest) is False, (
            "an attempt was staged since"
        )
        # An attempt that has ended, and whose end is gone from the journal, is ended again.
        worker.end(kept, ended(THREE))
        assert driver.look([(THREE, 1)], LONG_S).under_way == [False]
        assert driver.lose(THREE, 1, "gone", ended(THREE, 1, AttemptEnd.LOST), timestamp=1.0) is True

    def test_a_deleted_lease_is_put_back_and_runs_out(self, driver: Journal, worker: Journal, world: World) -> None:
        self.start(driver, worker)
        renewed = self.start(driver, worker, TWO)
        for trial in (ONE, TWO):
            world.forget(trial, "lease")

        assert driver.look([(ONE, 1), (TWO, 1)], SHORT_S).under_way == [True, True]
        worker.renew([renewed], LONG_S)
        world.let_pass(SHORT_S)

        assert driver.expired() == [ONE]
        assert driver.lose(ONE, 1, "expired", ended(ONE, 1, AttemptEnd.LOST)) is True

    def test_an_attempt_is_its_workers_until_it_is_ended_as_lost(self, driver: Journal, worker: Journal) -> None:
        claim = self.start(driver, worker, lease_s=0.0)
        eventually(driver.expired)
        other = unlike(claim, token=OTHER)
        assert worker.claim(other, "w", LONG_S, started(other)) == "taken"
        assert worker.report([segment(claim, 1)]) == [""]
        assert worker.renew([claim], LONG_S) == [""]
        assert driver.expired() == []
        assert driver.lose(ONE, 1, "expired", ended()) is False
        assert kinds(driver) == ["TrialStaged", "AttemptStarted", "Reports"]

    @pytest.mark.parametrize("what", ["stop", "order", "reap", "void", "end", "restore", "stage"])
    def test_a_renewal_that_is_repeated_says_what_has_changed_since(
        self, driver: Journal, worker: Journal, world: World, what: str
    ) -> None:
        one, two = claims = [self.start(driver, worker, trial) for trial in (ONE, TWO)]
        for _ in range(3):
            assert worker.renew(claims, 0.0 if what == "reap" else LONG_S) == ["", ""]

        def void() -> None:
            world.forget(ONE, "trial")
            driver.lose(ONE, 1, "gone", ended(ONE, 1, AttemptEnd.LOST))

        def restore() -> None:
            before = entries(driver)
            attempts = [LastAttempt(each.trial, 1, 0.0) for each in claims]
            driver.restore(lambda: before, attempts, [], requests={}, definition=b"")

        changes: dict[str, tuple[Callable[[], object], list[str]]] = {
            "stop": (lambda: driver.intend(ONE, 1, Intent.STOP, decided(), ended()), ["stop", ""]),
            "order": (lambda: driver.order([Order.go(ONE, 1, 7)]), ["go:7", ""]),
            "reap": (lambda: eventually(lambda: driver.lose(ONE, 1, "expired", ended())), [FENCED, ""]),
            "void": (void, [FENCED, ""]),
            "end": (lambda: worker.end(one, ended()), [FENCED, ""]),
            "restore": (restore, [FENCED, FENCED]),
            "stage": (lambda: driver.stage(ONE, 2, ASSIGNMENT, staged(ONE, 2)), [FENCED, ""]),
        }
        change, answers = changes[what]
        change()

        for _ in range(3):
            assert worker.renew(claims, 0.0) == answers
        # Only attempts that were renewed have a lease that can run out.
        still = [claim.trial for claim, answer in zip(claims, answers, strict=True) if answer != FENCED]
        eventually(lambda: sorted(driver.expired()) == still)
        assert worker.renew([two], LONG_S) == answers[1:]

    def test_losing_ends_an_attempt_and_fences_its_worker(self, driver: Journal, worker: Journal) -> None:
        claim = self.start(driver, worker, lease_s=0.0)
        worker.report([segment(claim, 1)])
        driver.intend(ONE, 1, Intent.STOP, decided(), ended())
        eventually(driver.expired)
        lost = ended(ONE, 1, AttemptEnd.LOST)

        read = entries(driver)[-1].id
        for _ in range(2):
            assert driver.lose(ONE, 1, "expired", lost, read=read) is True

        before = entries(driver)
        assert before[-1].data == lost != before[-2].data
        assert driver.expired() == []
        assert worker.renew([claim], LONG_S) == [FENCED]
        assert worker.report([segment(claim, 2)]) == [FENCED]
        assert worker.end(claim, ended()) is False
        assert worker.claim(claim, "w", LONG_S, started(claim)) == "ended"
        assert entries(driver) == before

    @pytest.mark.parametrize("guard", ["expired", "any"])
    def test_no_attempt_is_lost_before_its_reports_are_read(self, driver: Journal, worker: Journal, guard: Any) -> None:
        claim, other = self.start(driver, worker, ONE, lease_s=0.0), self.start(driver, worker, TWO)
        eventually(driver.expired)
        read = []
        for number in (1, 2):
            worker.report([segment(claim, number)])
            read.append(entries(driver)[-1].id)
        for number in range(1, UNREAD):
            worker.report([segment(other, number)])
        lost = ended(ONE, 1, AttemptEnd.LOST)
        before = entries(driver)

        assert driver.lose(ONE, 1, guard, lost, read=read[0]) is False
        assert worker.renew([claim], 0.0) == [""]
        assert entries(driver) == before
        worker.report([segment(other, UNREAD)])
        assert driver.lose(ONE, 1, guard, lost, read=read[1]) is False, "who has so much to read does that first"
        assert driver.lose(ONE, 1, guard, lost, timestamp=102.0) is True, "it knows the last one"

        assert entries(driver)[-1].data == lost

    def test_a_driver_ends_what_runs_where_no_worker_is_left(self, driver: Journal, worker: Journal) -> None:
        one, two = self.start(driver, worker, ONE), self.start(driver, worker, TWO)
        worker.end(two, ended(TWO))
        driver.stage(THREE, 1, ASSIGNMENT, staged(THREE))
        lost = ended(ONE, 1, AttemptEnd.LOST)

        for _ in range(2):
            assert driver.lose(ONE, 1, "any", lost) is True
        for trial, attempt in ((ONE, 2), (TWO, 1), (THREE, 1), (TrialId("0009"), 1)):
            assert driver.lose(trial, attempt, "any", ended(trial)) is False

        assert [entry.data for entry in entries(driver)].count(lost) == 1
        assert worker.renew([one], LONG_S) == [FENCED]
        assert driver.expired() == []

    def test_an_unclaimed_attempt_says_who_holds_it(self, driver: Journal, worker: Journal, world: World) -> None:
        for trial in (ONE, TWO, THREE):
            driver.stage(trial, 1, ASSIGNMENT, staged(trial))
        assert driver.unclaimed(count=1) == [Unclaimed(ONE, 1)]
        assert driver.unclaimed(older_than_s=LONG_S) == []

        worker.hold([Unclaimed(ONE, 1, "w1"), Unclaimed(TWO, 1, "w2", 2.0)], LONG_S)
        worker.hold([Unclaimed(THREE, 1, "w3")], SHORT_S)
        worker.hold([], LONG_S)
        world.let_pass(SHORT_S)

        one, two, three = driver.unclaimed(older_than_s=SHORT_S)
        assert (one, three) == (Unclaimed(ONE, 1, "w1"), Unclaimed(THREE, 1))
        assert two[:3] == (TWO, 1, "w2")
        assert two.importing_s is not None
        assert two.importing_s >= 2.0
        claim = Claim(ONE, 1, "t")
        assert isinstance(worker.claim(claim, "another", LONG_S, started(claim)), Grant), "anybody may claim it"
        assert ONE not in {each.trial for each in driver.unclaimed()}

    def test_an_end_waits_for_its_reports_and_is_journaled_once(
        self, driver: Journal, worker: Journal, held: Claim
    ) -> None:
        worker.report([segment(held, 1)])
        before = entries(worker)

        assert worker.end(held, ended(), 3) is False
        assert entries(worker) == before
        assert worker.renew([held], LONG_S) == [""]

        assert worker.report([segment(held, 2, 2)]) == [""]
        assert worker.end(held, ended(), 3) is True
        assert worker.end(held, ended(), 3) is True
        assert kinds(worker).count("AttemptEnded") == 1
        assert driver.look([(ONE, 1)], LONG_S).under_way == [False]

    def test_only_the_holder_can_end_an_attempt(self, driver: Journal, worker: Journal, held: Claim) -> None:
        driver.stage(TWO, 1, ASSIGNMENT, staged(TWO))
        driver.stage(THREE, 1, ASSIGNMENT, staged(THREE))
        driver.intend(THREE, 1, Intent.STOP, decided(THREE), ended(THREE))
        before = entries(driver)
        for change in ({"token": OTHER}, {"attempt": 2}, {"trial": TWO}, {"trial": THREE}):
            for claim in (unlike(held, **change), unlike(held, **{"token": "", **change})):
                assert worker.end(claim, ended()) is False
        assert entries(driver) == before
        assert worker.renew([held], LONG_S) == [""]
