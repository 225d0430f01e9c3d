"""What a journal promises of orders that end nothing: save a checkpoint; go on after a report, with an answer or without."""

from __future__ import annotations

import pytest
from contract.journals.world import LONG_S, ONE, InWorld, decided, ended, entries, segment

from mqtune.core.trial import Intent
from mqtune.journal import FENCED, Claim, Journal, Order


class OrderContract(InWorld):
    """An order comes with each answer until its attempt ends, or another of its kind is given; an intent goes before it."""

    def test_an_order_comes_with_every_answer(self, driver: Journal, worker: Journal, held: Claim) -> None:
        before = entries(driver)
        assert driver.order([Order.save(ONE, 1, 3)]) == [True]
        assert entries(driver) == before, "it is no news"

        assert worker.renew([held], LONG_S) == ["save:3"]
        assert worker.report([segment(held, 1)]) == ["save:3"]
        assert worker.report([segment(held, 1)]) == ["save:3"]
        assert worker.renew([held], LONG_S) == ["save:3"]

    def test_an_order_takes_the_place_of_the_earlier_one_of_its_kind_alone(
        self, driver: Journal, worker: Journal, held: Claim
    ) -> None:
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
