"""The state that an experiment's events led to, kept in its folder, so that who opens it need not read all reports once more.

The copy of the journal is the truth, and this is a shortcut to it: it is used only where it is whole, was written by this version,
and the copy is still the one that it was made of, and it can be deleted at any time.
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
from mqtune.core.errors import ImpossibleEvent, MqtuneError
from mqtune.core.events import (
    START,
    Cursor,
    Event,
    ExperimentCreated,
    Reports,
    decode_event,
    placed_events,
    with_told,
)
from mqtune.core.experiment import STATE_FORM, Experiment
from mqtune.core.machine import replace_file
from mqtune.core.trial import Report
from mqtune.core.version import __version__
from mqtune.journal.base import Entry, entry_order
from mqtune.journal.copy import JOURNAL_FILE, JournalFile, entries_of
from mqtune.results.experiments import created_event, empty_experiment, first_events, with_entry

logger = logging.getLogger(__name__)

STATE_FILE: Final = "state.msgpack"
#: How many places of a copy are compared with what they were, and how much there.
_SAMPLES: Final = 16
_SAMPLE_BYTES: Final = 4096


class Worth(NamedTuple):
    """How long a copy has to be for a state to be kept beside it, in bytes.

    Attributes:
        least: the bytes that a state saves at least: some 150,000 reports, or a quarter of a second of reading.
        a_trial: the same for each trial, since a trial's state is read in the time of a few dozen reports.
        lag: the end of the copy that a state leaves out, some 20,000 reports: a driver may be about to decide on these.
    """

    least: int = 8 * 2**20
    a_trial: int = 2**11
    lag: int = 2**20

    def of(self, experiment: Experiment) -> int:
        """Return the bytes that a state of this experiment has to save."""
        return max(self.least, self.a_trial * len(experiment.trials))


_WORTH: Final = Worth()


class Mark(NamedTuple):
    """How far a state goes: a driver's place in a copy, where that entry ends in the file, and up to where all that drivers wrote is in it."""

    entry: str = START.entry
    reports: int = START.reports
    end: int = 0
    driven_to: int = 0

    @property
    def cursor(self) -> Cursor:
        """The place."""
        return Cursor(self.entry, self.reports)


class JournalPart:
    """The entries of a copy up to a place in its file."""

    def __init__(self, path: Path, end: int) -> None:
        self.end = end
        self._path = path

    def read(self) -> Iterator[Entry]:
        """Yield the entries."""
        with self._path.open("rb") as file:
            yield from _entries_between(file, 0, self.end)


def fold_copy(folder: Path, worth: Worth = _WORTH) -> tuple[Experiment, JournalPart]:
    """Return what the copy in a folder says of its experiment, and the part of it that says that.

    Raises:
        ConfigurationError: the copy is still empty.
        MessageVersionError: a later version of mqtune wrote it.
        ImpossibleEvent: an event can't follow what came before; the error names its entry.
    """
    path = folder / JOURNAL_FILE
    with path.open("rb") as file:
        experiment, mark = _begun(folder, file)
        try:
            tail = _Tail(file, mark, worth.lag)
        except _OutOfOrder:
            experiment, mark = _empty(folder), Mark()
            tail = _Tail(file, mark, worth.lag)
        # A driver may write more at any moment, of which the state knows nothing.
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
    """Write a state beside the copy that it was made of, unless that is short, or can't be written to."""
    if mark.end < worth.of(experiment):
        return
    path = folder / JOURNAL_FILE
    try:
        with path.open("rb") as file:
            body = {**mark._asdict(), "samples": _samples(file, mark.end), "state": experiment.state()}
            packed = encode_value(body)
            # Nobody may read it who may not read the copy.
            mode = os.fstat(file.fileno()).st_mode & 0o666
        replace_file(folder / STATE_FILE, [encode_value([_form(), zlib.crc32(packed), packed])], mode=mode)
    except (OSError, TypeError, ValueError, OverflowError) as error:
        logger.debug("the state of %s is not kept: %s", folder, error)


def keep_whole_state(folder: Path, experiment: Experiment, cursor: Cursor) -> None:
    """Write the state of a driver that has come to the end of its copy, and stands at this place; otherwise as ``keep_state``."""
    try:
        size = (folder / JOURNAL_FILE).stat().st_size
    except OSError:
        return
    keep_state(folder, experiment, Mark(*cursor, size, size))


def _form() -> list[object]:
    """Return what must be the same in who writes a state and who reads it: the rules of the fold, and what it holds."""
    return [__version__, zlib.crc32(repr(STATE_FORM).encode())]


def _empty(folder: Path) -> Experiment:
    return empty_experiment(created_event(first_events(JournalFile(folder / JOURNAL_FILE)), folder))


def _begun(folder: Path, file: BinaryIO) -> tuple[Experiment, Mark]:
    """Return the experiment as its kept state has it, and how far that goes; an empty one where there is none to be used."""
    experiment = _empty(folder)
    try:
        form, crc, packed = decode_value((folder / STATE_FILE).read_bytes())
        if form == _form() and crc == zlib.crc32(packed):
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
    """Return a checksum of some places of a file, up to *end*; another journal differs in them, its entries' ids alone."""
    checksum, step = 0, max(0, end - _SAMPLE_BYTES) / (_SAMPLES - 1)
    for number in range(_SAMPLES):
        start = round(step * number)
        file.seek(start)
        checksum = zlib.crc32(file.read(min(_SAMPLE_BYTES, end - start)), checksum)
    return checksum


def _entries_between(file: BinaryIO, start: int, end: int) -> Iterator[Entry]:
    if start >= end:
        # Another part of the same file may be half read.
        return
    file.seek(start)
    for entry, its_end in entries_of(file):
        yield entry
        if its_end >= end:
            return


class _Tail:
    """The rest of a copy behind a mark, as far as it goes now.

    Raises:
        _OutOfOrder: it has what a driver did before it had come as far as the mark.
    """

    def __init__(self, file: BinaryIO, mark: Mark, lag_bytes: int) -> None:
        #: Where the last complete entry ends.
        self.end = mark.end
        self._file = file
        self._mark = mark
        #: The last entry behind which a state may be kept, and where it ends.
        self._reached: tuple[Entry, int] | None = None
        self._pending: dict[Cursor, list[Event]] = defaultdict(list)
        self._is_in_order = True
        lag_from = os.fstat(file.fileno()).st_size - lag_bytes
        file.seek(mark.end)
        for entry, end in entries_of(file):
            if self._is_place(entry, end) and end <= lag_from:
                self._reached = entry, end
            self.end = end

    def _is_place(self, entry: Entry, end: int) -> bool:
        """Return whether a driver may stand at an entry; note what a driver wrote, to find it at its place."""
        if entry.data.startswith(REPORTS_PREFIX):
            return True
        event = decode_event(entry.data, entry.id)
        cursor = getattr(event, "cursor", None)
        if event is None or cursor is None:
            return event is not None and not isinstance(event, ExperimentCreated)
        place, mark = _place(cursor), _place(self._mark.cursor)
        self._is_in_order = self._is_in_order and place[0] < entry_order(entry.id)
        if end > self._mark.driven_to and place < mark:
            raise _OutOfOrder
        if end > self._mark.driven_to or place > mark:
            self._pending[cursor].append(event)
        return False

    def parts(self) -> Iterator[tuple[Iterable[Event | Report], Mark | None]]:
        """Yield the events in order, in parts; where a state can be kept, the first ends at its mark."""
        start, mark = self._mark.end, self._next_mark()
        split = start if mark is None else mark.end
        first = placed_events(_entries_between(self._file, start, split), self._pending)
        if start:
            first = itertools.chain(with_told(self._pending.pop(self._mark.cursor, ())), first)
        rest = placed_events(_entries_between(self._file, split, self.end), self._pending)
        if not start:
            # That it was created is known.
            next(first if split else rest, None)
        yield first, mark
        yield rest, None
        # What a driver wrote after entries that are not here, as in a journal that was cut.
        yield (event for events in self._pending.values() for event in with_told(events)), None

    def _next_mark(self) -> Mark | None:
        if self._reached is None or not self._is_in_order:
            return None
        entry, end = self._reached
        event = decode_event(entry.data, entry.id)
        reports = sum(1 for _ in event) if isinstance(event, Reports) else 0
        # A driver does not stand at an entry of which it can read no report.
        return Mark(entry.id, reports, end, self.end) if reports or not isinstance(event, Reports) else None


def _place(cursor: Cursor) -> tuple[tuple[int, int], int]:
    return entry_order(cursor.entry), cursor.reports


class _OutOfOrder(Exception):
    """A driver has acted on what is before the mark since the state was kept."""
