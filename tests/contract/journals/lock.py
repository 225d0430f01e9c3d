"""What a journal promises of the driver's lock, and of workers whose experiment nobody drives any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from contract.journals.world import (
    ASSIGNMENT,
    HELD,
    LONG_S,
    ONE,
    SHORT_S,
    THREE,
    TWO,
    InWorld,
    World,
    closed,
    decided,
    dropped,
    ended,
    entries,
    kinds,
    segment,
    staged,
    started,
    trial_closed,
)

from mqtune.core.errors import DriverFenced, NameTaken
from mqtune.core.events import ExperimentCreated
from mqtune.core.trial import UNDRIVEN, Intent, TrialId
from mqtune.journal import Assignment, Claim, DriverState, Grant, Journal, OnLoss, Order


class LockContract(InWorld):
    """One driver at a time, and what concerns the whole experiment."""

    DRIVER_WRITES: Final[dict[str, Callable[[Journal], object]]] = {
        "record": lambda journal: journal.record(closed()),
        "stage": lambda journal: journal.stage(THREE, 1, Assignment({}), staged(THREE)),
        "intend": lambda journal: journal.intend(ONE, 1, Intent.STOP, decided(), ended()),
        "lose": lambda journal: journal.lose(ONE, 1, "any", ended()),
        "close trial": lambda journal: journal.close_trial(ONE, 1, trial_closed()),
        "order": lambda journal: journal.order([Order.go(ONE, 1, 1)]),
        "order nothing": lambda journal: journal.order([]),
        "drop": lambda journal: journal.drop_checkpoints([HELD], dropped(HELD)),
        "erase": lambda journal: journal.erase([ONE]),
        "heartbeat": lambda journal: journal.heartbeat("old", LONG_S, DriverState()),
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
        old.stage(TWO, 1, Assignment({}), staged(TWO))
        self.start(old, world.journal(), TrialId("0004"))
        world.let_pass(SHORT_S)
        new.lock("new", "", LONG_S)
        before = entries(new)

        def retaken(journal: Journal) -> None:
            journal.lock("old", "", LONG_S)

        with pytest.raises(DriverFenced):
            ({"lock": retaken} | self.DRIVER_WRITES)[write](old)

        assert entries(new) == before
        assert new.expired() == [ONE]

    def test_the_lock_of_a_living_driver_is_refused_until_it_is_given_up(self, driver: Journal, world: World) -> None:
        second = world.journal()
        second.unlock("driver-2")
        with pytest.raises(NameTaken, match="process 1 on head"):
            second.lock("driver-2", "", LONG_S)
        driver.record(closed())
        with pytest.raises(DriverFenced):
            second.record(closed())
        driver.unlock("driver-1")
        second.lock("driver-2", "", LONG_S)
        second.record(closed())
        with pytest.raises(DriverFenced):
            driver.record(closed())
        with pytest.raises(NameTaken):
            # A driver without a description is not taken for a dead one.
            world.journal().lock("driver-3", "", LONG_S)

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

    def test_the_lock_of_a_driver_known_to_be_dead_is_taken_at_once(self, driver: Journal, world: World) -> None:
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

    def test_the_newest_definition_counts_until_an_event_brings_another(self, driver: Journal, world: World) -> None:
        created = ExperimentCreated(name="x", definition={"a": 1}, at=1.0).encode()
        driver.record(closed())
        assert driver.definition() is None

        driver.record(created, definition=b"first \x00\xff")
        assert world.journal().definition() == b"first \x00\xff"
        driver.record(created, definition=b"second")
        driver.record(closed())

        assert world.journal().definition() == b"second"
        assert kinds(driver) == ["ExperimentEnded", "ExperimentCreated", "ExperimentCreated", "ExperimentEnded"]

    def test_what_is_erased_is_as_if_it_had_never_been_and_is_fenced(self, driver: Journal, world: World) -> None:
        worker = world.journal()
        driver.record(closed(), definition=b"first")
        claim = self.start(driver, worker)
        assert worker.put_checkpoint(claim, HELD, b"data") == ""
        driver.stage(TWO, 1, ASSIGNMENT, staged(TWO))
        last = entries(driver)[-1].id

        driver.erase([ONE, TWO])

        assert (entries(driver), driver.definition(), driver.checkpoints()) == ([], None, set())
        assert (driver.expired(), driver.unclaimed()) == ([], [])
        with pytest.raises(NameTaken):
            world.journal().lock("another", "", LONG_S)
        driver.lock("driver-1", "", LONG_S)
        driver.record(closed(), definition=b"second")
        assert driver.stage(ONE, 1, ASSIGNMENT, staged(ONE))
        assert worker.renew([claim], LONG_S) == ["fenced"]
        assert not worker.end(claim, ended())
        assert kinds(driver) == ["ExperimentEnded", "TrialStaged"]
        assert _number(entries(driver)[0].id) > _number(last)
        assert isinstance(worker.claim(Claim(ONE, 1, "new"), "w", LONG_S, started(claim)), Grant)

    def test_ids_go_on_rising_however_often_and_fast_an_experiment_is_erased(self, driver: Journal) -> None:
        ids = []
        for _ in range(100):
            driver.record(closed(), definition=b"definition")
            ids.append(_number(entries(driver)[0].id))
            driver.erase([])

        assert ids == sorted(set(ids))


def _number(entry: str) -> tuple[int, ...]:
    return tuple(map(int, entry.split("-")))


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
