"""The worker's part of gangs: waits for the other seats, and tells processes where they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from random import Random
from typing import Final
from weakref import WeakKeyDictionary

from mqtune.core.clock import Clock
from mqtune.journal import Grant, Refusal, Reserved
from mqtune.services.gangs.address import Address
from mqtune.services.gangs.settings import GangSettings
from mqtune.worker import RunResult, WorkerSettings
from mqtune.worker.ports import AttemptHere, SendClaim, WorkerHost, WorkerService

#: A worker waits longer by a random part of the time, up to this share. Two gangs that each hold half of the slots that
#: both need must not give up at the same moment.
_SPREAD: Final = 0.5
#: The interval in which a claim is repeated while its seat is held.
POLL_S: Final = 0.25
#: Why a seat is left to another worker, or for later.
_REFUSALS: Final = {
    "beside": "this worker has another seat of the same gang",
    "after": "another gang comes first",
    "left": "its other seats were not taken in time",
}
#: Its own random numbers, as drivers seed those of trials.
_spread: Final = Random().random


class Gangs(WorkerService):
    """Claims the seats of gangs, and brings their processes together.

    Args:
        lease_s: for how long each claim holds a seat.
        seat_s: the shortest time for which a seat is held until the others are taken.
        spread: a random number from 0 to 1.
    """

    def __init__(
        self, lease_s: float, seat_s: float, clock: Clock = time, spread: Callable[[], float] = _spread
    ) -> None:
        self._lease_s, self._seat_s = lease_s, seat_s
        self._clock, self._spread = clock, spread
        #: By attempt, the port that is reserved for its process; and after its claim, the journal's answer.
        self._ports: WeakKeyDictionary[AttemptHere, Address] = WeakKeyDictionary()
        self._grants: WeakKeyDictionary[AttemptHere, Grant] = WeakKeyDictionary()

    def claim(self, run: AttemptHere, send: SendClaim) -> Grant | RunResult | None:
        """Claim a seat, and wait for a bounded time until the others are taken."""
        if run.resources.seats == 1:
            return None
        self._ports[run] = port = Address()
        try:
            answer = self._claim(run, send, port.text)
        except BaseException:
            self._release(run)
            raise
        if isinstance(answer, Grant):
            self._grants[run] = answer
            return answer
        self._release(run)
        return RunResult(None, f"not run: {_REFUSALS.get(answer, answer)}", goes_back=answer in _REFUSALS)

    def _claim(self, run: AttemptHere, send: SendClaim, address: str) -> Grant | Refusal | Reserved:
        """Repeat a claim until the other seats are taken. Release the seat if that takes too long."""
        until = self._clock.monotonic() + self._seat_s * (1 + self._spread() * _SPREAD)
        while (answer := send(self._lease_s, address)) == "reserved":
            if run.wait(POLL_S) or self._clock.monotonic() >= until:
                return send(0, address)
        return answer

    def variables(self, run: AttemptHere) -> Mapping[str, str]:
        """Release the port for the seat's process, and return the variables that name the others."""
        self._release(run)
        grant = self._grants.get(run)
        return {} if grant is None else variables_of(run.claim.task[1], grant.assignment.tasks, grant.address)

    def ended(self, run: AttemptHere, result: RunResult) -> None:
        """Release the port of an attempt that has had no process."""
        self._release(run)

    def _release(self, run: AttemptHere) -> None:
        if (port := self._ports.pop(run, None)) is not None:
            port.give_up()


def variables_of(seat: int, seats: int, address: str) -> dict[str, str]:
    """Return the variables of a seat by the names of torchrun, to which each seat is a machine."""
    host, _, port = address.rpartition(":")
    return {
        "RANK": str(seat),
        "WORLD_SIZE": str(seats),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": str(seat),
        "NNODES": str(seats),
        "MASTER_ADDR": host.removeprefix("[").removesuffix("]"),
        "MASTER_PORT": port,
    }


def for_worker(host: WorkerHost, settings: WorkerSettings) -> tuple[WorkerService]:
    """Return the service that seats gangs."""
    return (Gangs(host.timing.lease_s, settings.of(GangSettings).seat_s),)
