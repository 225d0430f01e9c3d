"""The port between a driver and its services.

A service adds a feature to a driver. The driver knows no service by name: it calls the hooks of its services, in order.
docs/adr/0009-ports.md says when each hook is called, and how an error in it is handled.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from mqtune.backends.base import BackendSession
from mqtune.core.clock import Clock
from mqtune.core.errors import MqtuneError
from mqtune.core.events import Event
from mqtune.core.experiment import Experiment
from mqtune.core.resources import Resources
from mqtune.core.timing import Timing
from mqtune.driver.setup.options import RunOptions
from mqtune.driver.writing.actions import DriverAction
from mqtune.driver.writing.heartbeat import Heartbeat
from mqtune.driver.writing.ledger import Ledger, Restored

logger = logging.getLogger(__name__)

#: The pause after an error of a service, before its next ``tick``: the server may be away.
PAUSE_S: Final = 10.0


class Appetite(NamedTuple):
    """How many attempts a driver could have under way if there were slots for them.

    ``most`` is the largest number of them in any case; None for any number. ``has_more`` says whether it could start
    another one, as far as is known.
    """

    most: int | None
    has_more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverHost:
    """The parts of a driver that its services may use.

    Attributes:
        experiment: the fold of the journal, to be read only.
        backend: has the slots.
        ledger: has the journal, and knows the entries that the driver has read and written.
        heartbeat: exchanges states with the server.
        copy: the file with the driver's copy of the journal.
        resources: the resources of all trials, or one of them. All have as many seats.
        options: returns the options of the run that are in force: requests change them.
        appetite: returns how many attempts the driver could have under way.
        is_full: whether the server's memory is full, as of the last heartbeat.
        clock: the time by which the driver goes.
        timing: its intervals and time-outs.
    """

    experiment: Experiment
    backend: BackendSession
    ledger: Ledger
    heartbeat: Heartbeat
    copy: Path
    resources: Resources
    options: Callable[[], RunOptions]
    appetite: Callable[[], Appetite]
    is_full: Callable[[], bool]
    clock: Clock
    timing: Timing


class DriverService:
    """A feature of a driver. It overrides the hooks that it needs; the others do nothing."""

    #: When ``tick`` is to be called next, by the clock's ``monotonic``; infinite for never.
    due: float = math.inf

    def hear(self, event: Event) -> Sequence[DriverAction]:
        """Handle an event that the fold has applied, and return actions.

        It gets each event once, in the journal's order. A driver that resumes an experiment does not repeat the events
        of the earlier driver.
        """
        return ()

    def capacity(self) -> float:
        """Return how many attempts may be under way now; infinite for any number.

        It is called each time before an attempt is queued, and must be quick. When as many are under way, no other one
        is queued, and ``reason`` says why. Queued attempts start anyway, and running ones continue. To withdraw queued
        attempts, ``tick`` returns ``Requeue`` actions.
        """
        return math.inf

    def reason(self) -> str:
        """Return why nothing starts because of this service, for people.

        The result is empty while this service lets attempts be queued. It is called often, and must be quick.
        """
        return ""

    def tick(self) -> Iterable[DriverAction]:
        """Do the work that is due, set ``due`` to the next time, and return actions.

        It is called between two rounds, from the time ``due`` on. Each action is carried out before the next is asked
        for.
        """
        return ()

    def journal_lost(self) -> Restored | None:
        """Restore the journal. Return None if this service has nothing to restore it from.

        It is called when the server lacks entries that the driver has read or written, and when a driver opens an
        experiment of which the server lacks the beginning, or entries of the copy. The first service with a
        result ends the round. If none has one, a driver that has begun ends with JournalGone; a new one reads the
        entries that are there. The call happens within a read or a write, so the fold is in any state.

        Raises:
            JournalGone: it can't be restored.
            DriverFenced: a later driver has begun.
        """
        return None

    def close(self) -> None:
        """End, when the driver does."""


#: Makes services for a driver.
MakeServices = Callable[[DriverHost], Sequence[DriverService]]


def no_services(_: DriverHost) -> Sequence[DriverService]:
    """Return none: the kernel alone."""
    return ()


class DriverHooks:
    """Calls the hooks of a driver's services, in their order.

    An error in a hook is logged, and is shown as a reason; the loop continues.
    """

    def __init__(self, services: Sequence[DriverService], clock: Clock = time) -> None:
        self._services = services
        self._clock = clock
        #: By service and hook, the end of the pause after an error, and the text of the error.
        self._paused: dict[tuple[DriverService, str], tuple[float, str]] = {}

    def hear(self, event: Event) -> list[DriverAction]:
        """Pass an event to each service, and return their actions."""
        wanted: list[DriverAction] = []
        for service in self._services:
            try:
                wanted.extend(service.hear(event))
            except Exception as error:  # noqa: BLE001 - as the class says
                self._note(service, "hear", error)
        return wanted

    def capacity(self) -> float:
        """Return how many attempts all services let be under way.

        A service that can't say sets no limit for a while.
        """
        return min(map(self._capacity_of, self._services), default=math.inf)

    def _capacity_of(self, service: DriverService) -> float:
        if self._clock.monotonic() < self._pause_of(service, "capacity"):
            return math.inf
        try:
            return service.capacity()
        except Exception as error:  # noqa: BLE001 - as the class says
            self._note(service, "capacity", error)
            return math.inf

    @property
    def due(self) -> float:
        """When the next service is due."""
        return min(map(self._due_of, self._services), default=math.inf)

    def tick(self) -> Iterator[DriverAction]:
        """Yield the actions of the services that are due."""
        now = self._clock.monotonic()
        for service in self._services:
            if now < self._due_of(service):
                continue
            try:
                yield from service.tick()
            except Exception as error:  # noqa: BLE001 - as the class says
                self._note(service, "tick", error)

    def reason(self) -> str:
        """Return why nothing starts because of a service, for people."""
        reasons = [*map(self._reason_of, self._services)]
        now = self._clock.monotonic()
        errors = [text for until, text in self._paused.values() if now < until]
        return next(filter(None, (*reasons, *errors)), "")

    def _reason_of(self, service: DriverService) -> str:
        try:
            return service.reason()
        except Exception as error:  # noqa: BLE001 - as the class says
            self._note(service, "reason", error)
            return ""

    def journal_lost(self) -> Restored | None:
        """Have the first service that can restore the journal do so. Return None if none can.

        Raises:
            MqtuneError: the journal can't be restored, or the server is away; the driver ends.
        """
        for service in self._services:
            try:
                restored = service.journal_lost()
            except MqtuneError:
                raise
            except Exception as error:  # noqa: BLE001 - as the class says
                self._note(service, "journal_lost", error)
            else:
                if restored is not None:
                    return restored
        return None

    def close(self) -> None:
        """End the services, the last one first."""
        for service in reversed(self._services):
            try:
                service.close()
            except Exception as error:  # noqa: BLE001 - as the class says
                self._note(service, "close", error)

    def _due_of(self, service: DriverService) -> float:
        return max(service.due, self._pause_of(service, "tick"))

    def _pause_of(self, service: DriverService, hook: str) -> float:
        """Return when the pause of a hook ends, or has ended."""
        return self._paused.get((service, hook), (0.0, ""))[0]

    def _note(self, service: DriverService, hook: str, error: Exception) -> None:
        name = type(service).__name__
        logger.error("service %s of this driver failed; the driver goes on", name, exc_info=error)
        text = f"service {name} failed: {error}"
        self._paused[service, hook] = self._clock.monotonic() + PAUSE_S, text
