"""What a journal promises of attempts with several seats."""

from __future__ import annotations

from typing import Any, Final

import pytest
from contract.journals.intents import requested
from contract.journals.world import (
    ASSIGNMENT,
    LONG_S,
    ONE,
    OTHER,
    SHORT_S,
    TWO,
    InWorld,
    World,
    closed,
    decided,
    ended,
    entries,
    kinds,
    staged,
    unlike,
)

from mqtune.core.events import AttemptEnded, AttemptStarted, decode_event
from mqtune.core.tasks import task_in, task_names
from mqtune.core.trial import AttemptEnd, Intent, TrialId
from mqtune.journal import FENCED, Assignment, Claim, Grant, Journal, LastAttempt, revocation

#: Three seats on three workers, and two on any.
APART: Final = Assignment(*ASSIGNMENT[:3], task_plan="3:apart:1 CPU")
ANY: Final = Assignment(*ASSIGNMENT[:3], task_plan="2:any:1 CPU")


def seat_started(claim: Claim, worker: str) -> bytes:
    trial, seat = claim.task
    return AttemptStarted(
        trial=trial, attempt=claim.attempt, worker=worker, host="h", devices=[], at=1.0, task=seat
    ).encode()


def over(error: str) -> bytes:
    """An attempt is over, by an end that is told from others by its text."""
    return AttemptEnded(trial=ONE, attempt=1, end=AttemptEnd.COMPLETED, at=4.0, error=error).encode()


def seat_claims(trial: TrialId = ONE, attempt: int = 1, seats: int = 3) -> list[Claim]:
    return [Claim(name, attempt, f"{name}/{attempt}") for name in task_names(trial, seats)]


def take(journal: Journal, claim: Claim, worker: str = "", lease_s: float = LONG_S) -> object:
    """Claim a seat for a worker of its own, unless one is named."""
    worker = worker or f"w{claim.task[1]}"
    return journal.claim(claim, worker, lease_s, seat_started(claim, worker), f"{worker}:7")


class GangContract(InWorld):
    """The seats of an attempt begin together, and it ends once, with its last seat."""

    @pytest.fixture
    def gang(self, driver: Journal, worker: Journal) -> list[Claim]:
        """The claims of a gang that runs."""
        driver.stage(ONE, 1, APART, staged())
        claims = seat_claims()
        for claim in claims:
            take(worker, claim)
        return claims

    def test_an_attempt_starts_with_its_last_seat_and_all_starts_at_once(
        self, driver: Journal, worker: Journal
    ) -> None:
        driver.stage(ONE, 1, APART, staged())
        first, second, third = seat_claims()

        assert [take(worker, third), take(worker, first)] == ["reserved", "reserved"]
        assert kinds(driver) == ["TrialStaged"]
        granted = take(worker, second)

        assert granted == Grant(APART, 0.0, "w0:7")
        assert [take(worker, claim) for claim in (first, third)] == [granted, granted]
        starts = [decode_event(entry.data) for entry in entries(driver)[1:]]
        assert [(start.task, start.worker) for start in starts if isinstance(start, AttemptStarted)] == [
            (0, "w0"),
            (1, "w1"),
            (2, "w2"),
        ]
        assert worker.renew([first, second, third], LONG_S) == ["", "", ""]
        assert driver.unclaimed() == []

    def test_a_seat_is_held_while_its_claim_is_repeated(self, driver: Journal, worker: Journal, world: World) -> None:
        driver.stage(ONE, 1, APART, staged())
        first, second, third = seat_claims()
        take(worker, first, lease_s=SHORT_S)
        take(worker, second)
        world.let_pass(2 * SHORT_S)

        assert take(worker, third) == "reserved", "the worker of seat 0 is gone"
        assert isinstance(take(worker, unlike(first, token=OTHER), "another"), Grant)
        assert take(worker, first) == "taken"

    def test_a_seat_that_is_given_back_is_free_and_one_that_runs_is_not_given_back_and_keeps_its_lease(
        self, driver: Journal, worker: Journal, world: World
    ) -> None:
        driver.stage(ONE, 1, APART, staged())
        first, second, third = seat_claims()
        take(worker, first)

        assert take(worker, first, lease_s=0) == "left"
        assert [take(worker, each) for each in (second, third)] == ["reserved", "reserved"]
        assert isinstance(take(worker, unlike(first, token=OTHER)), Grant)
        # Its worker was about to, and the last seat was taken in that moment.
        assert isinstance(take(worker, third, lease_s=0), Grant)
        world.let_pass(SHORT_S)
        assert driver.expired() == []

    def test_a_gang_that_is_revoked_while_it_waits_does_not_begin(self, driver: Journal, worker: Journal) -> None:
        driver.record(closed(), definition=b"definition")
        driver.stage(ONE, 1, ANY, staged())
        driver.stage(TWO, 1, ANY, staged(TWO))
        first, second = seat_claims(seats=2)
        take(worker, first)

        worker.request(requested(revocation(ONE, 1), "stop"))

        assert take(worker, second) == "revoked"
        assert take(worker, first) == "revoked"
        assert take(worker, first, lease_s=0) == "left"
        assert take(worker, seat_claims(TWO, seats=2)[0]) == "reserved", "no other gang waits for it"

    def test_seats_on_different_machines_are_not_one_workers(self, driver: Journal, worker: Journal) -> None:
        driver.stage(ONE, 1, APART, staged())
        driver.stage(TWO, 1, ANY, staged(TWO))
        first, second, _ = seat_claims()
        take(worker, first, "w")

        assert take(worker, second, "w") == "beside"
        anywhere = seat_claims(TWO, seats=2)
        assert take(worker, anywhere[1], "w") == "reserved"
        assert isinstance(take(worker, anywhere[0], "w"), Grant)

    def test_gangs_get_seats_in_the_order_of_staging(self, driver: Journal, worker: Journal, world: World) -> None:
        driver.stage(ONE, 1, APART, staged())
        world.let_pass(SHORT_S)
        driver.stage(TWO, 1, APART, staged(TWO))
        first, second, third = seat_claims()
        later = seat_claims(TWO)

        assert take(worker, later[0], "w0") == "after"
        take(worker, first, "w0")
        assert take(worker, later[0], "w0") == "reserved", "this worker can do nothing more for the first"
        assert take(worker, later[1], "w1") == "after"
        take(worker, second, "w1")
        take(worker, third, "w2")

        assert take(worker, later[1], "w1") == "reserved"
        assert isinstance(take(worker, later[2], "w2"), Grant)

    def test_an_attempt_ends_with_its_last_seat_as_0(self, driver: Journal, worker: Journal, gang: list[Claim]) -> None:
        first, second, third = gang
        assert worker.end(second, over("itself 1"))
        assert worker.renew([first, third], LONG_S) == ["", ""]
        assert worker.end(first, over("itself 0"))
        assert worker.renew([third], LONG_S) == ["stop"]
        before = len(entries(driver))

        assert worker.end(third, over("itself 2"))

        (last,) = entries(driver)[before:]
        assert last.data == over("itself 0")
        assert worker.end(third, over("itself 2"))
        assert len(entries(driver)) == before + 1

    @pytest.mark.parametrize(
        ("ends", "counts"),
        [
            ([(1, "failure"), (0, "itself"), (2, "itself")], 1),
            ([(0, "failure"), (2, "worker"), (1, "failure")], 2),
            ([(2, "worker"), (0, "failure"), (1, "itself")], 2),
            ([(1, "itself"), (2, "itself"), (0, "failure")], 0),
            ([(0, "itself"), (1, "worker"), (2, "failure")], 0),
        ],
    )
    def test_the_end_counts_because_of_which_the_others_end(
        self, driver: Journal, worker: Journal, gang: list[Claim], ends: list[tuple[int, Any]], counts: int
    ) -> None:
        before = len(entries(driver))
        for seat, by in ends:
            assert worker.end(gang[seat], over(f"of {seat}"), by=by)

        assert [entry.data for entry in entries(driver)[before:]] == [over(f"of {counts}")]

    @pytest.mark.parametrize(("by", "order"), [("failure", "hand_back"), ("worker", "hand_back")])
    def test_the_others_hear_of_a_seat_that_ends(self, worker: Journal, gang: list[Claim], by: Any, order: str) -> None:
        first, second, third = gang
        worker.end(second, ended(), by=by)
        assert worker.renew([first, third], LONG_S) == [order, order]

    def test_an_intent_reaches_all_seats_and_stays(self, driver: Journal, worker: Journal, gang: list[Claim]) -> None:
        assert driver.intend(ONE, 1, Intent.ABANDON, decided(), ended()) == "running"
        assert worker.renew(gang, LONG_S) == ["abandon"] * 3
        worker.end(gang[0], ended())
        assert worker.renew(gang[1:], LONG_S) == ["abandon"] * 2

    @pytest.mark.parametrize("intent", [Intent.PAUSE, Intent.HAND_BACK, Intent.GIVE_WAY])
    def test_an_intent_that_leaves_time_to_save_is_seat_0s_and_the_others_hear_of_it_when_that_has_ended(
        self, driver: Journal, worker: Journal, gang: list[Claim], intent: Intent
    ) -> None:
        first, second, third = gang
        driver.intend(ONE, 1, intent, decided(), ended())
        assert worker.renew(gang, LONG_S) == [intent.value, "", ""]
        assert worker.end(second, over("connection reset"), by="failure")
        assert worker.renew([third], LONG_S) == [""]

        worker.end(first, over("paused"))

        assert worker.renew([third], LONG_S) == ["stop"]
        worker.end(third, over("stopped"))
        assert entries(driver)[-1].data == over("paused")

    def test_a_seat_whose_lease_runs_out_costs_the_attempt_and_fences_the_others(
        self, driver: Journal, worker: Journal, world: World, gang: list[Claim]
    ) -> None:
        assert not driver.lose(ONE, 1, "expired", ended())
        worker.renew([gang[1]], SHORT_S)
        world.let_pass(2 * SHORT_S)

        assert [task_in(name)[0] for name in driver.expired()] == [ONE]
        assert driver.lose(ONE, 1, "expired", ended())
        assert driver.lose(ONE, 1, "expired", ended())
        assert kinds(driver)[-1] == "AttemptEnded"
        assert kinds(driver).count("AttemptEnded") == 1
        assert worker.renew(gang, LONG_S) == [FENCED] * 3
        assert not worker.end(gang[0], ended())

    def test_a_result_is_kept_when_another_seat_is_lost_after_it(
        self, driver: Journal, worker: Journal, world: World, gang: list[Claim]
    ) -> None:
        result = over("completed")
        worker.end(gang[0], result)
        worker.end(gang[2], ended())
        worker.renew([gang[1]], SHORT_S)
        world.let_pass(2 * SHORT_S)

        assert not driver.lose(ONE, 1, "expired", over("lost"))
        assert entries(driver)[-1].data == result
        assert not driver.lose(ONE, 1, "expired", over("lost"))
        assert driver.expired() == []

    def test_a_failure_counts_as_the_loss_of_a_seat_that_is_found_lost_after_it(
        self, driver: Journal, worker: Journal, world: World, gang: list[Claim]
    ) -> None:
        worker.end(gang[0], over("connection reset"), by="failure")
        worker.end(gang[2], ended(), by="itself")
        worker.renew([gang[1]], SHORT_S)
        world.let_pass(2 * SHORT_S)

        assert driver.lose(ONE, 1, "expired", over("lost"))
        assert entries(driver)[-1].data == over("lost")

    @pytest.mark.parametrize("seat", [0, 1, 2])
    def test_an_attempt_without_the_key_of_a_seat_is_not_under_way(
        self, driver: Journal, worker: Journal, world: World, gang: list[Claim], seat: int
    ) -> None:
        assert driver.look([(ONE, 1)], LONG_S).under_way == [True]
        assert not driver.lose(ONE, 1, "gone", ended())
        world.forget(gang[seat].trial, "trial")

        assert driver.look([(ONE, 1)], LONG_S).under_way == [False]
        assert driver.lose(ONE, 1, "gone", ended())
        assert worker.renew(gang, LONG_S) == [FENCED] * 3
        assert driver.stage(ONE, 2, APART, staged(ONE, 2))
        assert [take(worker, claim) for claim in seat_claims(ONE, 2)[:2]] == ["reserved", "reserved"]

    def test_all_seats_are_fenced_when_a_journal_is_put_back_and_when_an_experiment_is_erased(
        self, driver: Journal, worker: Journal, gang: list[Claim]
    ) -> None:
        held = entries(driver)
        driver.restore(lambda: held, [LastAttempt(ONE, 1, 0.0)], [], requests={}, definition=b"d")
        assert worker.renew(gang, LONG_S) == [FENCED] * 3

        driver.stage(ONE, 2, APART, staged(ONE, 2))
        again = seat_claims(ONE, 2)
        assert [isinstance(take(worker, claim), Grant) for claim in again] == [False, False, True]
        driver.erase([ONE])
        assert worker.renew(again, LONG_S) == [FENCED] * 3
