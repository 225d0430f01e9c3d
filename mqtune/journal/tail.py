"""Follows the end of a journal, for observers of many experiments."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import redis

from mqtune.core.events import (
    AttemptEnded,
    AttemptStarted,
    DriverStarted,
    ExperimentCreated,
    ExperimentEnded,
    TrialStaged,
    readable_events,
)
from mqtune.core.keys import ExperimentKeys
from mqtune.core.owner import Owner
from mqtune.core.trial import TrialId
from mqtune.journal.base import Entry, entry_order
from mqtune.journal.redis import RedisJournal, retrying
from mqtune.journal.stream import XRANGE, XREVRANGE, read_entries

#: Number of newest entries that show whether an experiment has ended. Few events follow its end.
_LAST_COUNT: Final = 50
#: Number of entries that show the workers of most running attempts, and maximum per read: some hundred kilobytes.
_PAGE_COUNT: Final = 1_000


class Ended(NamedTuple):
    """An attempt that has run and ended: its worker, the devices of its slot, and its end.

    Devices are separated by commas.
    """

    worker: str
    devices: str
    end: str


class Tail:
    """The end of an experiment's journal: its newest entries, and each later entry once.

    Reports are skipped without decoding. Unreadable entries are left out, and so are entries moved into a chapter
    before they were read: no store is needed. The worker of an attempt that began before the newest thousand entries is
    unknown, and its end is left out.

    Args:
        patience_s: how long a call retries while the server is away.

    Attributes:
        owner: owner of the experiment; None if its first event is missing or unreadable.
        has_ended: whether it has ended, as of the entries read.
        last: the newest entry read; empty for none.

    Raises:
        BrokerUnavailable: the server is away.
        AccessDenied: the account may not read it.
        MessageVersionError: the key is not a journal.
    """

    def __init__(self, client: redis.Redis, experiment: str, *, patience_s: float) -> None:
        # redis-py's types include the results of any setting; with ours they are bytes.
        self._client: Any = client
        self._key = ExperimentKeys(experiment).journal
        self._patience_s = patience_s
        self.owner: Owner | None = None
        self.has_ended = False
        #: Number of the running attempt, its worker and its devices, by trial.
        self._running: dict[TrialId, tuple[int, str, str]] = {}
        newest = self._find(XREVRANGE, "+", "-", _LAST_COUNT)
        self.last = newest[0].id if newest else ""
        first = RedisJournal(client, experiment, patience_s=patience_s).first()
        self._begin([*([] if first is None else [first]), *reversed(newest)])
        if not self.has_ended and len(newest) == _LAST_COUNT:
            self._begin(reversed(self._find(XREVRANGE, self.last, "-", _PAGE_COUNT)))

    def take_in(self, deadline: float) -> Iterator[Ended]:
        """Read new entries and yield the attempts that have ended.

        Entries left at the deadline come with the next call.

        Args:
            deadline: when to stop, by the monotonic clock.

        Raises:
            as for the class.
        """
        while time.monotonic() < deadline:
            page = self._find(XRANGE, f"({self.last}" if self.last else "-", "+", _PAGE_COUNT)
            if page:
                yield from self._fold(page)
                self.last = page[-1].id
            if len(page) < _PAGE_COUNT:
                return

    def _begin(self, entries: Iterable[Entry]) -> None:
        """Fold existing entries without yielding their ends."""
        for _ in self._fold(entries):
            pass

    def is_before(self, entry: str) -> bool:
        """Whether the journal has reached an entry beyond those that were read."""
        return not self.last or entry_order(entry) > entry_order(self.last)

    def _find(self, command: bytes, first: str, last: str, count: int) -> list[Entry]:
        page = command, self._key, first, last, "COUNT", count
        return retrying(lambda: read_entries(self._client, *page), patience_s=self._patience_s)

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
