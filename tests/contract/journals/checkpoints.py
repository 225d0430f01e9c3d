"""What a journal promises of checkpoints: those that it holds, and what it says of all of them."""

from __future__ import annotations

from typing import Any, Final

import pytest
from contract.journals.world import (
    ASSIGNMENT,
    HELD,
    HELD_TOO,
    LONG_S,
    ONE,
    OTHER,
    STORED,
    TWO,
    InWorld,
    World,
    dropped,
    ended,
    entries,
    kinds,
    saved,
    staged,
    unlike,
)

from mqtune.journal import FENCED, Claim, Journal

#: The most that a checkpoint in memory may have.
MAX_DATA: Final = 1_000_000


class CheckpointContract(InWorld):
    """What is held is held until it is dropped; each checkpoint is journaled once."""

    @pytest.mark.parametrize("data", [b"", b"\x00\xff \r\n", bytes(range(256)) * (MAX_DATA // 256)], ids=len)
    def test_a_checkpoint_can_be_had_as_it_was_put_first_by_anybody_of_its_experiment(
        self, worker: Journal, held: Claim, world: World, data: bytes
    ) -> None:
        before = entries(worker)
        assert worker.checkpoint(HELD) is None

        for each in (data, b"another"):
            assert worker.put_checkpoint(held, HELD, each) == ""

        assert world.journal().checkpoint(HELD) == data
        assert world.journal("y").checkpoint(HELD) is None
        assert entries(worker) == before, "it is no news"

    def test_a_checkpoint_that_the_server_has_lost_is_brought_and_what_it_has_stays(
        self, driver: Journal, worker: Journal, held: Claim
    ) -> None:
        worker.put_checkpoint(held, HELD, b"as it was")

        for checkpoint in (HELD, HELD_TOO):
            driver.bring_checkpoint(checkpoint, b"brought")

        assert (driver.checkpoint(HELD), driver.checkpoint(HELD_TOO)) == (b"as it was", b"brought")

    @pytest.mark.parametrize("change", [{"token": OTHER}, {"attempt": 2}, {"trial": TWO}, {"token": ""}])
    def test_checkpoints_of_anyone_but_the_holder_are_refused(
        self, worker: Journal, held: Claim, change: dict[str, Any]
    ) -> None:
        before = entries(worker)
        stranger = unlike(held, **change)

        assert worker.put_checkpoint(stranger, HELD, b"data") == FENCED
        assert worker.saved(stranger, {HELD: saved(HELD)}) == FENCED

        assert worker.checkpoint(HELD) is None
        assert entries(worker) == before

    @pytest.mark.parametrize("how", ["ended", "superseded"])
    def test_checkpoints_of_an_attempt_that_no_longer_counts_are_refused(
        self, driver: Journal, worker: Journal, held: Claim, how: str
    ) -> None:
        if how == "ended":
            worker.end(held, ended())
        else:
            driver.stage(ONE, 2, ASSIGNMENT, staged(ONE, 2))
        before = entries(worker)

        assert worker.put_checkpoint(held, HELD, b"data") == FENCED
        assert worker.saved(held, {HELD: saved(HELD)}) == FENCED

        assert worker.checkpoint(HELD) is None
        assert entries(worker) == before

    def test_what_is_dropped_is_gone_and_the_rest_stays(self, driver: Journal, worker: Journal, held: Claim) -> None:
        worker.put_checkpoint(held, HELD, b"one")
        worker.put_checkpoint(held, HELD_TOO, b"two")

        driver.drop_checkpoints([HELD, STORED], dropped(HELD, STORED))

        assert worker.checkpoint(HELD) is None
        assert worker.checkpoint(HELD_TOO) == b"two"
        assert entries(driver)[-1].data == dropped(HELD, STORED)
        # What was written again is dropped again.
        worker.put_checkpoint(held, HELD, b"one")
        driver.drop_checkpoints([HELD, STORED], dropped(HELD, STORED))
        assert worker.checkpoint(HELD) is None
        assert kinds(driver).count("CheckpointsDropped") == 1

    def test_dropping_twice_is_journaled_once_and_dropping_nothing_never(self, driver: Journal, world: World) -> None:
        driver.drop_checkpoints([], dropped())
        driver.drop_checkpoints([HELD, STORED], dropped(HELD, STORED))
        driver.drop_checkpoints([], dropped())
        driver.drop_checkpoints([HELD, STORED], dropped(HELD, STORED))
        driver.unlock("driver-1")
        heir = world.journal()
        heir.lock("driver-2", "", LONG_S)
        heir.drop_checkpoints([HELD, STORED], dropped(HELD, STORED))
        heir.drop_checkpoints([HELD_TOO], dropped(HELD_TOO))
        assert [entry.data for entry in entries(driver)] == [dropped(HELD, STORED), dropped(HELD_TOO)]
