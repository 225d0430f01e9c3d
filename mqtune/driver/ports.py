"""The interface between a driver and its services.

A service adds a feature to a driver. The driver knows no service by name: it calls the hooks of its services, in order.
An error in a hook is logged and in ``mqtune why``. Only ``journal_lost`` may end the driver, by an MqtuneError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mqtune.backends.base import BackendSession
from mqtune.core.clock import Clock
from mqtune.core.events import Event
from mqtune.core.experiment import Experiment
from mqtune.core.resources import Resources
from mqtune.core.timing import Timing
from mqtune.driver.setup.options import RunOptions
from mqtune.driver.writing.actions import DriverAction
from mqtune.driver.writing.heartbeat import Heartbeat
from mqtune.driver.writing.ledger import Ledger, Restored


class Appetite(NamedTuple):
    """How many attempts a driver would run if it had slots for them."""

    #: Limit of the number of attempts under way. None: no limit.
    most: int | None
    #: Whether the driver would start another attempt in another slot, as far as it knows.
    has_more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverHost:
    """The parts of a driver that its services may use.

    The functions among them work as soon as the first hook is called, but not yet while a service is made.

    Attributes:
        experiment: the fold of the journal. Only read it.
        backend: has the slots.
        ledger: has the journal, and knows the entries that the driver has read and written.
        heartbeat: sends the driver's state to the server, and has the server's state.
        copy: the file with the driver's copy of the journal.
        resources: the resources of all trials or, if they depend on the config, an example. The number of slots is
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
