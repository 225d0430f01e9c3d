"""The services of a driver, in the order in which their hooks are called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final

from mqtune.driver import CheckDeployment, MakeProject
from mqtune.driver.ports import DriverHost, DriverService
from mqtune.services.code import driver as code
from mqtune.services.gangs import driver as gangs
from mqtune.services.recovery import driver as recovery
from mqtune.services.retention import driver as retention
from mqtune.services.shares import driver as shares

SERVICES: Final[tuple[Callable[[DriverHost], Sequence[DriverService]], ...]] = (
    recovery.for_driver,
    shares.for_driver,
    retention.for_driver,
)
#: Makes the project whose files a driver brings to workers. The first one is used.
PROJECTS: Final[tuple[MakeProject, ...]] = (code.for_settings,)
#: The services' checks of the place where trials are to run.
CHECKS: Final[tuple[CheckDeployment, ...]] = (gangs.check_for_settings,)


def driver_services(host: DriverHost) -> Sequence[DriverService]:
    """Return the services of a driver."""
    return tuple(chain.from_iterable(make(host) for make in SERVICES))


def project_maker() -> MakeProject | None:
    """Return the maker of an experiment's project. Return None if there is no service for that."""
    return next(iter(PROJECTS), None)
