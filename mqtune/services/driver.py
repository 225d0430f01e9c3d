"""The services of a driver, in the order in which their hooks are called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final

from mqtune.driver.ports import DriverHost, DriverService
from mqtune.services.retention import driver as retention
from mqtune.services.shares import driver as shares

SERVICES: Final[tuple[Callable[[DriverHost], Sequence[DriverService]], ...]] = (
    shares.for_driver,
    retention.for_driver,
)


def driver_services(host: DriverHost) -> Sequence[DriverService]:
    """Return the services of a driver."""
    return tuple(chain.from_iterable(make(host) for make in SERVICES))
