"""The saved state of an experiment, so that opening its folder need not read all reports.

The state is a cache of the folder's copy of the journal, and can be deleted at any time. It is used only if it is
intact, was saved by this version of mqtune, and belongs to this copy.
"""

from __future__ import annotations

import itertools
import logging
import os
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import msgpack

from mqtune.core.codec import REPORTS_PREFIX, Body, decode_value, encode_value
from mqtune.core.entries import placed_events, with_told
from mqtune.core.errors import ImpossibleEvent, MqtuneError
from mqtune.core.events import START, Cursor, Event, ExperimentCreated, Reports, decode_event
from mqtune.core.experiment import STATE_FORM, Experiment
from mqtune.core.machine import replace_file
from mqtune.core.trial import Report
from mqtune.core.version import __version__
from mqtune.journal.base import Entry, entry_order
from mqtune.journal.files.copy import JOURNAL_FILE, JournalFile, entries_of
from mqtune.results.experiments import created_event, empty_experiment, first_events, with_entry

logger = logging.getLogger(__name__)

STATE_FILE: Final = "state.msgpack"
#: The number and the size, in bytes, of the parts of a copy by which a state recognises it.
_SAMPLES: Final = 16
_SAMPLE_BYTES: Final = 4096


class Worth(NamedTuple):
    """Limits that say when saving a state is worthwhile, in bytes of the journal's copy.

    Attributes:
        least: a state must cover this many bytes: about 150,000 reports, or a quarter of a second of reading.
        a_trial: a state must also cover this many bytes for each trial, as reading a trial's state takes as long as
            reading a few dozen reports.
        lag: a state doesn't cover this many bytes at the copy's end, as a driver may be about to decide on them.
    """

    least: int = 8 * 2**20
    a_trial: int = 2**11
    lag: int = 2**20

    def of(self, experiment: Experiment) -> int:
        """Return the number of bytes that a state of this experiment must cover."""
        return max(self.least, self.a_trial * len(experiment.trials))


_WORTH: Final = Worth()


class Mark(NamedTuple):
    """The part of a copy that a state covers.

    Attributes:
        entry: the id of the last entry whose reports are included.
        reports: the number of that entry's reports that are included.
        end: the offset of that entry's end in the file.
        driven_to: the offset up to which drivers' events are included.
    """

    entry: str = START.entry
    reports: int = START.reports
    end: int = 0
    driven_to: int = 0

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.entry, self.reports)


class JournalPart:
    """The entries of a copy up to an offset in its file."""

    def __init__(self, path: Path, end: int) -> None:
        self.end = end
        self._path = path

    def read(self) -> Iterator[Entry]:
        with self._path.open("rb") as file:
            yield from _entries_between(file, 0, self.end)


def fold_copy(folder: Path, worth: Worth = _WORTH) -> tuple[Experiment, JournalPart]:
    """Read an experiment from its folder. Return it, with the part of the copy that was read.

    If the copy has become much longer than its saved state, a new state is saved.

    Raises:
        ConfigurationError: the copy is still empty.
        MessageVersionError: a later version of mqtune wrote it.
        ImpossibleEvent: an event can't follow the ones before. The error names its entry.
    """
    path = folder / JOURNAL_FILE
    with path.open("rb") as file:
        experiment, mark = _saved_or_empty(folder, file)
        try:
            tail = _Tail(file, mark, worth.lag)
        except _OutOfOrder:
            experiment, mark = _empty(folder), Mark()
            tail = _Tail(file, mark, worth.lag)
        # Entries that a driver appends from here on are not read.
        for events, reached in tail.parts():
            try:
                for event in events:
                    experiment.apply_report(event) if isinstance(event, Report) else experiment.apply(event)
            except ImpossibleEvent as error:
                raise with_entry(error, experiment.name, JournalFile(path).read()) from None
            if reached is not None and reached.end - mark.end >= worth.of(experiment):
                keep_state(folder, experiment, reached, worth)
    return experiment, JournalPart(path, tail.end)


def keep_state(folder: Path, experiment: Experiment, mark: Mark, worth: Worth = _WORTH) -> None:
    """Save a state in the experiment's folder if the copy is long enough. Ignore write errors."""
    if mark.end < worth.of(experiment):
        return
    path = folder / JOURNAL_FILE
    try:
        with path.open("rb") as file:
            body = {**mark._asdict(), "samples": _samples(file, mark.end), "state": experiment.state()}
            packed = encode_value(body)
            # The state has the permissions of the copy.
            mode = os.fstat(file.fileno()).st_mode & 0o666
        replace_file(folder / STATE_FILE, [encode_value([_format_version(), zlib.crc32(packed), packed])], mode=mode)
    except (OSError, TypeError, ValueError, OverflowError) as error:
        logger.debug("the state of %s can't be saved: %s", folder, error)


def keep_whole_state(folder: Path, experiment: Experiment, cursor: Cursor) -> None:
    """Save the state of a driver that has processed its whole copy, if that is long enough."""
    try:
        size = (folder / JOURNAL_FILE).stat().st_size
    except OSError:
        return
    keep_state(folder, experiment, Mark(*cursor, size, size))


def _format_version() -> list[object]:
    """Return the version of the state's format. States with another one are not used."""
    return [__version__, zlib.crc32(repr(STATE_FORM).encode())]


def _empty(folder: Path) -> Experiment:
    return empty_experiment(created_event(first_events(JournalFile(folder / JOURNAL_FILE)), folder))


def _saved_or_empty(folder: Path, file: BinaryIO) -> tuple[Experiment, Mark]:
    """Return the saved state and its mark, or an empty experiment if no saved state is usable."""
    experiment = _empty(folder)
    try:
        form, crc, packed = decode_value((folder / STATE_FILE).read_bytes())
        if form == _format_version() and crc == zlib.crc32(packed):
            body: Body = decode_value(packed)
            mark = Mark(*(body[name] for name in Mark._fields))
            if os.fstat(file.fileno()).st_size >= mark.end and body["samples"] == _samples(file, mark.end):
                experiment.restore(body["state"])
                return experiment, mark
    except FileNotFoundError:
        pass
    except (OSError, MqtuneError, ValueError, TypeError, LookupError, AttributeError, msgpack.UnpackException) as error:
        logger.debug("the state of %s can't be used: %s", folder, error)
        experiment = _empty(folder)
    return experiment, Mark()


def _samples(file: BinaryIO, end: int) -> int:
    """Return a checksum of some parts of a file up to *end*, by which journals differ."""
    checksum, step = 0, max(0, end - _SAMPLE_BYTES) / (_SAMPLES - 1)
    for number in range(_SAMPLES):
        start = round(step * number)
        file.seek(start)
        checksum = zlib.crc32(file.read(min(_SAMPLE_BYTES, end - start)), checksum)
    return checksum


def _entries_between(file: BinaryIO, start: int, end: int) -> Iterator[Entry]:
    if start >= end:
        # A seek would disturb another iterator that is reading this file.
        return
    file.seek(start)
    for entry, its_end in entries_of(file):
        yield entry
        if its_end >= end:
            return


class _Tail:
    """The entries of a copy after a mark, up to the copy's present end.

    Raises:
        _OutOfOrder: one of them is a driver's event whose cursor points before the mark.
    """

    def __init__(self, file: BinaryIO, mark: Mark, lag_bytes: int) -> None:
        self.end = mark.end
        self._file = file
        self._mark = mark
        #: The last entry after which a state may be saved, and the offset of its end.
        self._reached: tuple[Entry, int] | None = None
        self._pending: dict[Cursor, list[Event]] = defaultdict(list)
        self._is_in_order = True
        lag_from = os.fstat(file.fileno()).st_size - lag_bytes
        file.seek(mark.end)
        for entry, end in entries_of(file):
            if self._scan(entry, end) and end <= lag_from:
                self._reached = entry, end
            self.end = end

    def _scan(self, entry: Entry, end: int) -> bool:
        """Collect a driver's event by its cursor. Return whether a cursor may point at the entry."""
        if entry.data.startswith(REPORTS_PREFIX):
            return True
        event = decode_event(entry.data, entry.id)
        cursor = getattr(event, "cursor", None)
        if event is None or cursor is None:
            return event is not None and not isinstance(event, ExperimentCreated)
        position, mark = _sort_key(cursor), _sort_key(self._mark.cursor)
        self._is_in_order = self._is_in_order and position[0] < entry_order(entry.id)
        if end > self._mark.driven_to and position < mark:
            raise _OutOfOrder
        if end > self._mark.driven_to or position > mark:
            self._pending[cursor].append(event)
        return False

    def parts(self) -> Iterator[tuple[Iterable[Event | Report], Mark | None]]:
        """Yield the events in the driver's order, in three parts, each with a mark or None.

        A state may be saved when the events of the part with a mark were applied.
        """
        start, mark = self._mark.end, self._next_mark()
        split = start if mark is None else mark.end
        first = placed_events(_entries_between(self._file, start, split), self._pending)
        if start:
            first = itertools.chain(with_told(self._pending.pop(self._mark.cursor, ())), first)
        rest = placed_events(_entries_between(self._file, split, self.end), self._pending)
        if not start:
            # The experiment was made from its creation event.
            next(first if split else rest, None)
        yield first, mark
        yield rest, None
        # Drivers' events whose cursors point at missing entries, as in a truncated journal.
        yield (event for events in self._pending.values() for event in with_told(events)), None

    def _next_mark(self) -> Mark | None:
        if self._reached is None or not self._is_in_order:
            return None
        entry, end = self._reached
        event = decode_event(entry.data, entry.id)
        reports = sum(1 for _ in event) if isinstance(event, Reports) else 0
        # No cursor points at an entry of reports of which none is readable.
        return Mark(entry.id, reports, end, self.end) if reports or not isinstance(event, Reports) else None


def _sort_key(cursor: Cursor) -> tuple[tuple[int, int], int]:
    return entry_order(cursor.entry), cursor.reports


class _OutOfOrder(Exception):
    """Since the state was saved, a driver has acted on entries before the mark."""
