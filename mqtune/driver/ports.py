"""The port between a driver and its services.

A service adds a feature to a driver. The driver knows no service by name: it calls the hooks of its services, in order.
docs/adr/0009-ports.md says when each hook is called, and how an error in it is handled.
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
