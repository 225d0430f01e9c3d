"""A driver's ledger: the entries that it has read, and the events that it has written."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from mqtune.core.codec import encode_value
from mqtune.core.errors import JournalGone
from mqtune.core.events import START, Cursor, Event, ExperimentCreated
from mqtune.core.trial import CheckpointId
from mqtune.journal.base import Entry, Journal
from mqtune.journal.files.copy import JournalReader
from mqtune.journal.files.reading import begins, entries_after

T = TypeVar("T")


class Restored(NamedTuple):
    """The number of restored entries, of missing ones among them, and the lost checkpoints.

    Neither the server nor the experiment's folder has the latter.
    """

    entries: int
    missing: int
    lost: list[CheckpointId]


class OwnEvents:
    """The encoded events that a driver has written and not read back, in order.

    A look-up takes the same time for any number of them, as each entry of a worker is looked up.
    """

    def __init__(self) -> None:
        self._events: deque[bytes] = deque()
        #: How often each event is there: a write that was repeated after an outage is there twice.
        self._counts: Counter[bytes] = Counter()
        #: The events that the driver applied when it wrote them.
        self._applied: set[bytes] = set()

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._events)

    def __bool__(self) -> bool:
        return bool(self._events)

    def add(self, events: Iterable[bytes], *, are_applied: bool = False) -> None:
        """Add events at the end, and note whether the driver has applied them."""
        for event in events:
            self._events.append(event)
            self._counts[event] += 1
            if are_applied:
                self._applied.add(event)

    def remove_through(self, event: bytes) -> bool:
        """Remove an event and those before it, and return whether the driver has applied it.

        Do nothing if it is missing.
        """
        if event not in self._counts:
            return False
        is_applied, first = event in self._applied, None
        while first != event:
            first = self._events.popleft()
            self._counts[first] -= 1
            if not self._counts[first]:
                del self._counts[first]
                self._applied.discard(first)
        return is_applied

    def clear(self) -> None:
        """Remove all events."""
        self._events.clear()
        self._counts.clear()
        self._applied.clear()


class Ledger:
    """Reads and writes a driver's journal, and notices entries that the server has lost.

    A service then restores them, and a refused write is repeated. The driver learns of the attempts that this has
    ended, and of lost checkpoints, by the entries that follow. Used by one thread.

    Args:
        journal: the experiment's.
        reader: the reader of the driver.
    """

    def __init__(self, journal: Journal, reader: JournalReader) -> None:
        self.journal = journal
        self._reader = reader
        #: Has a service restore the journal; returns None if none can.
        self.restore: Callable[[], Restored | None] = lambda: None
        #: Checkpoints that a server has lost; the fold has them until the driver has read that.
        self.lost: set[CheckpointId] = set()
        self._restored: list[Restored] = []
        #: Events that the driver has written and not read since.
        self._own = OwnEvents()
        self._checked_after = journal.outages

    @property
    def read_to(self) -> str:
        """The id of the newest entry that the driver has read."""
        return self._reader.last

    @property
    def is_begun(self) -> bool:
        """Whether the driver has read or written anything."""
        return bool(self._own) or self.read_to != START.entry

    # Reading.

    def catch_up(self) -> dict[Cursor, list[Event]]:
        """Have the reader read the whole journal, and return drivers' events by their cursors.

        Entries that the server has lost since the copy was written are restored first.

        Raises:
            JournalGone: the server lacks entries, and they can't be restored.
        """
        if not self._own and not begins(self.journal):
            self.restore()
        try:
            events = self._reader.catch_up()
        except JournalGone:
            self.restore()
            events = self._reader.catch_up()
        if self.read_to != START.entry:
            # The copy has all written events now.
            self._own.clear()
        return events

    def new_entries(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return those of the entries, which were just read, that the driver has not applied.

        Its own events among them, and earlier ones, are forgotten, as the copy has them.
        """
        if not self._own:
            return [*entries]
        return [entry for entry in entries if not self._own.remove_through(entry.data)]

    def more(self, block_s: float) -> list[Entry] | None:
        """Let more virtual time pass, and return new entries, or None if none came.

        The driver's own are left out, as by ``new_entries``. The copy has them once the reader writes.
        """
        entries = self.journal.read(self.read_to, count=self._reader.count, block_s=block_s)
        if not entries:
            return None
        self._reader.gather(entries)
        return self.new_entries(entries)

    def finish(self) -> None:
        """Have the reader read to the journal's end, as for an experiment that has ended."""
        self._reader.finish(self.new_entries)

    # Writing.

    def create(self, created: ExperimentCreated) -> None:
        """Journal the experiment's first event, also on a server that has lost the driver's lock."""
        event = created.encode()
        try:
            self.journal.record(event, definition=encode_value(created.definition))
        except JournalGone:
            self._own.add([event])
            self._restore()
        else:
            self._own.add([event])

    def surely(self, write: Callable[[], T]) -> T:
        """Return the result of a write. If the journal is gone, have it restored, and write again."""
        while True:
            try:
                return write()
            except JournalGone:
                self._restore()

    def wrote(self, events: Iterable[bytes], *, are_applied: bool = False) -> None:
        """Remember encoded events that the driver has written, and relies on from now on.

        Events that the driver has also applied are left out when they are read. A server that refused one as a
        repetition has it already, or was set back and gets it when that is noticed.
        """
        self._own.add(events, are_applied=are_applied)

    # Losses.

    @property
    def was_away(self) -> bool:
        """Whether the server was away since the last check, and may have lost something."""
        return self.journal.outages != self._checked_after

    def check(self) -> bool:
        """After an outage, have lost entries restored. Return whether there were any.

        If so, entries that were read since then are invalid: they may not be what follows.

        Raises:
            JournalGone: they can't be restored.
            DriverFenced: a later driver has begun.
        """
        if not self.was_away:
            return False
        # An outage from here on needs another check.
        outages = self.journal.outages
        is_lost = not self._has_read() or not self._has_written()
        if is_lost:
            self._restore()
        self._checked_after = outages
        return is_lost

    def check_read(self) -> None:
        """Have the journal restored if the server lacks the last entry that was read.

        Raises:
            as ``check``.
        """
        if not self._has_read():
            self._restore()

    def following(self) -> list[bytes]:
        """Return the events that belong after the last entry that was read.

        They are the server's, unless it lacks that entry, and the driver's own missing ones, in the order in which it
        wrote them.
        """
        behind = self._behind() if self._has_read() else []
        places = {event: place for place, event in enumerate(self._own)}
        on_server = set(behind)
        missing = deque(event for event in self._own if event not in on_server)
        events = []
        for event in behind:
            while missing and places[missing[0]] < places.get(event, 0):
                events.append(missing.popleft())
            events.append(event)
        return [*events, *missing]

    def take_restored(self) -> list[Restored]:
        """Return what was restored since the last call."""
        restored, self._restored = self._restored, []
        return restored

    def _restore(self) -> None:
        restored = self.restore()
        if restored is None:
            raise JournalGone(
                f"Redis no longer has experiment {self.journal.experiment!r} as this driver knows it, and nothing here "
                f"restores it"
            )
        self.lost.update(restored.lost)
        if restored.entries:
            self._restored.append(restored)

    def _has_read(self) -> bool:
        """Return whether the server has the last entry that was read."""
        return self.read_to == START.entry or self.journal.holds(self.read_to)

    def _has_written(self) -> bool:
        """Return whether the server has every event that the driver has written and not read since."""
        return not self._own or set(self._own) <= set(self._behind())

    def _behind(self) -> list[bytes]:
        """Return the server's events after the last entry that was read."""
        return [entry.data for entry in entries_after(self.journal, self.read_to)]
