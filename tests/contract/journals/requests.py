"""The contract of requests: anybody may append one, and each is in the journal once."""

from __future__ import annotations

import pytest
from contract.journals.world import (
    ASSIGNMENT,
    LONG_S,
    ONE,
    TWO,
    InWorld,
    World,
    closed,
    entries,
    kinds,
    staged,
    started,
)

from mqtune.core.errors import JournalGone
from mqtune.core.events import Requested, decode_event
from mqtune.journal import Claim, Grant, Journal, revocation


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

    def test_a_request_is_in_the_journal_as_it_was_made_and_not_again_when_it_is_repeated(
        self, begun: Journal, worker: Journal, world: World
    ) -> None:
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

    def test_an_attempt_whose_revocation_is_requested_while_it_waits_does_not_begin_whether_anybody_drives_or_not(
        self, begun: Journal, worker: Journal
    ) -> None:
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

    def test_requests_that_were_put_back_are_not_written_again(
        self, begun: Journal, worker: Journal, world: World
    ) -> None:
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
