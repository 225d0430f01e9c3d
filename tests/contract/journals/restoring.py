"""What a journal promises when its server has lost something: emptied, or set back to an earlier state."""

from __future__ import annotations

import pytest
from contract.journals.world import (
    ASSIGNMENT,
    HELD,
    HELD_TOO,
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
    segment,
    staged,
    started,
    trial_closed,
)

from mqtune.core.errors import JournalGone, NameTaken
from mqtune.core.trial import AttemptEnd, Intent
from mqtune.journal import FENCED, Claim, Entry, Grant, Journal, LastAttempt, Order


class RestoreContract(InWorld):
    """The driver notices that something is gone, puts back what it has, and nobody else can go on with the rest."""

    @staticmethod
    def put_back(journal: Journal, held: list[Entry], *events: bytes, attempts: tuple[LastAttempt, ...] = ()) -> None:
        journal.restore(lambda: held, attempts, events, requests={}, definition=b"definition")

    @pytest.mark.parametrize("how", ["emptied", "set back"])
    def test_a_driver_is_told_that_what_it_wrote_is_gone(self, world: World, how: str) -> None:
        before = None
        if how == "set back":
            older = world.journal()
            older.lock("driver-0", "process 0 on head", SHORT_S)
            older.record(closed())
            older.unlock("driver-0")
            before = world.snapshot()
        driver = world.journal()
        driver.lock("driver-1", "process 1 on head", LONG_S)
        driver.record(closed())
        world.set_back(before)

        with pytest.raises(JournalGone):
            driver.lock("driver-1", "", LONG_S)
        for write in (
            lambda: driver.record(closed()),
            lambda: driver.stage(ONE, 1, ASSIGNMENT, staged()),
            lambda: driver.intend(ONE, 1, Intent.STOP, decided(), ended()),
            lambda: driver.close_trial(ONE, 1, trial_closed()),
            lambda: driver.order([Order.save(ONE, 1, 1)]),
            lambda: driver.order([]),
            lambda: driver.drop_checkpoints([HELD], dropped(HELD)),
            lambda: driver.lose(ONE, 1, "expired", ended()),
            lambda: driver.look([(ONE, 1)], LONG_S),
        ):
            with pytest.raises(JournalGone):
                write()

        assert len(entries(driver)) == (1 if how == "set back" else 0)

    def test_what_is_put_back_has_its_ids_is_followed_by_what_is_new_and_leaves_the_lock(
        self, driver: Journal, world: World
    ) -> None:
        driver.record(closed(), definition=b"definition")
        before = world.snapshot()
        driver.record(closed("interrupted"))
        held = entries(driver)
        world.set_back(before)
        assert [driver.holds(entry.id) for entry in held] == [True, False]
        world.set_back(None)
        self.put_back(driver, held, ended(), ended(TWO))
        driver.record(closed("finished again"))

        found = entries(driver)
        assert found[:2] == held
        assert [entry.data for entry in found[2:]] == [ended(), ended(TWO), closed("finished again")]
        assert driver.read(held[-1].id, count=10) == found[2:]
        assert all(driver.holds(entry.id) for entry in found)
        assert driver.definition() == b"definition"
        driver.lock("driver-1", "", LONG_S)
        with pytest.raises(NameTaken, match="process 1 on head"):
            world.journal().lock("driver-2", "process 2 on head", LONG_S)

    @pytest.mark.parametrize("how", ["emptied", "set back"])
    def test_no_attempt_survives_and_the_next_one_can_be_staged(self, driver: Journal, world: World, how: str) -> None:
        before = None
        worker = world.journal()
        runs, waits = self.start(driver, worker, ONE), Claim(TWO, 1, "token-0002-1")
        worker.report([segment(runs, 1, 2)])
        driver.stage(TWO, 1, ASSIGNMENT, staged(TWO))
        if how == "set back":
            before = world.snapshot()
            worker.report([segment(runs, 3, 2)])
        held = entries(driver)
        world.set_back(before)

        attempts = (LastAttempt(ONE, 1, 102.0), LastAttempt(TWO, 1, 0.0))
        self.put_back(driver, held, ended(ONE, 1, AttemptEnd.LOST), ended(TWO, 1, AttemptEnd.LOST), attempts=attempts)

        found = entries(driver)
        assert worker.report([segment(runs, 5)]) == [FENCED]
        assert worker.renew([runs], LONG_S) == [FENCED]
        assert worker.put_checkpoint(runs, HELD, b"data") == FENCED
        assert worker.end(runs, ended()) is False
        assert worker.claim(waits, "w", LONG_S, started(waits)) == "ended"
        assert driver.expired() == []
        assert driver.unclaimed() == []
        assert driver.stage(ONE, 1, ASSIGNMENT, staged()) is False
        assert driver.close_trial(TWO, 1, trial_closed(TWO)) is True
        assert entries(driver)[:-1] == found
        again = Claim(ONE, 2, "token-0001-2")
        assert driver.stage(ONE, 2, ASSIGNMENT, staged(ONE, 2)) is True
        grant = worker.claim(again, "w", LONG_S, started(again))
        assert isinstance(grant, Grant)
        assert grant.timestamp == 102.0
        assert worker.report([segment(again, 1)]) == [""]

    def test_checkpoints_that_are_still_there_stay(self, driver: Journal, worker: Journal, world: World) -> None:
        claim = self.start(driver, worker, THREE)
        worker.put_checkpoint(claim, HELD, b"data")
        before = world.snapshot()
        worker.put_checkpoint(claim, HELD_TOO, b"more")
        assert driver.checkpoints() == {HELD, HELD_TOO}
        held = entries(driver)
        world.set_back(before)

        self.put_back(driver, held, attempts=(LastAttempt(THREE, 1, 0.0),))

        assert driver.checkpoints() == {HELD}
        assert driver.checkpoint(HELD) == b"data"
