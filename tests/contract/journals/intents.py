"""What a journal promises of the driver's decisions and orders, and of requests to it."""

from __future__ import annotations

import pytest
from contract.journals.world import (
    ASSIGNMENT,
    LONG_S,
    ONE,
    THREE,
    TWO,
    InWorld,
    World,
    closed,
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

from mqtune.core.errors import JournalGone
from mqtune.core.events import Requested, decode_event
from mqtune.core.trial import AttemptEnd, Intent, TrialId
from mqtune.journal import FENCED, Claim, Grant, Journal, Order, revocation


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

    def test_a_decision_on_a_forgotten_attempt_is_journaled_once(self, driver: Journal, worker: Journal) -> None:
        assert driver.intend(ONE, 1, Intent.STOP, decided(), ended()) == "ended"
        assert driver.intend(ONE, 1, Intent.STOP, decided(), ended()) == "ended"

        assert kinds(driver) == ["DecisionTaken"]
        assert driver.look([(ONE, 1)], LONG_S).under_way == [False]
        assert driver.lose(ONE, 1, "gone", ended())
        claim = Claim(ONE, 1, "t")
        assert worker.claim(claim, "w", LONG_S, started(claim)) == "ended"

    @pytest.mark.parametrize("state", ["running", "unclaimed", "ended", "reaped"])
    def test_a_repeated_decision_is_journaled_once(self, driver: Journal, worker: Journal, state: str) -> None:
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

    def test_another_decision_counts_until_the_attempt_ends(
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

    def test_a_trial_whose_attempt_ended_or_was_lost_is_closed_once(self, driver: Journal, worker: Journal) -> None:
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

    def test_a_trial_whose_attempt_is_alive_is_not_closed(self, driver: Journal, worker: Journal, held: Claim) -> None:
        driver.stage(TWO, 1, ASSIGNMENT, staged(TWO))
        worker.end(self.start(driver, worker, THREE, attempt=2), ended(THREE, 2))
        before = entries(driver)

        assert driver.close_trial(ONE, 1, trial_closed()) is False
        assert driver.close_trial(TWO, 1, trial_closed(TWO)) is False
        assert driver.close_trial(THREE, 1, trial_closed(THREE)) is False
        assert driver.close_trial(THREE, 3, trial_closed(THREE)) is False

        assert entries(driver) == before
        assert worker.renew([held], LONG_S) == [""]


class OrderContract(InWorld):
    """An order comes with each answer until its attempt ends, or another of its kind is given; an intent goes before it."""

    def test_an_order_comes_with_each_answer_until_replaced(
        self, driver: Journal, worker: Journal, held: Claim
    ) -> None:
        before = entries(driver)
        assert driver.order([Order.save(ONE, 1, 3)]) == [True]
        assert entries(driver) == before, "it is no news"

        for _ in range(2):
            assert worker.renew([held], LONG_S) == ["save:3"]
            assert worker.report([segment(held, 1)]) == ["save:3"]

        driver.order([Order.save(ONE, 1, 1), Order.go(ONE, 1, 17)])
        assert worker.renew([held], LONG_S) == ["save:1 go:17"]

        driver.order([Order.go(ONE, 1, 18, "b25l")])
        assert worker.renew([held], LONG_S) == ["save:1 go:18:b25l"]

        driver.order([Order.save(ONE, 1, 2)])
        driver.order([Order.save(ONE, 1, 2)])
        assert worker.renew([held], LONG_S) == ["go:18:b25l save:2"]

        driver.order([Order.go(ONE, 1, 19)])
        assert worker.renew([held], LONG_S) == ["save:2 go:19"]

    @pytest.mark.parametrize("first", ["order", "intent"])
    def test_an_intent_goes_before_all_orders(self, driver: Journal, worker: Journal, held: Claim, first: str) -> None:
        orders = [Order.save(ONE, 1, 1), Order.go(ONE, 1, 1)]
        if first == "order":
            driver.order(orders)
        driver.intend(ONE, 1, Intent.PAUSE, decided(intent=Intent.PAUSE), ended())

        assert driver.order(orders) == [True, True]

        assert worker.report([segment(held, 1)]) == ["pause"]
        assert worker.renew([held], LONG_S) == ["pause"]

    def test_orders_end_with_their_attempt(self, driver: Journal, worker: Journal, held: Claim) -> None:
        driver.order([Order.save(ONE, 1, 1), Order.go(ONE, 1, 7)])
        worker.end(held, ended())
        second = self.start(driver, worker, attempt=2)

        assert driver.order([Order.go(ONE, 1, 8)]) == [False]

        assert worker.renew([held, second], LONG_S) == [FENCED, ""]


def requested(id_: str = "r1", action: str = "pause", trial: str = "0001") -> Requested:
    """Return a request to the driver."""
    return Requested(id=id_, action=action, trial=trial, arguments={"config": {"lr": 0.1}}, by="ada@head", at=2.0)


class RequestContract(InWorld):
    """A request is appended exactly once per id, by anybody, with and without a driver."""

    @pytest.fixture
    def begun(self, driver: Journal) -> Journal:
        """The driver's journal of an experiment that has begun."""
        driver.record(closed(), definition=b"definition")
        return driver

    def test_a_request_is_journaled_once_and_as_it_is_made(self, begun: Journal, worker: Journal, world: World) -> None:
        first = worker.request(requested())
        second = worker.request(requested("r2"))
        begun.unlock("driver-1")
        assert worker.request(requested()) == first
        assert world.journal().request(requested(action="stop")) == first
        assert worker.request(requested("r2")) == second != first
        third = worker.request(requested("needs no driver"))
        assert [(each.id, decode_event(each.data)) for each in entries(begun)[1:]] == [
            (first, requested()),
            (second, requested("r2")),
            (third, requested("needs no driver")),
        ]

    def test_an_attempt_that_is_revoked_while_it_waits_does_not_begin(self, begun: Journal, worker: Journal) -> None:
        waits, runs, later = Claim(ONE, 1, "token"), Claim(TWO, 1, "token"), Claim(ONE, 2, "token")
        for claim in (waits, runs):
            begun.stage(claim.trial, 1, ASSIGNMENT, staged(claim.trial))
        worker.claim(runs, "w", LONG_S, started(runs))
        for claim in (waits, runs):
            worker.request(requested(revocation(claim.trial, 1), "stop", claim.trial))

        assert worker.claim(waits, "w", LONG_S, started(waits)) == "revoked"
        assert isinstance(worker.claim(runs, "w", LONG_S, started(runs)), Grant), "it had begun"
        begun.unlock("driver-1")
        assert worker.claim(waits, "w", LONG_S, started(waits)) == "revoked"
        begun.lock("driver-1", "", LONG_S)
        begun.stage(ONE, 2, ASSIGNMENT, staged(ONE, 2))
        assert isinstance(worker.claim(later, "w", LONG_S, started(later)), Grant), "it is another attempt"

    def test_requests_that_were_put_back_stay_as_they_were(self, begun: Journal, worker: Journal, world: World) -> None:
        first = worker.request(requested())
        held = entries(begun)
        worker.request(requested("lost"))
        world.set_back(None)
        with pytest.raises(JournalGone):
            worker.request(requested())

        begun.restore(lambda: held, [], [], requests={"r1": first}, definition=b"definition")

        assert worker.request(requested()) == first
        assert entries(begun) == held
        worker.request(requested("lost"))
        assert kinds(begun) == ["ExperimentEnded", "Requested", "Requested"]
