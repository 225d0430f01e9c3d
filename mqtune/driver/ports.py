"""The interface between a driver and its services.

A service adds a feature to a driver. The driver knows no service by name: it calls the hooks of its services, in order.
docs/adr/0009-ports.md says when each hook is called, and how an error in it is handled.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from mqtune.backends.base import BackendSession
from mqtune.core.clock import Clock
from mqtune.core.errors import MqtuneError
from mqtune.core.events import Event
from mqtune.core.experiment import Experiment
from mqtune.core.resources import Resources
from mqtune.core.timing import Timing
from mqtune.driver.actions import DriverAction
from mqtune.driver.heartbeat import Heartbeat
from mqtune.driver.ledger import Ledger, Restored
from mqtune.driver.options import RunOptions
from mqtune.trainable.bundle import Bundle
from mqtune.trainable.cells import Cell
from mqtune.trainable.spec import TrainableSpec

logger = logging.getLogger(__name__)

#: After an error, a service's hook is not called for this many seconds: the server may be away.
PAUSE_S: Final = 10.0


class Appetite(NamedTuple):
    """How many attempts a driver would run if it had slots for them."""

    #: Limit of the number of attempts under way. None: no limit.
    most: int | None
    #: Whether the driver would start another attempt in another slot, as far as it knows.
    has_more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverHost:
    """The parts of a driver that its services may use.

    Attributes:
        experiment: the fold of the journal. Only read it.
        backend: has the slots.
        ledger: has the journal, and knows the entries that the driver has read and written.
        heartbeat: sends the driver's state to the server, and has the server's state.
        copy: the file with the driver's copy of the journal.
        resources: the resources of all trials or, if they depend on the config, an example. The number of seats is
            always the same.
        options: returns the current options of the run. Requests may change them.
        appetite: returns how many attempts the driver would run if it had slots.
        is_full: returns whether the server's memory is full, as of the last heartbeat.
        clock: the driver's clock.
        timing: the driver's intervals and time-outs.
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

    #: The next time to call ``tick``, on the clock's ``monotonic``. Infinite for never.
    due: float = math.inf

    def hear(self, event: Event) -> Sequence[DriverAction]:
        """Process an event that the fold has applied, and return actions.

        The driver calls this once for each new event, in the journal's order. Events of earlier drivers are not
        repeated.
        """
        return ()

    def capacity(self) -> float:
        """Return the largest number of attempts that may be queued or running now.

        Infinite sets no limit. This is called before each attempt is queued, and must be quick. At the limit no further
        attempt is queued, and ``reason`` says why. Queued attempts start anyway, and running ones continue. To withdraw
        queued attempts, ``tick`` returns ``Requeue`` actions.
        """
        return math.inf

    def reason(self) -> str:
        """Return in words why this service lets no attempt be queued. Empty if it lets one.

        This is called often, and must be quick.
        """
        return ""

    def tick(self) -> Iterable[DriverAction]:
        """Do the work that is due, set ``due`` to the next time, and return actions.

        This is called between two rounds when ``due`` has passed. Each action is carried out before the next one is
        taken from the iterable.
        """
        return ()

    def journal_lost(self) -> Restored | None:
        """Restore the journal. Return None if this service has nothing to restore it from.

        This is called when the server lacks entries that the driver has read or written, and when a driver opens an
        experiment of which the server lacks the beginning, or entries of the copy. The first service with a result ends
        the round. If none has one, a driver that has begun ends with JournalGone; a new one reads the entries that are
        there. The call happens within a read or a write, so the fold is in any state.

        Raises:
            JournalGone: it can't be restored.
            DriverFenced: a later driver has begun.
        """
        return None

    def close(self) -> None:
        """Release the service's resources, when the driver ends."""


#: Makes services for a driver.
MakeServices = Callable[[DriverHost], Sequence[DriverService]]


def no_services(_: DriverHost) -> Sequence[DriverService]:
    """Return no services, for a driver without features."""
    return ()


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


#: Checks before the start that the place can run trials with these resources, and raises an ``MqtuneError`` if not. The
#: place is a backend's session. None stands for a single local worker.
CheckDeployment = Callable[[Sequence[Resources], BackendSession | None], None]


class ProgramFiles(Protocol):
    """The files of a program that a driver sends to its workers."""

    @property
    def needs_key(self) -> str:
        """The setting that makes the key necessary, such as ``Process(bundle=…)``, for messages."""

    @property
    def has_all(self) -> bool:
        """Whether the bundle has all files of a folder, so that trials can run in that folder."""

    @property
    def root(self) -> str:
        """The path of the code root in the bundle."""

    @property
    def written(self) -> Mapping[Path, bytes]:
        """The content of generated files that are not on the disk, by path."""

    @property
    def script(self) -> Path | None:
        """The script whose names the generated module uses. None without a generated module."""

    def pack(self, sources: Mapping[str, bytes]) -> Bundle:
        """Return a bundle of the files as they are now.

        Args:
            sources: the content of the trainable's file and of its imported files, by path relative to its folder.

        Raises:
            ConfigurationError: the files can't be packed, or the trainable's file is not among them.
        """

    def changed_since(self, before: Bundle) -> list[str]:
        """Return the names of the trials' files that have changed since an earlier bundle."""


class MakeProject(Protocol):
    """Makes the ``ProgramFiles`` of an experiment, before there is a driver."""

    def __call__(
        self,
        folder: str | Path | None,
        spec: TrainableSpec,
        code_root: Path,
        outside: Iterable[str | Path] = (),
        cell: Cell | None = None,
    ) -> ProgramFiles:
        """Return the files of the program.

        Args:
            folder: the user's folder to send. None: only the trainable's file and its imports are sent.
            spec: the trainable.
            code_root: the folder below which the trainable was found.
            outside: folders that are left out because their files are no code, such as a checkpoint store.
            cell: the generated module of a trainable without a file, as in a notebook. None if it has a file.

        Raises:
            ConfigurationError: the folder does not exist, or the trainable is not in it.
        """
