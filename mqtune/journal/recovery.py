"""Redis came back empty, or set back to an earlier state: putting back what the local copy has of an experiment."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from mqtune.core.codec import encode_value
from mqtune.core.errors import JournalGone, MessageVersionError
from mqtune.core.events import AttemptEnded, ExperimentCreated, Reports, Requested, TrialStaged, decode_event
from mqtune.core.machine import describe_process
from mqtune.core.trial import FORGOTTEN, AttemptEnd, TrialId
from mqtune.journal.base import Entry, Journal, LastAttempt
from mqtune.journal.file import JournalFile
from mqtune.journal.takeover import LOCK_S

__all__ = ["PutBack", "bring_back", "bring_back_end", "entries_behind", "kept_definition", "put_back"]

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
    """Put an experiment back that Redis has lost while nobody drove it, if an earlier driver has left a copy of it.

    To be called by who has just got the lock of an experiment that Redis doesn't have. Without a copy it is a new one.

    Args:
        journal: the experiment's.
        copy: what an earlier driver may have left here.
        owner: the driver's token.
        at: the time of what is journaled.
        accept: raises an error for the definition of another experiment than is wanted.

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
    """Put back the end of an experiment, of which Redis has only an earlier state than the copy.

    If another driver has gone on from that state, the copy is put aside: what it alone has is no part of the experiment.
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
    """Return what an experiment was created with, as a copy has it, or None if it is not of that."""
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
    """Have the journal hold what a copy has up to the entry *last*, and *behind* it events that nobody has read.

    The definition is by default the one that the experiment was created with. No attempt that was under way survives it:
    each is journaled as lost.

    Raises:
        JournalGone: the copy doesn't have all of it.
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
    """Yield what the journal has behind an entry."""
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
        """Take an entry in."""
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
        """Yield, for each attempt under way, that it is lost; like a worker's word, which any driver reads in its place."""
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
        f"put back from {copy.path}: {why}. What there is of it can be read with `mqtune show`; begin it anew under another name"
    )
