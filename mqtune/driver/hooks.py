"""The calls of the hooks of a driver's services, with their order and their errors."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from typing import Final

from mqtune.core.clock import Clock
from mqtune.core.errors import MqtuneError
from mqtune.core.events import Event
from mqtune.driver.ports import DriverService
from mqtune.driver.writing.actions import DriverAction
from mqtune.driver.writing.ledger import Restored

logger = logging.getLogger(__name__)

#: The pause after an error of a service, before its next ``tick``: the server may be away.
PAUSE_S: Final = 10.0


class DriverHooks:
    """Calls the hooks of a driver's services, in order.

    An error in a hook is logged, and the driver continues. For ``PAUSE_S`` seconds ``reason`` has the error.
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
                self._log_and_pause(service, "hear", error)
        return wanted

    def capacity(self) -> float:
        """Return the lowest limit of all services for the number of queued and running attempts.

        After an error, a service sets no limit for ``PAUSE_S`` seconds.
        """
        return min(map(self._capacity_of, self._services), default=math.inf)

    def _capacity_of(self, service: DriverService) -> float:
        if self._clock.monotonic() < self._pause_of(service, "capacity"):
            return math.inf
        try:
            return service.capacity()
        except Exception as error:  # noqa: BLE001 - as the class says
            self._log_and_pause(service, "capacity", error)
            return math.inf

    @property
    def due(self) -> float:
        """The monotonic time at which the next service is due."""
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
                self._log_and_pause(service, "tick", error)

    def reason(self) -> str:
        """Return the first service's reason why no attempt is queued, in words.

        Empty if all let one be queued.
        """
        reasons = [*map(self._reason_of, self._services)]
        now = self._clock.monotonic()
        errors = [text for until, text in self._paused.values() if now < until]
        return next(filter(None, (*reasons, *errors)), "")

    def _reason_of(self, service: DriverService) -> str:
        try:
            return service.reason()
        except Exception as error:  # noqa: BLE001 - as the class says
            self._log_and_pause(service, "reason", error)
            return ""

    def journal_lost(self) -> Restored | None:
        """Restore the journal by the first service that can. Return None if no service can.

        Raises:
            MqtuneError: the journal can't be restored, or the server is away. The driver ends.
        """
        for service in self._services:
            try:
                restored = service.journal_lost()
            except MqtuneError:
                raise
            except Exception as error:  # noqa: BLE001 - as the class says
                self._log_and_pause(service, "journal_lost", error)
            else:
                if restored is not None:
                    return restored
        return None

    def close(self) -> None:
        """Close the services in reverse order."""
        for service in reversed(self._services):
            try:
                service.close()
            except Exception as error:  # noqa: BLE001 - as the class says
                self._log_and_pause(service, "close", error)

    def _due_of(self, service: DriverService) -> float:
        return max(service.due, self._pause_of(service, "tick"))

    def _pause_of(self, service: DriverService, hook: str) -> float:
        """Return the monotonic time at which the pause of a hook ends. 0 if it never had an error."""
        return self._paused.get((service, hook), (0.0, ""))[0]

    def _log_and_pause(self, service: DriverService, hook: str, error: Exception) -> None:
        name = type(service).__name__
        logger.error("service %s of this driver failed; the driver continues", name, exc_info=error)
        text = f"service {name} failed: {error}"
        self._paused[service, hook] = self._clock.monotonic() + PAUSE_S, text
