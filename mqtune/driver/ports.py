"""The port between a driver and its services: what a service may do, and what the driver lends it.

A service adds a feature to a driver. The driver knows no service by name: it calls the hooks of those that it is given,
in their order. docs/adr/0009-ports.md says which hook is called when, and what an error in one does.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from mqtune.backends.base import BackendSession
from mqtune.core.clock import Clock
from mqtune.core.events import Event
from mqtune.core.experiment import Experiment
from mqtune.core.timing import Timing
from mqtune.driver.actions import DriverAction
from mqtune.driver.heartbeat import Heartbeat
from mqtune.journal.restore import Restorer
from mqtune.trainable.bundle import Bundle
from mqtune.trainable.cells import Cell
from mqtune.trainable.spec import TrainableSpec

logger = logging.getLogger(__name__)

#: For how long a service is left alone whose ``tick`` has raised an error, such as that of a server that is away.
PAUSE_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverHost:
    """What a driver lends its services.

    Attributes:
        experiment: the fold of the journal, to be read only.
        backend: has the slots.
        restorer: has the journal, and puts it back where the server has lost it.
        heartbeat: has what driver and server know of each other.
        copy: the file with the driver's copy of the journal.
        is_full: whether the server's memory is full, as of the last heartbeat.
        clock: the time by which the driver goes.
        timing: its intervals and time-outs.
    """

    experiment: Experiment
    backend: BackendSession
    restorer: Restorer
    heartbeat: Heartbeat
    copy: Path
    is_full: Callable[[], bool]
    clock: Clock
    timing: Timing


class DriverService:
    """A feature of a driver. It overrides the hooks that it needs; the others do nothing."""

    #: When ``tick`` is to be called next, by the clock's ``monotonic``; infinite for never.
    due: float = math.inf
    #: Why nothing starts because of this service, for people; empty while it holds nothing up.
    reason: str = ""

    def hear(self, event: Event) -> Sequence[DriverAction]:
        """Hear of an event that the fold has taken in, and return what is to be done because of it.

        It hears each event once, in the journal's order. A driver that continues an experiment does not repeat what an
        earlier one has heard.
        """
        return ()

    def tick(self) -> Iterable[DriverAction]:
        """Do what is due, set ``due`` anew, and return what is to be done.

        It is called between two rounds, once ``due`` has come. Each action is carried out before the next is asked for.
        """
        return ()

    def close(self) -> None:
        """End, when the driver does."""


#: Makes services for a driver.
MakeServices = Callable[[DriverHost], Sequence[DriverService]]


def no_services(_: DriverHost) -> Sequence[DriverService]:
    """Return none: the kernel alone."""
    return ()


class DriverHooks:
    """Calls the hooks of a driver's services, in their order.

    An error in one is logged, is a reason why nothing may start, and ends no round of the loop.
    """

    def __init__(self, services: Sequence[DriverService], clock: Clock = time) -> None:
        self._services = services
        self._clock = clock
        #: Until when a service is left alone, and what its error was.
        self._paused: dict[DriverService, tuple[float, str]] = {}

    def hear(self, event: Event) -> list[DriverAction]:
        """Tell of an event, and return what all services want done because of it."""
        wanted: list[DriverAction] = []
        for service in self._services:
            try:
                wanted.extend(service.hear(event))
            except Exception as error:  # noqa: BLE001 - as the class says
                self._note(service, error)
        return wanted

    @property
    def due(self) -> float:
        """When the next service is due."""
        return min(map(self._due_of, self._services), default=math.inf)

    def tick(self) -> Iterator[DriverAction]:
        """Yield what the services want done that are due."""
        now = self._clock.monotonic()
        for service in self._services:
            if now < self._due_of(service):
                continue
            self._paused.pop(service, None)
            try:
                yield from service.tick()
            except Exception as error:  # noqa: BLE001 - as the class says
                self._note(service, error)

    @property
    def reason(self) -> str:
        """Why nothing starts because of a service, for people."""
        reasons = (service.reason for service in self._services)
        return next(filter(None, (*reasons, *(text for _, text in self._paused.values()))), "")

    def close(self) -> None:
        """End the services, the last one first."""
        for service in reversed(self._services):
            try:
                service.close()
            except Exception as error:  # noqa: BLE001 - as the class says
                self._note(service, error)

    def _due_of(self, service: DriverService) -> float:
        return max(service.due, self._paused.get(service, (0.0, ""))[0])

    def _note(self, service: DriverService, error: Exception) -> None:
        name = type(service).__name__
        logger.error("service %s of this driver failed; the driver goes on", name, exc_info=error)
        text = f"service {name} failed: {error}"
        self._paused[service] = self._clock.monotonic() + PAUSE_S, text


#: The hooks of a driver without services.
NO_HOOKS: Final = DriverHooks(())


class Project(Protocol):
    """The files of a program that a driver brings to its workers, as the kernel sees them."""

    @property
    def needs_key(self) -> str:
        """The setting of the user for which a key is needed, for people."""

    @property
    def has_all(self) -> bool:
        """Whether all files of a folder are brought, so that trials can run in it."""

    @property
    def root(self) -> str:
        """The path of the code root in the bundle."""

    @property
    def written(self) -> Mapping[Path, bytes]:
        """The content of the files that are not on the disk, by their paths."""

    @property
    def script(self) -> Path | None:
        """The script whose names the written module uses."""

    def pack(self, sources: Mapping[str, bytes]) -> Bundle:
        """Return the bundle of its files as they are now.

        Args:
            sources: the trainable's file and its imported files, by their paths from its folder.

        Raises:
            ConfigurationError: they can't be packed, or the trainable's file is not among them.
        """

    def changed_since(self, before: Bundle) -> list[str]:
        """Return the names of the files that differ from an earlier bundle's. Files that no trial runs don't count."""


class MakeProject(Protocol):
    """Makes the project of a plan, before there is a driver."""

    def __call__(
        self,
        folder: str | Path | None,
        spec: TrainableSpec,
        code_root: Path,
        outside: Iterable[str | Path] = (),
        cell: Cell | None = None,
    ) -> Project:
        """Return the project.

        Args:
            folder: the folder of the user; None where only the trainable and its imports are brought.
            spec: the trainable.
            code_root: the folder below which the trainable was found.
            outside: folders whose files are no code, such as a checkpoint store.
            cell: the trainable's written module; None where it has a file.

        Raises:
            ConfigurationError: the folder does not exist, or the trainable is not in it.
        """
