"""The task of a seat of a gang is revoked while the gang waits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from mqtune.core.events import AttemptStarted, Requested, decode_event
from mqtune.core.seats import seat_names
from mqtune.core.trial import TrialId
from mqtune.journal.base import Assignment, Claim
from mqtune.journal.memory import MemoryJournal
from mqtune.journal.memory_server import MemoryServer
from mqtune.worker.attempt import WorkerServices, revoke

TRIAL = TrialId("0001")
GANG = Assignment({}, gang="2:any:1 CPU")
LEASE_S = 60.0


def start_of(claim: Claim) -> bytes:
    trial, seat = claim.seat
    return AttemptStarted(
        trial=trial, attempt=claim.attempt, worker="w", host="h", devices=[], at=1.0, seat=seat
    ).encode()


def test_a_gang_that_lacks_a_seat_is_not_started_by_a_revoke() -> None:
    server = MemoryServer()
    driver, worker = MemoryJournal(server, "e"), MemoryJournal(server, "e")
    driver.lock("token", "driver", LEASE_S)
    driver.record(b"", definition=b"d")
    driver.stage(TRIAL, 1, GANG, b"")
    first, second = (Claim(name, 1, name) for name in seat_names(TRIAL, 2))
    assert worker.claim(second, "w", LEASE_S, start_of(second)) == "seated"
    services: Any = SimpleNamespace(name="another", host="h", lease_s=LEASE_S, clock=SimpleNamespace(time=lambda: 1.0))

    revoke(cast("WorkerServices", services), worker, TRIAL, 1)

    events = [decode_event(entry.data) for entry in worker.read("0-0", count=10) if entry.data]
    assert [type(event) for event in events] == [Requested]
    assert worker.claim(second, "w", LEASE_S, start_of(second)) == "seated", "its seat is still its own"
    assert not isinstance(worker.claim(first, "w", LEASE_S, start_of(first)), str), "and the driver is to end it"
