"""What a journal promises of staging and claiming."""

from __future__ import annotations

from functools import partial

import pytest
from contract.journals.world import (
    ASSIGNMENT,
    LONG_S,
    ONE,
    OTHER,
    SHORT_S,
    InWorld,
    World,
    all_at_once,
    decided,
    ended,
    entries,
    kinds,
    segment,
    staged,
    started,
    unlike,
)

from mqtune.core.trial import Intent, TrialId
from mqtune.journal import FENCED, Assignment, Claim, Grant, Journal


class StagingContract(InWorld):
    """An attempt is staged once, and claimed at most once."""

    def test_a_staged_attempt_can_be_claimed_and_has_its_config(self, driver: Journal, worker: Journal) -> None:
        assert driver.stage(ONE, 1, ASSIGNMENT, staged()) is True

        claim = Claim(ONE, 1, "t")
        assert worker.claim(claim, "w", LONG_S, started(claim)) == Grant(ASSIGNMENT, 0.0)
        assert [entry.data for entry in entries(worker)] == [staged(), started(claim)]

    @pytest.mark.parametrize("attempt", [1, 2])
    def test_staging_an_old_attempt_changes_nothing(self, driver: Journal, worker: Journal, attempt: int) -> None:
        claim = self.start(driver, worker, attempt=2)
        before = entries(driver)

        assert driver.stage(ONE, attempt, Assignment({}), staged(ONE, attempt)) is False

        assert entries(driver) == before
        assert worker.renew([claim], LONG_S) == [""]

    def test_only_the_newest_attempt_counts(self, driver: Journal, worker: Journal, held: Claim) -> None:
        driver.stage(ONE, 2, ASSIGNMENT, staged(ONE, 2))
        before = entries(driver)

        for claim in (held, Claim(ONE, 3, "t")):
            assert worker.claim(claim, "w", LONG_S, started(claim)) == "superseded"
        assert worker.report([segment(held, 1)]) == [FENCED]
        assert worker.renew([held], LONG_S) == [FENCED]
        assert worker.end(held, ended()) is False
        for attempt in (1, 3):
            assert driver.intend(ONE, attempt, Intent.STOP, decided(), ended()) == "superseded"
        assert driver.lose(ONE, 1, "expired", ended()) is False
        assert entries(driver) == before
        assert [each.trial for each in driver.unclaimed()] == [ONE]

    def test_a_repeated_claim_renews_its_lease(self, driver: Journal, worker: Journal, world: World) -> None:
        claim = self.start(driver, worker, lease_s=SHORT_S)

        assert worker.claim(claim, "w", LONG_S, started(claim)) == Grant(ASSIGNMENT, 0.0)
        world.let_pass(SHORT_S)

        assert kinds(worker) == ["TrialStaged", "AttemptStarted"]
        assert driver.expired() == []

    def test_an_ended_attempt_can_be_claimed_by_nobody(self, worker: Journal, held: Claim) -> None:
        worker.end(held, ended())
        before = entries(worker)

        assert worker.claim(held, "w", LONG_S, started(held)) == "ended"
        assert worker.claim(unlike(held, token=OTHER), "w", LONG_S, started(held)) == "ended"
        assert entries(worker) == before

    def test_a_grant_has_the_time_of_the_last_earlier_report(
        self, driver: Journal, worker: Journal, held: Claim
    ) -> None:
        exact = 1_700_000_000.123_456_7
        worker.report([segment(held, 1, 3, timestamp=exact)])
        worker.end(held, ended())
        driver.stage(ONE, 2, ASSIGNMENT, staged(ONE, 2))
        claim = Claim(ONE, 2, "t")

        grant = worker.claim(claim, "w", LONG_S, started(claim))

        assert grant == Grant(ASSIGNMENT, exact)

    def test_of_eight_claims_at_once_one_is_granted(self, driver: Journal, world: World) -> None:
        for number in range(1, 11):
            trial = TrialId(f"{number:04d}")
            driver.stage(trial, 1, ASSIGNMENT, staged(trial))
            claims = [Claim(trial, 1, f"token-{n}") for n in range(8)]

            answers = all_at_once(
                [partial(world.journal().claim, claim, "w", LONG_S, started(claim)) for claim in claims]
            )

            assert sorted(map(str, answers), key=len) == ["taken"] * 7 + [str(Grant(ASSIGNMENT, 0.0))]
            winner = claims[answers.index(Grant(ASSIGNMENT, 0.0))]
            assert entries(driver)[-1].data == started(winner)
            assert driver.renew(claims, LONG_S) == ["" if claim is winner else FENCED for claim in claims]
        assert kinds(driver) == ["TrialStaged", "AttemptStarted"] * 10
