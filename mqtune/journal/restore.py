"""Putting a journal back that the server has lost, all of it or its end, from the local copy."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Concatenate, Final, NamedTuple, ParamSpec, TypeVar, cast

from mqtune.core.clock import Clock
from mqtune.core.codec import encode_value
from mqtune.core.errors import CheckpointGone, JournalGone, MessageVersionError
from mqtune.core.events import (
    START,
    AttemptEnded,
    Cursor,
    Event,
    ExperimentCreated,
    Reports,
    Requested,
    TrialStaged,
    decode_event,
)
from mqtune.core.machine import describe_process
from mqtune.core.trial import FORGOTTEN, AttemptEnd, Intent, TrialId, is_in_memory
from mqtune.journal.base import Assignment, DriverSide, Entry, Intended, Journal, LastAttempt
from mqtune.journal.copy import JournalFile, JournalReader
from mqtune.journal.lock import LOCK_S

__all__ = [
    "PutBack",
    "RestoringJournal",
    "bring_back",
    "bring_back_end",
    "entries_behind",
    "kept_definition",
    "put_back",
]

logger = logging.getLogger(__name__)

#: Entries that one read takes.
_PAGE_COUNT: Final = 1_000
_ERROR: Final = "Redis lost what it had of this attempt, and refuses what its worker still sends"


class PutBack(NamedTuple):
    """How many entries an experiment's copy has, and how many of those Redis had lost."""

    entries: int
    missing: int


def bring_back(
    journal: Journal, copy: JournalFile, *, owner: str, at: float, accept: Callable[[bytes], object]
) -> None:
    """Restore an experiment that Redis has lost while nobody drove it, if an earlier driver has left a copy of it.

    Called by a driver that has just taken the lock of an experiment that Redis doesn't have. Without a copy, it is a new one.

    Args:
        journal: the experiment's.
        copy: the copy that an earlier driver may have left.
        owner: the driver's token.
        at: the time of the events that this journals.
        accept: raises an error for the definition of an experiment that is not the wanted one.

    Raises:
        JournalGone: the copy can't be read.
        whatever *accept* raises; nothing was changed.
    """
    last = None
    try:
        for last in copy.read():  # noqa: B007 - the last one counts
            pass
    except FileNotFoundError:
        return
    except (OSError, MessageVersionError) as error:
        raise JournalGone(_cannot(journal, copy, str(error))) from None
    if last is not None and (definition := kept_definition(copy, journal.experiment)) is not None:
        accept(definition)
        put_back(journal, copy, last.id, [], owner=owner, at=at)


def bring_back_end(journal: Journal, copy: JournalFile, *, owner: str, at: float) -> None:
    """Restore the end of an experiment, of which Redis has an earlier state than the copy.

    If another driver has gone on from that state, the copy is renamed: entries that only it has are not part of the experiment.
    """
    ids = [entry.id for entry in copy.read()]
    common = bisect_left(ids, 1, key=lambda id_: not journal.holds(id_))
    behind = entries_behind(journal, ids[common - 1])
    if not any(getattr(decode_event(entry.data), "cursor", None) is not None for entry in behind):
        put_back(journal, copy, ids[-1], [], owner=owner, at=at)
        return
    aside = copy.path.with_name(f"{copy.path.stem}-{ids[-1]}{copy.path.suffix}")
    copy.path.replace(aside)
    logger.warning(
        "Redis came back without the last %d entries of experiment %r, and another driver has gone on from there, as this one "
        "does; the copy with those entries is %s",
        len(ids) - common,
        journal.experiment,
        aside,
    )


def kept_definition(copy: JournalFile, experiment: str) -> bytes | None:
    """Return the definition in an experiment's copy, or None if the copy is of another experiment."""
    try:
        first = next(copy.read(), None)
        created = None if first is None else decode_event(first.data)
    except (OSError, MessageVersionError):
        return None
    if not isinstance(created, ExperimentCreated) or created.name != experiment:
        return None
    return encode_value(created.definition)


def put_back(
    journal: Journal,
    copy: JournalFile,
    last: str,
    behind: Sequence[bytes],
    *,
    owner: str,
    at: float,
    definition: bytes | None = None,
) -> PutBack:
    """Restore the journal from a copy up to the entry *last*, followed by the events *behind*, which nobody has read.

    The definition is by default the one that the experiment was created with. Attempts that were under way are journaled
    as lost.

    Raises:
        JournalGone: the copy is incomplete.
        DriverFenced: a later driver has begun.
    """
    found = _Contents()
    ids: list[str] = []
    try:
        for entry in _upto(copy, last):
            ids.append(entry.id)
            found.take(entry)
    except (OSError, MessageVersionError) as error:
        raise JournalGone(_cannot(journal, copy, str(error))) from None
    created = kept_definition(copy, journal.experiment)
    if created is None:
        raise JournalGone(_cannot(journal, copy, "that is another experiment's"))
    if not ids or ids[-1] != last:
        raise JournalGone(_cannot(journal, copy, "that lacks the end, because it could not be written"))
    for entry in _numbered(behind, last):
        found.take(entry)
    missing = len(ids) - bisect_left(ids, 1, key=lambda id_: not journal.holds(id_))
    journal.restore(
        lambda: chain(_upto(copy, last), _numbered(behind, last)),
        found.last(),
        list(found.ends(at)),
        requests=found.requests,
        definition=definition or created,
        owner=owner,
        description=describe_process(),
        hold_s=LOCK_S,
    )
    logger.warning(
        "Redis came back without %d of the %d entries of experiment %r; they were put back from %s. %d attempts that were "
        "under way are lost; their trials run again",
        missing,
        len(ids),
        journal.experiment,
        copy.path,
        len(found.live),
        extra={"action": "journal_restored", "experiment": journal.experiment, "missing": missing},
    )
    return PutBack(len(ids), missing)


def entries_behind(journal: Journal, last: str) -> Iterator[Entry]:
    """Yield the journal's entries after an entry."""
    while entries := journal.read(last, count=_PAGE_COUNT):
        yield from entries
        last = entries[-1].id


class _Contents:
    """Finds the last attempt of each trial in a journal, those that are under way, and the requests."""

    def __init__(self) -> None:
        #: The id of each request, and that of its entry.
        self.requests: dict[str, str] = {}
        self.live: dict[tuple[TrialId, int], None] = {}
        self._numbers: dict[TrialId, int] = {}
        self._timestamps: dict[TrialId, float] = {}

    def take(self, entry: Entry) -> None:
        """Add an entry."""
        match event := decode_event(entry.data):
            case Requested():
                self.requests.setdefault(event.id, entry.id)
            case TrialStaged():
                self._numbers[event.trial] = event.attempt
                self.live[event.trial, event.attempt] = None
            case AttemptEnded():
                self.live.pop((event.trial, event.attempt), None)
            case Reports():
                for trial, _, _, reports in event.segments:
                    self._timestamps[trial] = reports[-1][0]

    def last(self) -> list[LastAttempt]:
        """Return the last attempt of each trial."""
        return [LastAttempt(trial, number, self._timestamps.get(trial, 0.0)) for trial, number in self._numbers.items()]

    def ends(self, at: float) -> Iterator[bytes]:
        """Yield an event for each attempt under way, which says that it is lost, at this place of the journal for any driver."""
        for trial, attempt in self.live:
            yield AttemptEnded(
                trial=trial, attempt=attempt, end=AttemptEnd.LOST, at=at, error_type=FORGOTTEN, error=_ERROR
            ).encode()


def _upto(copy: JournalFile, last: str) -> Iterator[Entry]:
    """Yield a copy's entries up to one of them."""
    for entry in copy.read():
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
        f"Redis no longer has experiment {journal.experiment!r}: it was emptied, or set back to an earlier state. It can't be "
        f"put back from {copy.path}: {why}. What there is of it can be read with `mqtune show`; start it again under another name"
    )


P = ParamSpec("P")
T = TypeVar("T")


def _asked(method: Callable[Concatenate[DriverSide, P], T]) -> Callable[Concatenate[RestoringJournal, P], T]:
    """Return a method that calls the journal's."""
    name = method.__name__

    def ask(self: RestoringJournal, /, *args: P.args, **kwargs: P.kwargs) -> T:
        answer: T = getattr(self._journal, name)(*args, **kwargs)
        return answer

    return ask


def _guarded(method: Callable[Concatenate[DriverSide, P], T]) -> Callable[Concatenate[RestoringJournal, P], T]:
    """Return a method that calls the journal's, and puts the journal back first if it is gone."""
    ask = _asked(method)

    def write(self: RestoringJournal, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._surely(lambda: ask(self, *args, **kwargs))

    return write


def _written(
    method: Callable[Concatenate[DriverSide, P], T], *, unless: bool | None = None
) -> Callable[Concatenate[RestoringJournal, P], T]:
    """Return the same, which remembers the event, the last argument; but not when the answer is *unless*."""
    guarded = _guarded(method)

    def write(self: RestoringJournal, /, *args: P.args, **kwargs: P.kwargs) -> T:
        answer = guarded(self, *args, **kwargs)
        if unless is None or answer is not unless:
            self._wrote(cast("bytes", args[-1]))
        return answer

    return write


class RestoringJournal(DriverSide):
    """A driver's journal on a server that may lose data: all of it, or the newest entries.

    The local copy has the entries that the driver has read, and this object remembers the events that it has written since. A
    write that finds the journal gone restores it and is then repeated. The driver learns of the attempts that this has ended as of
    any that are lost: by the entries that follow. Used by one thread.

    Args:
        journal: the experiment's.
        reader: the reader of the driver.
        copy: the local copy.
        owner: the driver's token.
        clock: the clock for the times of events.
    """

    def __init__(
        self,
        journal: Journal,
        reader: JournalReader,
        copy: JournalFile,
        owner: str,
        clock: Clock,
    ) -> None:
        self.experiment = journal.experiment
        self._journal = journal
        self._reader = reader
        self._copy = copy
        self._owner = owner
        self._clock = clock
        self._restored: list[PutBack] = []
        self._definition: bytes | None = None
        #: Events that the driver has written and not read since.
        self._unread: deque[bytes] = deque()
        self._looked_after = journal.outages

    def catch_up(self) -> dict[Cursor, list[Event]]:
        """Have the reader read the whole journal, and return the driver's events, as the reader does.

        Entries that the server has lost since the copy was written are restored first.
        """
        self._definition = self._journal.definition()
        try:
            return self._reader.catch_up()
        except JournalGone:
            bring_back_end(self._journal, self._copy, owner=self._owner, at=self._clock.time())
            return self._reader.catch_up()

    def read_back(self, entries: Sequence[Entry]) -> None:
        """Forget the events that were read back, and those written before them: they are in the copy."""
        for entry in entries:
            if entry.data in self._unread:
                while self._unread.popleft() != entry.data:
                    pass

    def look(self) -> bool:
        """Restore what was lost, if the server was away since the last look; return whether something was.

        If so, entries that were read since then are invalid: they may not be what follows.

        Raises:
            JournalGone: it can't be restored.
            DriverFenced: a later driver has begun.
        """
        return self._journal.outages != self._looked_after and self._look()

    def _look(self) -> bool:
        # An outage from here on needs another look.
        outages = self._journal.outages
        was_away = outages != self._looked_after
        is_lost = not self._has_last() or (was_away and not self._has_all_written())
        if is_lost:
            self._put_back()
        self._looked_after = outages
        return is_lost

    def _has_last(self) -> bool:
        return self._reader.last == START.entry or self._journal.holds(self._reader.last)

    def _has_all_written(self) -> bool:
        """Return whether the server has every event that the driver has written and not read since."""
        return not self._unread or set(self._unread) <= set(self._behind())

    def _behind(self) -> list[bytes]:
        """Return the server's events after the entry that was read last."""
        return [entry.data for entry in entries_behind(self._journal, self._reader.last)]

    def _put_back(self) -> None:
        restored = put_back(
            self._journal,
            self._copy,
            self._reader.last,
            self._completed(self._behind() if self._has_last() else []),
            owner=self._owner,
            at=self._clock.time(),
            definition=self._definition,
        )
        self._restored.append(restored)

    def take_restored(self) -> list[PutBack]:
        """Return what was put back since the last call."""
        restored, self._restored = self._restored, []
        return restored

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

    def _wrote(self, *events: bytes) -> None:
        """Remember events that the driver relies on from now on.

        A server that refused one as a repetition has it already, or was set back and gets it when that is noticed.
        """
        self._unread.extend(events)

    def _surely(self, write: Callable[[], T]) -> T:
        """Write; if the journal is gone, restore it first."""
        while True:
            try:
                return write()
            except JournalGone:
                self._put_back()

    # What the driver writes.

    def lock(self, owner: str, description: str, hold_s: float, *, dead: str = "") -> None:
        self._surely(lambda: self._journal.lock(owner, description, hold_s, dead=dead))
        # A server may be set back, by hand, without having been away.
        self._look()

    def record(self, event: bytes, *, definition: bytes | None = None) -> None:
        self._definition = definition or self._definition
        self._surely(lambda: self._journal.record(event, definition=definition))
        self._wrote(event)

    def stage(self, trial: TrialId, attempt: int, assignment: Assignment, event: bytes) -> bool:
        """Make an attempt claimable, as any journal does.

        Raises:
            CheckpointGone: the one that it starts from was lost meanwhile; nothing was done.
        """
        try:
            is_new = self._journal.stage(trial, attempt, assignment, event)
        except JournalGone:
            self._put_back()
            if is_in_memory(assignment.checkpoint) and assignment.checkpoint not in self._journal.checkpoints():
                raise CheckpointGone(f"Redis has lost checkpoint {assignment.checkpoint}") from None
            is_new = self._surely(lambda: self._journal.stage(trial, attempt, assignment, event))
        self._wrote(event)
        return is_new

    def intend(self, trial: TrialId, attempt: int, intent: Intent, event: bytes, ended: bytes) -> Intended:
        answer = self._surely(lambda: self._journal.intend(trial, attempt, intent, event, ended))
        self._wrote(event)
        if answer == "unclaimed":
            self._wrote(ended)
        return answer

    close_trial = _written(DriverSide.close_trial)
    drop_checkpoints = _written(DriverSide.drop_checkpoints)
    reap = _written(DriverSide.reap, unless=False)
    void = _written(DriverSide.void, unless=False)
    request_save = _guarded(DriverSide.request_save)
    release = _guarded(DriverSide.release)
    reconcile = _guarded(DriverSide.reconcile)
    forfeit_leases = _guarded(DriverSide.forfeit_leases)

    def request(self, event: Requested) -> str:
        """Append a request, as any journal does."""
        entry = self._surely(lambda: self._journal.request(event))
        self._wrote(event.encode())
        return entry

    # Calls that the journal answers as it is.

    @property
    def outages(self) -> int:
        return self._journal.outages

    unlock = _asked(DriverSide.unlock)
    definition = _asked(DriverSide.definition)
    checkpoint = _asked(DriverSide.checkpoint)
    expired = _asked(DriverSide.expired)
    unclaimed = _asked(DriverSide.unclaimed)
    held = _asked(DriverSide.held)
