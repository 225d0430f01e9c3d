"""The ledger of a driver: knows which entries it has read, and which events it has written."""

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
    """The result of restoring a journal."""

    #: Number of the journal's entries.
    entries: int
    #: Number of those entries that Redis had lost.
    missing: int
    #: Checkpoints that neither the server nor the experiment's folder has any more.
    lost: list[CheckpointId]


class OwnEvents:
    """The encoded events that a driver has written and not read back yet, in order.

    A look-up takes constant time, because each entry that the driver reads is looked up here.
    """

    def __init__(self) -> None:
        self._events: deque[bytes] = deque()
        #: How often each event was written. A write that was repeated after an outage counts twice.
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
        """Remove an event and all earlier ones. Return whether the driver has applied the event.

        If the event is missing, return False and remove nothing.
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

    A service then restores the lost entries, and a refused write is repeated. Restored journals have further entries
    about attempts that ended and checkpoints that were lost with the data. For use in one thread.
    """

    def __init__(self, journal: Journal, reader: JournalReader) -> None:
        self.journal = journal
        self._reader = reader
        #: Restores the journal by a service. Returns None if no service can.
        self.restore: Callable[[], Restored | None] = lambda: None
        #: Checkpoints that the server has lost. The fold has them until the driver reads the entry about the loss.
        self.lost: set[CheckpointId] = set()
        self._restored: list[Restored] = []
        self._own = OwnEvents()
        #: The number of outages at the last check.
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
        """Read the whole journal into the copy, and return all events of drivers by their cursors.

        Entries that the server has lost since the copy was written are restored first.

        Raises:
            JournalGone: the server lacks entries that can't be restored.
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
        """Return new entries without those whose events the driver has applied already.

        The driver's own events among them are forgotten: the copy has them now.
        """
        if not self._own:
            return [*entries]
        return [entry for entry in entries if not self._own.remove_through(entry.data)]

    def more(self, block_s: float) -> list[Entry] | None:
        """Read further entries, waiting up to *block_s* seconds of virtual time.

        Return None without any. Entries that the driver has applied are left out, as by ``new_entries``. The copy gets
        all entries when the reader next writes.
        """
        entries = self.journal.read(self.read_to, count=self._reader.count, block_s=block_s)
        if not entries:
            return None
        self._reader.gather(entries)
        return self.new_entries(entries)

    def finish(self) -> None:
        """Read to the journal's end, and complete the copy, because the experiment has ended."""
        self._reader.finish(self.new_entries)

    # Writing.

    def create(self, created: ExperimentCreated) -> None:
        """Journal the experiment's first event.

        If the server has lost the driver's lock meanwhile, restore the journal with this event.
        """
        event = created.encode()
        try:
            self.journal.record(event, definition=encode_value(created.definition))
        except JournalGone:
            self._own.add([event])
            self._restore()
        else:
            self._own.add([event])

    def surely(self, write: Callable[[], T]) -> T:
        """Call *write* and return its result.

        If the journal is gone, restore it and call *write* again.
        """
        while True:
            try:
                return write()
            except JournalGone:
                self._restore()

    def wrote(self, events: Iterable[bytes], *, are_applied: bool = False) -> None:
        """Remember encoded events that the driver has written, so that their loss is noticed.

        With *are_applied*, the events are left out when they are read. Events that the server has refused as
        repetitions are remembered too: the server has them, or its loss of them is noticed later.
        """
        self._own.add(events, are_applied=are_applied)

    # Losses.

    @property
    def was_away(self) -> bool:
        """Whether there was an outage since the last check, in which the server may have lost data."""
        return self.journal.outages != self._checked_after

    def check(self) -> bool:
        """Restore lost entries after an outage. Return whether there were any.

        If so, discard entries that were read since the outage: others may follow the restored ones.

        Raises:
            JournalGone: the entries can't be restored.
            DriverFenced: a later driver has begun.
        """
        if not self.was_away:
            return False
        # Count first: an outage during the check needs another check.
        outages = self.journal.outages
        is_lost = not self._has_read() or not self._has_written()
        if is_lost:
            self._restore()
        self._checked_after = outages
        return is_lost

    def check_read(self) -> None:
        """Restore the journal if the server lacks the last entry that the driver has read.

        Raises:
            as ``check``.
        """
        if not self._has_read():
            self._restore()

    def following(self) -> list[bytes]:
        """Return the encoded events that belong after the last entry that the driver has read.

        A restored journal must have them. They are the events that the server has there, and the driver's own events
        that it lacks, in the order in which the driver wrote them. If the server lacks that last entry, they are only
        the driver's own.
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
        """Return the results of all restorations since the last call."""
        restored, self._restored = self._restored, []
        return restored

    def _restore(self) -> None:
        restored = self.restore()
        if restored is None:
            raise JournalGone(
                f"Redis has lost journal entries of experiment {self.journal.experiment!r}, and this driver has no "
                f"service that can restore them; run the experiment's script, or mqtune drive "
                f"{self.journal.experiment}, on the machine with its folder"
            )
        self.lost.update(restored.lost)
        if restored.entries:
            self._restored.append(restored)

    def _has_read(self) -> bool:
        """Return whether the server has the last entry that the driver has read."""
        return self.read_to == START.entry or self.journal.holds(self.read_to)

    def _has_written(self) -> bool:
        """Return whether the server has every event that the driver has written and not read back."""
        return not self._own or set(self._own) <= set(self._behind())

    def _behind(self) -> list[bytes]:
        """Return the server's encoded events after the last entry that the driver has read."""
        return [entry.data for entry in entries_after(self.journal, self.read_to)]
