"""What a journal promises of the driver's decisions: on attempts, and on trials that have none under way."""

from __future__ import annotations

import pytest
from contract.journals.world import (
    ASSIGNMENT,
    LONG_S,
    ONE,
    THREE,
    TWO,
    InWorld,
    decided,
    ended,
    entries,
    kinds,
    segment,
    staged,
    started,
    trial_closed,
)
from waiting import eventually

from mqtune.core.trial import AttemptEnd, Intent, TrialId
from mqtune.journal import Claim, Journal


class IntentContract(InWorld):
    """A decision is journaled once, and heard until its attempt ends."""

    @pytest.mark.parametrize("intent", [intent for intent in Intent if intent is not Intent.RUN])
    def test_a_running_attempt_hears_its_intent_with_every_answer_until_it_ends(
        self, driver: Journal, worker: Journal, held: Claim, intent: Intent
    ) -> None:
        assert driver.intend(ONE, 1, intent, decided(intent=intent), ended()) == "running"

        assert worker.report([segment(held, 1)]) == [intent.value]
        assert worker.report([segment(held, 1)]) == [intent.value]
        assert worker.renew([held], LONG_S) == [intent.value]
        assert kinds(worker) == ["TrialStaged", "AttemptStarted", "DecisionTaken", "Reports"]

    @pytest.mark.parametrize(
        ("intent", "end"),
        [
            (Intent.STOP, AttemptEnd.STOPPED),
            (Intent.COMPLETE, AttemptEnd.STOPPED),
            (Intent.ABANDON, AttemptEnd.STOPPED),
            (Intent.PAUSE, AttemptEnd.PAUSED),
            (Intent.HAND_BACK, AttemptEnd.HANDED_BACK),
        ],
    )
    def test_an_attempt_that_nobody_has_claimed_is_ended_by_the_decision(
        self, driver: Journal, worker: Journal, intent: Intent, end: AttemptEnd
    ) -> None:
        driver.stage(ONE, 1, ASSIGNMENT, staged())

        assert driver.intend(ONE, 1, intent, decided(intent=intent), ended(ONE, 1, end)) == "unclaimed"

        assert [entry.data for entry in entries(driver)] == [staged(), decided(intent=intent), ended(ONE, 1, end)]
        claim = Claim(ONE, 1, "t")
        assert worker.claim(claim, "w", LONG_S, started(claim)) == "ended"
        assert driver.unclaimed() == []

    def test_nothing_can_be_intended_of_an_attempt_that_is_not_the_current_one(
        self, driver: Journal, worker: Journal
    ) -> None:
        driver.stage(ONE, 2, ASSIGNMENT, staged(ONE, 2))

        assert driver.intend(ONE, 1, Intent.STOP, decided(), ended()) == "superseded"
        assert driver.intend(ONE, 3, Intent.STOP, decided(), ended()) == "superseded"

        assert kinds(driver) == ["TrialStaged"]

    def test_a_decision_about_an_attempt_that_the_server_has_forgotten_is_journaled_once(
        self, driver: Journal, worker: Journal
    ) -> None:
        assert driver.intend(ONE, 1, Intent.STOP, decided(), ended()) == "ended"
        assert driver.intend(ONE, 1, Intent.STOP, decided(), ended()) == "ended"

        assert kinds(driver) == ["DecisionTaken"]
        assert driver.look([(ONE, 1)], LONG_S).under_way == [False]
        assert driver.lose(ONE, 1, "gone", ended())
        claim = Claim(ONE, 1, "t")
        assert worker.claim(claim, "w", LONG_S, started(claim)) == "ended"

    @pytest.mark.parametrize("state", ["running", "unclaimed", "ended", "reaped"])
    def test_the_same_decision_twice_is_journaled_once_and_answered_alike(
        self, driver: Journal, worker: Journal, state: str
    ) -> None:
        driver.stage(ONE, 1, ASSIGNMENT, staged())
        claim = Claim(ONE, 1, "t")
        if state != "unclaimed":
            worker.claim(claim, "w", 0.0 if state == "reaped" else LONG_S, started(claim))
        if state == "ended":
            worker.end(claim, ended())
        elif state == "reaped":
            eventually(lambda: driver.lose(ONE, 1, "expired", ended(ONE, 1, AttemptEnd.LOST)))

        first = driver.intend(ONE, 1, Intent.STOP, decided(), ended())
        before = entries(driver)
        second = driver.intend(ONE, 1, Intent.STOP, decided(), ended())

        assert first == second == ("ended" if state == "reaped" else state)
        assert entries(driver) == before
        assert kinds(driver).count("DecisionTaken") == 1

    def test_another_decision_is_journaled_and_counts_until_its_attempt_has_ended(
        self, driver: Journal, worker: Journal, held: Claim
    ) -> None:
        driver.intend(ONE, 1, Intent.STOP, decided(), ended())

        assert driver.intend(ONE, 1, Intent.HAND_BACK, decided(intent=Intent.HAND_BACK), ended()) == "running"

        assert worker.renew([held], LONG_S) == ["hand_back"]
        worker.end(held, ended())
        second = self.start(driver, worker, attempt=2)
        assert worker.renew([second], LONG_S) == [""]
        assert driver.intend(ONE, 2, Intent.STOP, decided(ONE, 2), ended(ONE, 2)) == "running"
        assert kinds(driver).count("DecisionTaken") == 3

    def test_a_trial_whose_attempt_has_ended_or_was_forgotten_is_closed_once(
        self, driver: Journal, worker: Journal
    ) -> None:
        driver.stage(ONE, 1, ASSIGNMENT, staged())
        driver.intend(ONE, 1, Intent.PAUSE, decided(intent=Intent.PAUSE), ended(ONE, 1, AttemptEnd.PAUSED))
        self.start(driver, worker, TWO, lease_s=0.0)
        eventually(lambda: driver.lose(TWO, 1, "expired", ended(TWO, 1, AttemptEnd.LOST)))
        worker.end(self.start(driver, worker, THREE), ended(THREE, 1, AttemptEnd.FAILED))
        unknown = TrialId("0009")
        for trial in (ONE, TWO, THREE, unknown):
            assert driver.close_trial(trial, 1, trial_closed(trial)) is True
            assert driver.close_trial(trial, 1, trial_closed(trial)) is False
        assert kinds(driver)[-4:] == ["TrialClosed"] * 4
        assert driver.stage(unknown, 1, ASSIGNMENT, staged(unknown)) is False
        assert driver.stage(unknown, 2, ASSIGNMENT, staged(unknown, 2)) is True

    def test_a_trial_whose_attempt_waits_runs_or_is_another_is_not_closed(
        self, driver: Journal, worker: Journal, held: Claim
    ) -> None:
        driver.stage(TWO, 1, ASSIGNMENT, staged(TWO))
        worker.end(self.start(driver, worker, THREE, attempt=2), ended(THREE, 2))
        before = entries(driver)

        assert driver.close_trial(ONE, 1, trial_closed()) is False
        assert driver.close_trial(TWO, 1, trial_closed(TWO)) is False
        assert driver.close_trial(THREE, 1, trial_closed(THREE)) is False
        assert driver.close_trial(THREE, 3, trial_closed(THREE)) is False

        assert entries(driver) == before
        assert worker.renew([held], LONG_S) == [""]
