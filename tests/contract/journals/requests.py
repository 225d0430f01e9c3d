"""The contract of requests: anybody may append one, and each is in the journal once."""

from __future__ import annotations

from functools import partial

import pytest
from contract.journals.world import InWorld, World, all_at_once, closed, entries, kinds

from mqtune.core.errors import JournalGone
from mqtune.core.events import Requested, decode_event
from mqtune.journal.base import Journal


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

    def test_a_request_is_in_the_journal_as_it_was_made(self, begun: Journal, worker: Journal) -> None:
        entry = worker.request(requested())

        last = entries(begun)[-1]
        assert (last.id, decode_event(last.data)) == (entry, requested())

    def test_a_request_that_is_repeated_is_not_written_again_and_has_the_same_entry(
        self, begun: Journal, worker: Journal, world: World
    ) -> None:
        first = worker.request(requested())
        second = worker.request(requested("r2"))

        assert worker.request(requested()) == first
        assert world.journal().request(requested(action="stop")) == first
        assert worker.request(requested("r2")) == second != first
        assert kinds(begun) == ["ExperimentEnded", "Requested", "Requested"]

    def test_of_eight_that_make_one_request_at_once_all_get_its_one_entry(self, begun: Journal, world: World) -> None:
        journals = [world.journal() for _ in range(8)]

        answers = all_at_once([partial(journal.request, requested()) for journal in journals])

        assert set(answers) == {entries(begun)[-1].id}
        assert kinds(begun) == ["ExperimentEnded", "Requested"]

    def test_a_request_needs_no_driver_and_the_next_one_reads_it(self, begun: Journal, world: World) -> None:
        begun.unlock("driver-1")

        entry = world.journal().request(requested())

        heir = world.journal()
        heir.lock("driver-2", "", 600.0)
        assert heir.read("0-0", count=10)[-1].id == entry

    def test_an_experiment_that_has_not_begun_takes_no_request(self, driver: Journal, worker: Journal) -> None:
        with pytest.raises(JournalGone, match="no experiment 'x'"):
            worker.request(requested())

        assert entries(driver) == []

    def test_an_experiment_that_was_erased_knows_no_earlier_request(self, begun: Journal, worker: Journal) -> None:
        worker.request(requested())

        begun.erase([])
        with pytest.raises(JournalGone):
            worker.request(requested())
        begun.record(closed(), definition=b"another")
        worker.request(requested())

        assert kinds(begun) == ["ExperimentEnded", "Requested"]

    def test_requests_that_were_put_back_are_not_written_again(
        self, begun: Journal, worker: Journal, world: World
    ) -> None:
        first = worker.request(requested())
        held = entries(begun)
        worker.request(requested("lost"))
        world.set_back(None)
        with pytest.raises(JournalGone):
            worker.request(requested())

        begun.restore(
            lambda: held,
            [],
            [],
            requests={"r1": first},
            definition=b"definition",
        )

        assert worker.request(requested()) == first
        assert entries(begun) == held
        worker.request(requested("lost"))
        assert kinds(begun) == ["ExperimentEnded", "Requested", "Requested"]
