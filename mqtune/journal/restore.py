"""Putting a journal back that the server has lost, all of it or its end, from the local copy."""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from mqtune.core.clock import Clock
from mqtune.core.codec import encode_value
from mqtune.core.errors import ChapterUnavailable, JournalGone, MessageVersionError, StoreUnavailable
from mqtune.core.events import (
    START,
    AttemptEnded,
    CheckpointSaved,
    CheckpointsDropped,
    Cursor,
    DriverStarted,
    Event,
    ExperimentCreated,
    Reports,
    Requested,
    TrialStaged,
    decode_definition,
    decode_event,
)
from mqtune.core.machine import ARCHIVED, DICTS
from mqtune.core.trial import FORGOTTEN, AttemptEnd, CheckpointId, TrialId, is_in_memory
from mqtune.journal.base import Chapter, DriverState, Entry, Journal, LastAttempt, ServerState, entry_order
from mqtune.journal.chapters import chapter_bytes, cut_chapters, keep_chapter
from mqtune.journal.copy import JournalFile, JournalReader

logger = logging.getLogger(__name__)
T = TypeVar("T")

#: Entries that one read takes.
_PAGE_COUNT: Final = 1_000
_ERROR: Final = "Redis lost what it had of this attempt, and refuses what its worker still sends"


class PutBack(NamedTuple):
    """The numbers of an experiment's entries and of those that Redis had lost, and its lost dicts."""

    entries: int
    missing: int
    dicts: list[CheckpointId]


def bring_back(
    journal: Journal,
    copy: JournalFile,
    *,
    at: float,
    accept: Callable[[bytes], object] = lambda _: None,
    most_bytes: int = 0,
) -> None:
    """Restore what Redis has lost of an experiment while nobody drove it: all of it, its beginning, or its end.

    Called by a driver that has just taken its lock. Without a copy that an earlier driver has left, nothing is lost.
    Where the beginning is gone, the copy of an earlier experiment of that name, which had another definition, is left
    alone, and what trials have written behind the copy is left out: they run again. Where the end is gone, and another
    driver has gone on from the state before, the copy is renamed: entries that only it has are not part of the
    experiment.

    Args:
        journal: the experiment's.
        copy: the copy that an earlier driver may have left.
        at: the time of the events that this journals.
        accept: raises an error for the definition of an experiment that is not the wanted one.
        most_bytes: how many bytes the journal may have; 0 for any number.

    Raises:
        JournalGone: the copy can't be read.
        MessageVersionError: Redis has no definition in its place.
        whatever *accept* raises; nothing was changed.
    """
    definition = journal.definition()
    try:
        found = _Contents(copy.read())
    except FileNotFoundError:
        return
    except (OSError, MessageVersionError) as error:
        if definition is not None:
            # Who reads on says what is wrong.
            return
        raise JournalGone(_cannot(journal, copy, str(error))) from None
    if found.experiment != journal.experiment:
        return
    if definition is None:
        accept(encode_value(found.definition))
    elif begins(journal):
        if journal.holds(found.ids[-1]) or _put_aside(journal, copy, found.ids):
            return
    elif found.definition != decode_definition(journal.experiment, definition):
        return
    put_back(journal, copy, found.ids[-1], [], at=at, most_bytes=most_bytes)


def begins(journal: Journal) -> bool:
    """Return whether the server has an experiment's first entry, or one that can't be read."""
    first = journal.first()
    try:
        return first is not None and isinstance(decode_event(first.data), ExperimentCreated)
    except MessageVersionError:
        return True


def _put_aside(journal: Journal, copy: JournalFile, ids: Sequence[str]) -> bool:
    """Rename a copy if another driver has gone on from an earlier state than its end; return whether it has."""
    common = bisect_left(ids, 1, key=lambda id_: not journal.holds(id_))
    behind = entries_behind(journal, ids[common - 1])
    if not any(getattr(decode_event(entry.data), "cursor", None) is not None for entry in behind):
        return False
    aside = copy.put_aside(ids[-1])
    logger.warning(
        "Redis came back without the last %d entries of experiment %r, and another driver has gone on from there, as "
        "this one does; the copy with those entries is %s",
        len(ids) - common,
        journal.experiment,
        aside,
    )
    return True


def kept_definition(copy: JournalFile, experiment: str) -> bytes | None:
    """Return the newest definition in an experiment's copy.

    It returns None if the copy is of another experiment, or can't be read.
    """
    try:
        found = _Contents(copy.read())
    except (OSError, MessageVersionError):
        return None
    return encode_value(found.definition) if found.experiment == experiment else None


def put_back(
    journal: Journal, copy: JournalFile, last: str, behind: Sequence[bytes], *, at: float, most_bytes: int = 0
) -> PutBack:
    """Restore the journal from a copy up to the entry *last*, followed by the events *behind*, which nobody has read.

    Attempts that were under way are journaled as lost in the same step, and dicts that neither the server nor a file
    has as dropped. *most_bytes* is how many bytes the journal may have; 0 for any number.

    Raises:
        JournalGone: the copy is incomplete.
        DriverFenced: a later driver has begun.
    """
    try:
        found = _Contents(_upto(copy, last))
    except (OSError, MessageVersionError) as error:
        raise JournalGone(_cannot(journal, copy, str(error))) from None
    if last != START.entry and found.ids[-1:] != [last]:
        raise JournalGone(_cannot(journal, copy, "that lacks the end, because it could not be written"))
    total = len(found.ids)
    # The store may be away, too: what is in chapters counts as there.
    there = journal.chapters()
    head = bisect_right(found.ids, entry_order(there[-1].last), key=entry_order) if there else 0
    missing = total - bisect_left(found.ids, 1, lo=head, key=lambda id_: not journal.holds(id_))
    for entry in _numbered(behind, last):
        found.take(entry)
    if found.experiment != journal.experiment:
        raise JournalGone(_cannot(journal, copy, "that is another experiment's"))
    chapters = _in_chapters(journal, copy, last, most_bytes)
    while True:
        lost = bring_dicts(journal, copy.path.parent, found.dicts)
        # Before the attempts that would run again from them.
        dropped = [CheckpointsDropped(checkpoints=[*lost], at=at).encode()] if lost else []
        journal.restore(
            lambda: chain(_upto(copy, last, chapters), _numbered(behind, last)),
            found.last(),
            [*dropped, *found.ends(at)],
            requests=found.requests,
            definition=encode_value(found.definition),
            chapters=chapters,
            first=next(copy.read()) if chapters else None,
        )
        if not found.dicts or found.dicts.keys() - lost <= journal.checkpoints():
            break
        # The server was emptied, or set back, once more in between.
    is_archived = copy.path.with_name(ARCHIVED).is_file()
    logger.warning(
        "%s %d of the %d entries of experiment %r; they were put back from %s. %d attempts that were "
        "under way are lost; their trials run again",
        "An archive has" if is_archived else "Redis came back without",
        missing,
        total,
        journal.experiment,
        copy.path,
        len(found.live),
        extra={"action": "journal_restored", "experiment": journal.experiment, "missing": missing},
    )
    return PutBack(total, missing, lost)


def bring_dicts(journal: Journal, folder: Path, named: Iterable[CheckpointId]) -> list[CheckpointId]:
    """Have the server hold again those of the named dicts that it has lost and the experiment's folder has.

    Return the others it has lost.
    """
    named = list(named)
    held = journal.checkpoints() if named else set()
    lost = []
    for one in named:
        if one in held:
            continue
        try:
            data = (folder / DICTS / one).read_bytes()
        except OSError:
            lost.append(one)
        else:
            journal.bring_checkpoint(one, data)
    if lost:
        logger.warning(
            "Redis has lost %d checkpoints; trials go on from older ones in the store, or begin again", len(lost)
        )
    return lost


def entries_behind(journal: Journal, last: str) -> Iterator[Entry]:
    """Yield the journal's entries after an entry."""
    is_more = True
    while is_more:
        entries = journal.read(last, count=_PAGE_COUNT)
        yield from entries
        # Nothing can be asked for behind the last possible id.
        if is_more := len(entries) == _PAGE_COUNT:
            last = entries[-1].id


def entries_there(journal: Journal) -> Iterator[Entry]:
    """Yield the journal's entries, of which chapters that can't be read have none: for those who delete it."""
    last = START.entry
    try:
        for entry in entries_behind(journal, last):
            yield entry
            last = entry.id
    except ChapterUnavailable as error:
        logger.warning("what is in chapters is left out: %s", error)
        yield from entries_behind(journal, journal.chapters()[-1].last)


def _in_chapters(journal: Journal, copy: JournalFile, last: str, most_bytes: int) -> list[Chapter]:
    """Have the store hold the oldest entries of a copy up to the entry *last*, and return their chapters.

    At least one chapter's bytes stay. The server gets what is behind them. Where the journal has no store, or none can
    be reached, it gets all.
    """
    if journal.chapter_store is None:
        return []
    size, left = chapter_bytes(most_bytes), sum(len(entry.data) for entry in _upto(copy, last))
    chapters: list[Chapter] = []
    try:
        # One chapter more than what may be left is looked at.
        for cut in cut_chapters(copy.path, 0, size) if left >= 2 * size else ():
            left -= cut.chapter.size
            if left < size:
                break
            keep_chapter(journal.chapter_store, cut)
            chapters.append(cut.chapter)
    except (OSError, StoreUnavailable) as error:
        logger.warning("Redis gets back what could be in its store: %s", error)
    return chapters


class _Contents:
    """The contents of entries.

    They are the experiment, the last attempt of each trial, those under way, the requests, and the dicts.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.ids: list[str] = []
        #: Its name; empty if the entries don't begin with its creation.
        self.experiment = ""
        self.definition: dict[str, Any] = {}
        #: The id of each request, and that of its entry.
        self.requests: dict[str, str] = {}
        self.live: dict[tuple[TrialId, int], None] = {}
        self.dicts: dict[CheckpointId, None] = {}
        self._numbers: dict[TrialId, int] = {}
        self._timestamps: dict[TrialId, float] = {}
        for entry in entries:
            self.take(entry)

    def take(self, entry: Entry) -> None:
        """Add an entry."""
        self.ids.append(entry.id)
        match event := decode_event(entry.data):
            case ExperimentCreated() if len(self.ids) == 1:
                self.experiment, self.definition = event.name, dict(event.definition)
            case DriverStarted():
                self.definition.update(event.changes)
            case Requested():
                self.requests.setdefault(event.id, entry.id)
            case TrialStaged():
                self._numbers[event.trial] = event.attempt
                if not event.outside:
                    self.live[event.trial, event.attempt] = None
            case AttemptEnded():
                self.live.pop((event.trial, event.attempt), None)
            case CheckpointSaved() if is_in_memory(CheckpointId(event.checkpoint)):
                self.dicts[CheckpointId(event.checkpoint)] = None
            case CheckpointsDropped():
                for one in map(CheckpointId, event.checkpoints):
                    self.dicts.pop(one, None)
            case Reports():
                for trial, _, _, reports in event.segments:
                    self._timestamps[trial] = reports[-1][0]
                named = (report.checkpoint for report in event)
                self.dicts.update((one, None) for one in named if one and is_in_memory(one))

    def last(self) -> list[LastAttempt]:
        """Return the last attempt of each trial."""
        return [LastAttempt(trial, number, self._timestamps.get(trial, 0.0)) for trial, number in self._numbers.items()]

    def ends(self, at: float) -> Iterator[bytes]:
        """Yield an event for each attempt under way that says that it is lost.

        It counts at this place of the journal for any driver.
        """
        for trial, attempt in self.live:
            yield AttemptEnded(
                trial=trial, attempt=attempt, end=AttemptEnd.LOST, at=at, error_type=FORGOTTEN, error=_ERROR
            ).encode()


def _upto(copy: JournalFile, last: str, chapters: Sequence[Chapter] = ()) -> Iterator[Entry]:
    """Yield a copy's entries behind these chapters up to one of them, none up to the journal's start."""
    left_out = sum(chapter.entries for chapter in chapters)
    for entry in islice(copy.read(), left_out, None) if last != START.entry else ():
        yield entry
        if entry.id == last:
            return


def _numbered(events: Sequence[bytes], last: str) -> Iterator[Entry]:
    """Yield events as entries with the ids that follow the last one."""
    time_ms, _, number = last.partition("-")
    for following, data in enumerate(events, int(number) + 1):
        yield Entry(f"{time_ms}-{following}", data)


def _cannot(journal: Journal, copy: JournalFile, why: str) -> str:
    return (
        f"Redis no longer has experiment {journal.experiment!r}: it was emptied, or set back to an earlier state. It "
        f"can't be put back from {copy.path}: {why}. What there is of it can be read with `mqtune show`; start it "
        f"again under another name"
    )


class UnreadEvents:
    """The encoded events that a driver has written and not read back, in order.

    A look-up takes the same time for any number of them, as each entry of a worker is looked up.
    """

    def __init__(self) -> None:
        self._events: deque[bytes] = deque()
        #: How often each event is there: a write that was repeated after an outage is there twice.
        self._counts: Counter[bytes] = Counter()
        #: Those that the driver applied when it wrote them.
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


class Restorer:
    """Restores a driver's journal on a server that may lose data: all of it, or the newest entries.

    The local copy has the entries that the driver has read, and this object remembers the events that it has written
    since. A write that finds the journal gone restores it and is then repeated. The driver learns of the attempts that
    this has ended, and of the dicts that are lost, by the entries that follow. Used by one thread.

    Args:
        journal: the experiment's.
        reader: the reader of the driver.
        copy: the local copy.
        clock: the clock for the times of events.
    """

    def __init__(self, journal: Journal, reader: JournalReader, copy: JournalFile, clock: Clock) -> None:
        self.journal = journal
        self._reader = reader
        self._copy = copy
        self._clock = clock
        #: Dicts that a server has lost; the fold has them until the driver has read that.
        self.lost_dicts: set[CheckpointId] = set()
        self._restored: list[PutBack] = []
        #: Events that the driver has written and not read since.
        self._unread = UnreadEvents()
        self._looked_after = journal.outages
        #: How many bytes the journal may have, as of the last heartbeat; 0 for any number.
        self._most_bytes = 0

    def catch_up(self) -> dict[Cursor, list[Event]]:
        """Have the reader read the whole journal, and return the driver's events, as the reader does.

        Entries that the server has lost since the copy was written are restored first.
        """
        try:
            events = self._reader.catch_up()
        except JournalGone:
            if self._unread:
                # It has just been begun: a copy is of an earlier one of that name.
                self.put_back()
            else:
                bring_back(self.journal, self._copy, at=self._clock.time(), most_bytes=self._most_bytes)
            events = self._reader.catch_up()
        if self._reader.last != START.entry:
            # All that was written is in the copy now.
            self._unread.clear()
        return events

    def create(self, created: ExperimentCreated) -> None:
        """Journal the experiment's first event.

        It does so also on a server that has lost the driver's lock since that was taken.
        """
        event = created.encode()
        try:
            self.journal.record(event, definition=encode_value(created.definition))
        except JournalGone:
            self._unread.add([event])
            self.put_back()
        else:
            self._unread.add([event])

    def surely(self, write: Callable[[], T]) -> T:
        """Return the result of a write; if it finds the journal gone, restore that and write again."""
        while True:
            try:
                return write()
            except JournalGone:
                self.put_back()

    @property
    def read_to(self) -> str:
        """The id of the newest entry that the driver has read."""
        return self._reader.last

    def heartbeat(self, holder: str, hold_s: float, state: DriverState) -> ServerState:
        """Keep the driver's lock, exchange states with the server, and restore what was lost.

        A server may be set back, by hand, without having been away.
        """
        self._most_bytes = state.most_bytes
        server = self.surely(lambda: self.journal.heartbeat(holder, hold_s, state))
        if not self._has_last():
            self.put_back()
        return server

    def wrote(self, events: Iterable[bytes], *, are_applied: bool = False) -> None:
        """Remember encoded events that the driver has written, and relies on from now on.

        Events that the driver has also applied are left out when they are read back. A server that refused one as a
        repetition has it already, or was set back and gets it when that is noticed.
        """
        self._unread.add(events, are_applied=are_applied)

    def read_back(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the entries that the driver has not applied, after these were read.

        Its own events among them, and those written before these, are forgotten: they are in the copy.
        """
        if not self._unread:
            return [*entries]
        return [entry for entry in entries if not self._unread.remove_through(entry.data)]

    def more(self, block_s: float) -> list[Entry] | None:
        """Let more virtual time pass and return new entries, as ``read_back`` does, or None if none came.

        The copy has them once the reader writes.
        """
        entries = self.journal.read(self._reader.last, count=self._reader.count, block_s=block_s)
        if not entries:
            return None
        self._reader.gather(entries)
        return self.read_back(entries)

    def finish(self) -> None:
        """Have the reader read to the journal's end, as for an experiment that has ended."""
        self._reader.finish(self.read_back)

    @property
    def was_away(self) -> bool:
        """Whether the server was away since the last look, and may have lost something."""
        return self.journal.outages != self._looked_after

    def look(self) -> bool:
        """Restore what was lost, if the server was away since the last look; return whether something was.

        If so, entries that were read since then are invalid: they may not be what follows.

        Raises:
            JournalGone: it can't be restored.
            DriverFenced: a later driver has begun.
        """
        if not self.was_away:
            return False
        # An outage from here on needs another look.
        outages = self.journal.outages
        is_lost = not self._has_last() or not self._has_all_written()
        if is_lost:
            self.put_back()
        self._looked_after = outages
        return is_lost

    def put_back(self) -> None:
        """Restore the journal: what was read, and what the driver has written since.

        Raises:
            JournalGone: it can't be restored.
            DriverFenced: a later driver has begun.
        """
        behind = self._completed(self._behind() if self._has_last() else [])
        to, at = self._reader.last, self._clock.time()
        restored = put_back(self.journal, self._copy, to, behind, at=at, most_bytes=self._most_bytes)
        self.lost_dicts.update(restored.dicts)
        if restored.entries:
            self._restored.append(restored)

    def bring_dicts(self, named: Iterable[CheckpointId]) -> list[CheckpointId]:
        """Have the server hold those of the named dicts that it has lost and the folder has.

        Return the others that it has lost. It has lost none without its journal, unless keys were deleted or evicted.
        """
        return bring_dicts(self.journal, self._copy.path.parent, named)

    def take_restored(self) -> list[PutBack]:
        """Return what was put back since the last call."""
        restored, self._restored = self._restored, []
        return restored

    def _has_last(self) -> bool:
        return self._reader.last == START.entry or self.journal.holds(self._reader.last)

    def _has_all_written(self) -> bool:
        """Return whether the server has every event that the driver has written and not read since."""
        return not self._unread or set(self._unread) <= set(self._behind())

    def _behind(self) -> list[bytes]:
        """Return the server's events after the entry that was read last."""
        return [entry.data for entry in entries_behind(self.journal, self._reader.last)]

    def _completed(self, behind: list[bytes]) -> list[bytes]:
        """Return these events and the driver's missing ones, each before those that it wrote later."""
        places = {event: place for place, event in enumerate(self._unread)}
        there = set(behind)
        missing = deque(event for event in self._unread if event not in there)
        events = []
        for event in behind:
            while missing and places[missing[0]] < places.get(event, 0):
                events.append(missing.popleft())
            events.append(event)
        return [*events, *missing]
