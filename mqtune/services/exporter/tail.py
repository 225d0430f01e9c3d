"""Reads the newest entries of a growing journal without folding it.

So one process can watch many experiments.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from mqtune.core.entries import readable_events
from mqtune.core.events import (
    START,
    AttemptEnded,
    AttemptStarted,
    DriverStarted,
    ExperimentCreated,
    ExperimentEnded,
    TrialStaged,
)
from mqtune.core.owner import Owner
from mqtune.core.trial import TrialId
from mqtune.journal import Entry, RedisClient, RedisJournal, entry_order

#: These newest entries show whether an experiment has ended: only a few events follow its end.
_LAST_COUNT: Final = 50
#: These newest entries show where most of the attempts under way run. It is also the size of a page: some hundred
#: kilobytes.
_PAGE_COUNT: Final = 1_000


class Ended(NamedTuple):
    """An attempt that has run and ended. ``devices`` has those of its slot, separated by commas."""

    worker: str
    devices: str
    end: str


class Tail:
    """Reads an experiment's journal from its newest entries on, each entry once.

    Reports are not decoded. Unreadable entries and new chapters' entries are left out, so no store is needed. The end
    of an attempt that began before the newest thousand entries is left out, too, as its worker is unknown.

    Args:
        client: a checked connection.
        experiment: the experiment's name.
        patience_s: how long a call is repeated while the server is away.

    Attributes:
        owner: the experiment's creator; None if the first event is missing or can't be read.
        has_ended: whether the experiment has ended, as far as the journal was read.
        last: the newest entry that was read; empty for none.

    Raises:
        BrokerUnavailable: the server is away.
        AccessDenied: the account may not read it.
        MessageVersionError: the key is not a journal.
    """

    def __init__(self, client: RedisClient, experiment: str, *, patience_s: float) -> None:
        self._journal = RedisJournal(client, experiment, patience_s=patience_s)
        self.owner: Owner | None = None
        self.has_ended = False
        #: Number of the running attempt, its worker and its devices, by trial.
        self._running: dict[TrialId, tuple[int, str, str]] = {}
        newest = self._journal.newest(_LAST_COUNT)
        first = self._journal.first()
        self._begin([*([] if first is None else [first]), *reversed(newest)])
        if not self.has_ended and len(newest) == _LAST_COUNT:
            newest = self._journal.newest(_PAGE_COUNT)
            self._begin(reversed(newest))
        self.last = newest[0].id if newest else ""

    def read_new(self, deadline: float) -> Iterator[Ended]:
        """Read new entries, and yield the attempts that have ended.

        After the deadline, the next call continues.

        Args:
            deadline: when to stop, by the monotonic clock.

        Raises:
            as for the class.
        """
        while time.monotonic() < deadline:
            page, _ = self._journal.read_server(self.last or START.entry, _PAGE_COUNT)
            if page:
                yield from self._fold(page)
                self.last = page[-1].id
            if len(page) < _PAGE_COUNT:
                return

    def _begin(self, entries: Iterable[Entry]) -> None:
        """Read the first entries, whose ended attempts are not counted."""
        for _ in self._fold(entries):
            pass

    def is_before(self, entry: str) -> bool:
        """Return whether an entry follows those that were read."""
        return not self.last or entry_order(entry) > entry_order(self.last)

    def _fold(self, entries: Iterable[Entry]) -> Iterator[Ended]:
        for event in readable_events(entries):
            if isinstance(event, ExperimentCreated):
                self.owner = event.owner
            elif isinstance(event, ExperimentEnded):
                self.has_ended = True
            elif isinstance(event, TrialStaged | DriverStarted):
                self.has_ended = False
            elif isinstance(event, AttemptStarted):
                self._running[event.trial] = event.attempt, event.worker, ",".join(event.devices)
            elif isinstance(event, AttemptEnded):
                number, worker, devices = self._running.pop(event.trial, (0, "", ""))
                if number == event.attempt:
                    yield Ended(worker, devices, event.end.value)
