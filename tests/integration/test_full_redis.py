"""A server whose memory is used up (``maxmemory``): what keeps or frees goes on, and what takes memory waits until there is room."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from contract.journals.gangs import ANY, seat_claims, take
from contract.journals.world import (
    ASSIGNMENT,
    HELD,
    INFO,
    LONG_S,
    ONE,
    SHORT_S,
    THREE,
    TWO,
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
from servers import EACH_SERVER, started_on
from waiting import DEADLINE_S, eventually

from mqtune.backends import EmbeddedServer
from mqtune.core.errors import BrokerFull
from mqtune.core.events import AttemptEnded, Requested, decode_event
from mqtune.core.keys import ExperimentKeys
from mqtune.core.trial import CheckpointId, Intent, TrialId
from mqtune.journal import FENCED, Claim, Fleet, Grant, Order, RedisClient, RedisJournal, Unclaimed, connect
from mqtune.services.shares.demands import Demands
from mqtune.services.shares.divider import Demand, Share
from mqtune.services.shares.quotas import Quotas
from mqtune.services.upkeep.deletion import DeletableJournal

#: How long a call goes on trying where a person waits for it.
PATIENCE_S = 0.1
TRIALS = [ONE, TWO, THREE]
DEFINITION = b"a definition"


class Filled:
    """A server with an experiment in which three attempts run, and a fourth is staged; it has no memory left until it gets some."""

    def __init__(self, client: RedisClient) -> None:
        self.client = client
        self.driver = DeletableJournal(client, "x", patience_s=PATIENCE_S)
        self.worker = RedisJournal(client, "x", patience_s=PATIENCE_S)
        self.fleet = Fleet(client, patience_s=PATIENCE_S)
        self.claims = [Claim(trial, 1, "t") for trial in TRIALS]
        self.driver.lock("driver-1", "process 1 on head", LONG_S)
        self.driver.record(closed(), definition=DEFINITION)
        self.fleet.join(INFO, LONG_S)
        for claim in self.claims:
            self.driver.stage(claim.trial, 1, ASSIGNMENT, staged(claim.trial))
            self.worker.claim(claim, INFO.name, LONG_S, started(claim))
        self.driver.stage(TrialId("0004"), 1, ASSIGNMENT, staged(TrialId("0004")))
        self.worker.put_checkpoint(self.claims[0], HELD, b"data")
        self.fill()

    def claim(self) -> object:
        return self.worker.claim(Claim(TrialId("0004"), 1, "t"), INFO.name, LONG_S, started(self.claims[0]))

    def claim_under_a_quota(self) -> object:
        self.make_room()
        Quotas(self.client, patience_s=PATIENCE_S).set("x*", 9)
        self.fill()
        return self.claim()

    def fill(self) -> None:
        self.client.config_set("maxmemory", 1)

    def make_room(self) -> None:
        self.client.config_set("maxmemory", 0)


@pytest.fixture(scope="module", params=EACH_SERVER)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer.start(tmp_path_factory.mktemp("full"), binary=started_on(request)) as running:
        yield running


@pytest.fixture
def full(server: EmbeddedServer) -> Iterator[Filled]:
    with contextlib.closing(connect(server.url)) as client:
        client.flushall()
        filled = Filled(client)
        try:
            yield filled
        finally:
            filled.make_room()


def request(action: str) -> Requested:
    return Requested(id=f"a {action}", action=action, trial="", arguments={}, by="me", at=1.0)


def test_a_driver_keeps_its_lock_and_steers_on_a_full_server(full: Filled) -> None:
    driver = full.driver

    driver.lock("driver-1", "process 1 on head", LONG_S)
    driver.record(closed())
    assert driver.intend(ONE, 1, Intent.STOP, decided(), ended()) == "running"
    assert driver.order([Order.save(TWO, 1, 1)]) == [True]
    driver.drop_checkpoints([HELD], dropped(HELD))
    assert driver.look([(TWO, 1)], LONG_S).under_way == [True]
    assert driver.lose(TWO, 1, "any", ended(TWO))
    assert driver.stage(TWO, 2, ASSIGNMENT, staged(TWO, 2))
    full.client.delete(ExperimentKeys("x").trial(THREE))
    assert driver.lose(THREE, 1, "gone", ended(THREE))
    assert driver.close_trial(THREE, 1, trial_closed(THREE))
    demand = Demand(experiment="token", queues=("q",), wanted=1)
    assert Demands(full.client, patience_s=PATIENCE_S).exchange("experiment", demand) == Share()


def test_who_asks_for_an_end_is_heard_and_a_worker_keeps_its_attempts_and_ends_them_on_a_full_server(full: Filled):
    for action in ("stop", "end", "set"):
        assert full.worker.request(request(action)) == entries(full.driver)[-1].id
    fourth = Unclaimed(TrialId("0004"), 1, INFO.name)

    for _ in range(3):
        full.fleet.keep(INFO, LONG_S)
        full.worker.hold([fourth], LONG_S)
        assert full.worker.renew(full.claims, LONG_S) == [""] * 3

    full.fleet.announce(INFO.name, "changed")
    full.fleet.leave(INFO.name)
    assert full.fleet.workers() == []
    assert full.worker.end(full.claims[0], ended())
    assert isinstance(decode_event(entries(full.driver)[-1].data), AttemptEnded)
    assert [each.trial for each in full.driver.unclaimed() if each.worker] == [fourth.trial]


def test_a_claim_that_was_granted_is_granted_again_on_a_full_server(full: Filled) -> None:
    claim = full.claims[0]

    # Its worker repeats a claim whose answer was lost.
    assert isinstance(full.worker.claim(claim, INFO.name, LONG_S, started(claim)), Grant)


def test_a_seat_that_the_claim_of_another_seat_has_started_is_granted_and_keeps_its_lease_on_a_full_server(
    full: Filled,
) -> None:
    full.make_room()
    gang = TrialId("0005")
    full.driver.stage(gang, 1, ANY, staged(gang))
    first, second = seat_claims(gang, seats=2)
    assert take(full.worker, second) == "reserved"
    assert isinstance(take(full.worker, first, lease_s=SHORT_S), Grant)
    full.fill()

    # Its worker renews no lease before it has this answer.
    assert isinstance(take(full.worker, second), Grant)

    eventually(lambda: first.trial in full.driver.expired())
    assert full.driver.expired() == [first.trial]


def test_an_experiment_is_deleted_from_a_full_server_and_what_its_trials_still_send_is_refused(full: Filled) -> None:
    full.driver.forget(TRIALS)

    assert full.driver.definition() is None
    assert full.worker.report([segment(full.claims[0], 1)]) == [FENCED]


GROWING: dict[str, Callable[[Filled], object]] = {
    "report": lambda full: full.worker.report([segment(full.claims[0], 1)]),
    "claim": Filled.claim,
    "claim under a quota": Filled.claim_under_a_quota,
    "checkpoint": lambda full: full.worker.put_checkpoint(full.claims[1], HELD, b"data"),
    "saved": lambda full: full.worker.saved(full.claims[1], {CheckpointId("p-0002-1-1.t"): b"an event"}),
    "added trial": lambda full: full.worker.request(request("add")),
}


@pytest.mark.parametrize("what", GROWING)
def test_what_takes_memory_is_refused_with_the_way_out_where_a_person_waits(full: Filled, what: str) -> None:
    before = entries(full.driver)

    with pytest.raises(BrokerFull, match=r"Redis is full \(maxmemory\).*raise its maxmemory.*mqtune delete"):
        GROWING[what](full)

    assert entries(full.driver) == before


def test_a_claim_waits_for_room_as_long_as_its_worker_is_patient_and_says_so_once(
    full: Filled, caplog: pytest.LogCaptureFixture
) -> None:
    full.worker.patience_s = math.inf
    answers: list[object] = []
    caller = threading.Thread(target=lambda: answers.append(full.claim()), daemon=True)

    caller.start()
    caller.join(4 * PATIENCE_S)
    assert caller.is_alive(), "it has given up, or did not wait"
    full.make_room()
    caller.join(DEADLINE_S)

    assert isinstance(answers[0], Grant)
    assert caplog.text.count("Redis is full") == 1
    eventually(lambda: "Redis has free memory again after" in caplog.text)


def test_the_room_that_is_left_is_known(full: Filled) -> None:
    def room(limit: float) -> Any:
        full.client.config_set("maxmemory", int(limit))
        return full.driver.room()

    assert (room(1).is_full, "Redis is full" in room(1).shortage) == (True, True)
    assert (room(1e10).is_full, room(1e10).shortage) == (False, "")
    assert "nearly full" in room(1.15 * room(1e10).used).shortage
