"""What a journal promises of workers whose experiment nobody drives any more."""

from __future__ import annotations

from typing import Any

import pytest
from contract.journals.world import (
    ASSIGNMENT,
    LONG_S,
    ONE,
    SHORT_S,
    TWO,
    InWorld,
    World,
    decided,
    ended,
    kinds,
    segment,
    staged,
    started,
)

from mqtune.core.trial import UNDRIVEN, Intent
from mqtune.journal import Claim, DriverState, Journal, OnLoss, Order

_WAITS = Claim(TWO, 1, "token-0002-1")


class LossContract(InWorld):
    """Whoever drives an experiment says what happens without a driver; workers hear of it from the journal alone."""

    @staticmethod
    def lose(world: World, policy: Any, *, grace_s: float = 0.0, by: str = "death") -> tuple[Journal, Claim]:
        """Return a worker's journal and its claim on trial 0001; trial 0002 waits, and the driver is gone."""
        driver, worker = world.journal(), world.journal()
        driver.lock("driver-1", "process 1 on head", LONG_S)
        driver.heartbeat("driver-1", LONG_S, DriverState(OnLoss(policy, grace_s)))
        held = LossContract.start(driver, worker)
        driver.stage(TWO, 1, ASSIGNMENT, staged(TWO))
        if by == "death":
            driver.lock("driver-1", "", SHORT_S)
            world.let_pass(SHORT_S)
        else:
            driver.unlock("driver-1")
        world.let_pass(SHORT_S)
        return worker, held

    @staticmethod
    def claim_other(worker: Journal) -> object:
        """Try to start trial 0002."""
        return worker.claim(_WAITS, "w", LONG_S, started(_WAITS))

    @pytest.mark.parametrize("by", ["death", "farewell"])
    def test_with_continue_what_runs_and_what_waits_goes_on(self, world: World, by: str) -> None:
        worker, held = self.lose(world, "continue", by=by)

        assert worker.renew([held], LONG_S) == [""]
        assert not isinstance(self.claim_other(worker), str)

    @pytest.mark.parametrize("by", ["death", "farewell"])
    def test_with_finish_what_runs_goes_on_and_nothing_else_starts(self, world: World, by: str) -> None:
        worker, held = self.lose(world, "finish", by=by)

        assert self.claim_other(worker) == "undriven"
        assert worker.renew([held], LONG_S) == [""]
        assert worker.report([segment(held, 1, 2)]) == [""]
        assert worker.end(held, ended())
        assert kinds(worker) == ["TrialStaged", "AttemptStarted", "TrialStaged", "Reports", "AttemptEnded"]

    @pytest.mark.parametrize("by", ["death", "farewell"])
    def test_with_stop_what_runs_is_to_be_handed_back_and_nothing_else_starts(self, world: World, by: str) -> None:
        worker, held = self.lose(world, "stop", by=by)

        assert self.claim_other(worker) == "undriven"
        assert worker.renew([held], LONG_S) == [UNDRIVEN]
        assert worker.renew([held], LONG_S) == [UNDRIVEN]
        # As after a failure of the network.
        assert not isinstance(worker.claim(held, "w", LONG_S, started(held)), str)
        assert worker.report([segment(held, 1, 2)]) == [""]
        assert worker.end(held, ended())

    @pytest.mark.parametrize("policy", ["finish", "stop"])
    def test_until_the_grace_is_over_all_goes_on(self, world: World, policy: Any) -> None:
        worker, held = self.lose(world, policy, grace_s=LONG_S)

        assert worker.renew([held], LONG_S) == [""]
        assert not isinstance(self.claim_other(worker), str)

    def test_when_a_driver_comes_all_goes_on_by_what_that_one_says(self, world: World) -> None:
        worker, held = self.lose(world, "stop")
        heir = world.journal()
        heir.lock("driver-2", "process 2 on head", LONG_S)
        heir.heartbeat("driver-2", LONG_S, DriverState(OnLoss("finish")))

        assert worker.renew([held], LONG_S) == [""]
        assert not isinstance(self.claim_other(worker), str)
        heir.unlock("driver-2")
        world.let_pass(SHORT_S)
        assert worker.renew([held], LONG_S) == [""]

    def test_what_the_driver_wanted_of_an_attempt_counts_when_it_is_gone(self, world: World) -> None:
        driver, worker = world.journal(), world.journal()
        driver.lock("driver-1", "process 1 on head", LONG_S)
        driver.heartbeat("driver-1", LONG_S, DriverState(OnLoss("stop")))
        held, other = self.start(driver, worker), self.start(driver, worker, TWO)
        driver.intend(ONE, 1, Intent.PAUSE, decided(intent=Intent.PAUSE), ended())
        driver.order([Order.go(TWO, 1, 3)])
        driver.unlock("driver-1")
        world.let_pass(SHORT_S)

        assert worker.renew([held, other], LONG_S) == ["pause", UNDRIVEN]
