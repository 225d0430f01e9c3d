"""What a journal promises of wishes that end nothing: save a checkpoint; in lockstep, go on."""

from __future__ import annotations

import pytest
from contract.journals.world import (
    ASSIGNMENT,
    LONG_S,
    ONE,
    THREE,
    TWO,
    InWorld,
    all_at_once,
    decided,
    ended,
    entries,
    segment,
    staged,
    started,
)

from mqtune.core.trial import Intent, TrialId
from mqtune.journal.base import FENCED, Claim, Journal, Released


class WishContract(InWorld):
    """A wish comes with each answer until its attempt ends; an intent goes before it."""

    # Saving.

    def test_each_wish_for_a_checkpoint_has_the_next_number_and_comes_with_every_answer(
        self, driver: Journal, worker: Journal, held: Claim
    ) -> None:
        assert driver.request_save(ONE, 1) is True
        assert worker.renew([held], LONG_S) == ["save:1"]

        assert driver.request_save(ONE, 1) is True
        assert worker.renew([held], LONG_S) == ["save:2"]
        assert worker.report([segment(held, 1)]) == ["save:2"]
        assert worker.report([segment(held, 1)]) == ["save:2"]

    def test_a_wish_for_a_checkpoint_is_no_news(self, driver: Journal, held: Claim) -> None:
        before = entries(driver)

        driver.request_save(ONE, 1)

        assert entries(driver) == before

    def test_only_an_attempt_that_runs_can_be_asked_for_a_checkpoint(
        self, driver: Journal, worker: Journal, held: Claim
    ) -> None:
        driver.stage(TWO, 1, ASSIGNMENT, staged(TWO))
        worker.end(self.start(driver, worker, THREE), ended(THREE))

        assert driver.request_save(ONE, 2) is False
        assert driver.request_save(TWO, 1) is False
        assert driver.request_save(THREE, 1) is False
        assert driver.request_save(TrialId("0009"), 1) is False

        assert worker.renew([held], LONG_S) == [""]

    def test_an_intent_goes_before_a_wish_for_a_checkpoint(self, driver: Journal, worker: Journal, held: Claim) -> None:
        driver.request_save(ONE, 1)
        driver.intend(ONE, 1, Intent.PAUSE, decided(intent=Intent.PAUSE), ended())
        driver.request_save(ONE, 1)

        assert worker.report([segment(held, 1)]) == ["pause"]
        assert worker.renew([held], LONG_S) == ["pause"]

    def test_a_wish_for_a_checkpoint_ends_with_its_attempt(self, driver: Journal, worker: Journal, held: Claim) -> None:
        driver.request_save(ONE, 1)
        worker.end(held, ended())
        second = self.start(driver, worker, attempt=2)

        assert worker.renew([held, second], LONG_S) == [FENCED, ""]

        driver.request_save(ONE, 2)
        assert worker.renew([second], LONG_S) == ["save:1"]

    def test_wishes_of_many_threads_at_once_are_all_counted(
        self, driver: Journal, worker: Journal, held: Claim
    ) -> None:
        asked = all_at_once([lambda: driver.request_save(ONE, 1)] * 8)

        assert asked == [True] * 8
        assert worker.renew([held], LONG_S) == ["save:8"]

    # Lockstep.

    def test_how_far_a_trial_is_cleared_comes_with_each_renewal(
        self, driver: Journal, worker: Journal, held: Claim
    ) -> None:
        worker.report([segment(held, 1, 3)])

        driver.release([Released(ONE, 1, 1)])
        assert worker.renew([held], LONG_S) == ["go:1"]

        driver.release([Released(ONE, 1, 2), Released(ONE, 1, 3)])
        assert worker.renew([held], LONG_S) == ["go:3"]
        assert worker.renew([held], LONG_S) == ["go:3"]

    def test_what_was_cleared_stays_cleared(self, driver: Journal, worker: Journal, held: Claim) -> None:
        driver.release([Released(ONE, 1, 10)])
        driver.release([Released(ONE, 1, 10)])
        driver.release([Released(ONE, 1, 9)])

        assert worker.renew([held], LONG_S) == ["go:10"]

    def test_an_answer_comes_with_what_it_clears(self, driver: Journal, worker: Journal, held: Claim) -> None:
        driver.release([Released(ONE, 1, 2, "b25l")])
        assert worker.renew([held], LONG_S) == ["go:2:b25l"]

        # Nobody gets it in place of another.
        driver.release([Released(ONE, 1, 1, "bGF0ZQ=="), Released(ONE, 1, 2, "dHdv")])
        assert worker.renew([held], LONG_S) == ["go:2:b25l"]
        driver.release([Released(ONE, 1, 3)])
        assert worker.renew([held], LONG_S) == ["go:3"]

    def test_clearing_is_no_news(self, driver: Journal, held: Claim) -> None:
        before = entries(driver)

        driver.release([Released(ONE, 1, 1)])

        assert entries(driver) == before

    def test_many_trials_are_cleared_at_once(self, driver: Journal, worker: Journal) -> None:
        claims = [self.start(driver, worker, TrialId(f"{number:04d}")) for number in range(1, 101)]

        driver.release([Released(claim.trial, 1, number) for number, claim in enumerate(claims, 1)])

        assert worker.renew(claims, LONG_S) == [f"go:{number}" for number in range(1, 101)]

    def test_only_an_attempt_that_runs_is_cleared(self, driver: Journal, worker: Journal, held: Claim) -> None:
        driver.stage(TWO, 1, ASSIGNMENT, staged(TWO))
        worker.end(self.start(driver, worker, THREE), ended(THREE))

        driver.release(
            [Released(ONE, 2, 5), Released(TWO, 1, 5), Released(THREE, 1, 5), Released(TrialId("0009"), 1, 5)]
        )

        two = Claim(TWO, 1, "t")
        worker.claim(two, "w", LONG_S, started(two))
        three = self.start(driver, worker, THREE, attempt=2)
        assert worker.renew([held, two, three], LONG_S) == ["", "", ""]

    def test_the_next_attempt_is_not_cleared_by_the_one_before_it(
        self, driver: Journal, worker: Journal, held: Claim
    ) -> None:
        driver.release([Released(ONE, 1, 7)])
        worker.end(held, ended())
        second = self.start(driver, worker, attempt=2)

        driver.release([Released(ONE, 1, 8)])

        assert worker.renew([second], LONG_S) == [""]

    def test_an_intent_goes_before_how_far_a_trial_is_cleared(
        self, driver: Journal, worker: Journal, held: Claim
    ) -> None:
        driver.release([Released(ONE, 1, 1)])
        driver.intend(ONE, 1, Intent.STOP, decided(), ended())

        assert worker.renew([held], LONG_S) == ["stop"]

    def test_a_renewal_says_both_that_a_checkpoint_is_wished_for_and_how_far_the_trial_is_cleared(
        self, driver: Journal, worker: Journal, held: Claim
    ) -> None:
        driver.release([Released(ONE, 1, 17)])
        driver.request_save(ONE, 1)

        assert worker.renew([held], LONG_S) == ["save:1 go:17"]

    @pytest.mark.parametrize("repeated", [1, 3])
    def test_a_report_is_answered_without_how_far_the_trial_is_cleared(
        self, driver: Journal, worker: Journal, held: Claim, repeated: int
    ) -> None:
        """What is being reported can't have been decided on; that keeps the answer cheap."""
        worker.report([segment(held, 1)])
        driver.release([Released(ONE, 1, 1)])

        for _ in range(repeated):
            assert worker.report([segment(held, 2)]) == [""]
