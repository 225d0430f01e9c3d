"""The driver's part of recovery: restores a lost journal from the experiment's folder."""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final

from mqtune.core.codec import encode_value
from mqtune.core.definition import decode_definition
from mqtune.core.errors import MessageVersionError, StoreUnavailable
from mqtune.core.events import (
    START,
    AttemptEnded,
    CheckpointSaved,
    CheckpointsDropped,
    Cursor,
    DriverStarted,
    ExperimentCreated,
    Reports,
    Requested,
    TrialStaged,
    decode_event,
)
from mqtune.core.machine import ARCHIVED
from mqtune.core.trial import FORGOTTEN, AttemptEnd, CheckpointId, TrialId, is_in_memory
from mqtune.driver import Restored, bring_dicts
from mqtune.driver.ports import DriverHost, DriverService
from mqtune.journal import (
    Chapter,
    Entry,
    Journal,
    JournalFile,
    LastAttempt,
    begins,
    chapter_bytes,
    cut_chapters,
    entries_after,
    entry_order,
    gone,
    keep_chapter,
)

logger = logging.getLogger(__name__)

_ERROR: Final = "Redis lost what it had of this attempt, and refuses what its worker still sends"


class Recovery(DriverService):
    """Restores a lost journal, for a driver that opens or runs an experiment.

    Args:
        host: the driver.
    """

    def __init__(self, host: DriverHost) -> None:
        self._host = host

    def journal_lost(self) -> Restored | None:
        """Restore the journal from the entries that this driver has read, or from an earlier copy."""
        ledger, copy = self._host.ledger, JournalFile(self._host.copy)
        at, most_bytes = self._host.clock.time(), self._host.heartbeat.most_bytes
        if not ledger.is_begun:
            return reopen(ledger.journal, copy, at=at, most_bytes=most_bytes)
        # A copy may be of an earlier experiment of that name, until the driver has read anything.
        return restore(ledger.journal, copy, ledger.read_to, ledger.following(), at=at, most_bytes=most_bytes)


def for_driver(host: DriverHost) -> Sequence[DriverService]:
    """Return the recovery of a driver."""
    return (Recovery(host),)


def reopen(journal: Journal, copy: JournalFile, *, at: float, most_bytes: int = 0) -> Restored | None:
    """Restore what Redis has lost of an experiment while it had no driver.

    Return None if there was nothing to restore, or no copy of an earlier driver.

    If the journal's beginning is gone: a copy of an experiment with another definition is left alone. Entries that came
    after the copy are left out, and their trials run again.

    If only the journal's end is gone, and another driver has continued from there, the copy is renamed: the entries
    that only it has are not part of the experiment. What the copy's own driver has written there, before it noticed the
    loss, is kept behind the restored entries.

    Args:
        journal: the experiment's journal, whose lock this process has.
        copy: the copy that an earlier driver may have left.
        at: the time of the events that this journals.
        most_bytes: how many bytes the journal may have; 0 for any number.

    Raises:
        JournalGone: the copy can't be read.
        MessageVersionError: the definition in Redis can't be decoded.
    """
    definition = journal.definition()
    try:
        contents = _Contents(copy.read())
    except FileNotFoundError:
        return None
    except (OSError, MessageVersionError) as error:
        if definition is not None:
            # The reader says what is wrong.
            return None
        raise gone(copy, journal.experiment, str(error)) from None
    if contents.experiment != journal.experiment:
        return None
    written: list[bytes] = []
    if definition is not None and begins(journal):
        if journal.holds(contents.ids[-1]):
            return None
        common = bisect_left(contents.ids, 1, key=lambda id_: not journal.holds(id_))
        behind = [*entries_after(journal, contents.ids[common - 1])]
        if _has_other_driver(behind, lost=contents.ids[common:]):
            _put_aside(journal, copy, contents.ids, common)
            return None
        written = [entry.data for entry in behind if _cursor_of(entry) is not None]
    elif definition is not None and contents.definition != decode_definition(journal.experiment, definition):
        return None
    restored = restore(journal, copy, contents.ids[-1], written, at=at, most_bytes=most_bytes)
    copy.path.with_name(ARCHIVED).unlink(missing_ok=True)
    return restored


def _has_other_driver(behind: Sequence[Entry], *, lost: Sequence[str]) -> bool:
    """Return whether a driver has begun behind a loss that knows no lost entry.

    Args:
        behind: the server's entries behind those that it has in common with the copy.
        lost: the ids of the copy's entries that the server lacks.
    """
    known = set(lost)
    begun = (_cursor_of(entry) for entry in behind if isinstance(decode_event(entry.data), DriverStarted))
    return any(cursor is not None and cursor.entry not in known for cursor in begun)


def _cursor_of(entry: Entry) -> Cursor | None:
    """Return the cursor of a driver's event. Return None for any other entry."""
    cursor: Cursor | None = getattr(decode_event(entry.data), "cursor", None)
    return cursor


def _put_aside(journal: Journal, copy: JournalFile, ids: Sequence[str], common: int) -> None:
    """Rename a copy of which the server has only the first *common* entries."""
    aside = copy.put_aside(ids[-1])
    logger.warning(
        "Redis came back without the last %d entries of experiment %r, and another driver has gone on from there, as "
        "this one does; the copy with those entries is %s",
        len(ids) - common,
        journal.experiment,
        aside,
    )


def restore(
    journal: Journal, copy: JournalFile, last: str, behind: Sequence[bytes], *, at: float, most_bytes: int = 0
) -> Restored:
    """Write a copy's entries up to *last*, and then the unread events *behind*, to the server.

    In the same step, attempts that were under way are journaled as lost, and dicts that neither the server nor a file
    has are journaled as dropped. *most_bytes* is how many bytes the journal may have; 0 for any number.

    Raises:
        JournalGone: the copy is incomplete.
        DriverFenced: a later driver has begun.
    """
    name, folder = journal.experiment, copy.path.parent
    try:
        contents = _Contents(_upto(copy, last))
    except (OSError, MessageVersionError) as error:
        raise gone(copy, name, str(error)) from None
    if last != START.entry and contents.ids[-1:] != [last]:
        raise gone(copy, name, "that lacks the end, because it could not be written")
    total = len(contents.ids)
    # The store may be away, too: entries in chapters count as present.
    on_server = journal.chapters()
    head = bisect_right(contents.ids, entry_order(on_server[-1].last), key=entry_order) if on_server else 0
    missing = total - bisect_left(contents.ids, 1, lo=head, key=lambda id_: not journal.holds(id_))
    for entry in _numbered(behind, last):
        contents.take(entry)
    if contents.experiment != name:
        raise gone(copy, name, "that is another experiment's")
    chapters = _in_chapters(journal, copy, last, most_bytes)
    while True:
        lost = bring_dicts(journal, folder, contents.dicts)
        # Before the ends of attempts, whose trials would otherwise run again from these dicts.
        dropped = [CheckpointsDropped(checkpoints=[*lost], at=at).encode()] if lost else []
        journal.restore(
            lambda: chain(_upto(copy, last, chapters), _numbered(behind, last)),
            contents.last(),
            [*dropped, *contents.ends(at)],
            requests=contents.requests,
            definition=encode_value(contents.definition),
            chapters=chapters,
            first=next(copy.read()) if chapters else None,
        )
        if not contents.dicts or contents.dicts.keys() - lost <= journal.checkpoints():
            break
        # The server was emptied, or set back, once more in between.
    logger.warning(
        "%s %d of the %d entries of experiment %r; they were put back from %s. %d attempts that were "
        "under way are lost; their trials run again",
        "An archive has" if (folder / ARCHIVED).is_file() else "Redis came back without",
        missing,
        total,
        name,
        copy.path,
        len(contents.live),
        extra={"action": "journal_restored", "experiment": name, "missing": missing},
    )
    return Restored(total, missing, lost)


def _in_chapters(journal: Journal, copy: JournalFile, last: str, most_bytes: int) -> list[Chapter]:
    """Move a copy's oldest entries, up to *last*, into the store, and return their chapters.

    At least one chapter's worth of bytes stays out of the store, for the server. Without a store, or if it can't be
    reached, the list is empty and the server gets all entries.
    """
    if journal.chapter_store is None:
        return []
    size, left = chapter_bytes(most_bytes), sum(len(entry.data) for entry in _upto(copy, last))
    chapters: list[Chapter] = []
    try:
        # It cuts one chapter more than may be moved.
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
    """The state of an experiment after some entries, as far as a restoration needs it.

    It has the definition, the last attempt of each trial, attempts under way, requests and dicts.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.ids: list[str] = []
        #: Its name; empty if the entries don't begin with its creation.
        self.experiment = ""
        self.definition: dict[str, Any] = {}
        #: The ids of each request and of its entry.
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
        """Yield an event for each attempt under way, which ends it as lost.

        Any driver that reads the journal applies the events at this point.
        """
        for trial, attempt in self.live:
            yield AttemptEnded(
                trial=trial, attempt=attempt, end=AttemptEnd.LOST, at=at, error_type=FORGOTTEN, error=_ERROR
            ).encode()


def _upto(copy: JournalFile, last: str, chapters: Sequence[Chapter] = ()) -> Iterator[Entry]:
    """Yield the entries of a copy, up to and including *last*.

    The copy's oldest entries that are also in *chapters*, files in the store, are left out.
    """
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
