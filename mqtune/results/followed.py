"""Follow an experiment that another process drives, as its journal grows."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from mqtune.core.errors import BrokerUnavailable, ConfigurationError, ImpossibleEvent, InvalidTransition
from mqtune.core.events import (
    START,
    DecisionTaken,
    DriverStarted,
    Event,
    ExperimentCreated,
    ExperimentEnded,
    Reports,
    Told,
    TrialStaged,
    decode_event,
)
from mqtune.core.trial import Report, Trial, TrialId
from mqtune.journal.base import Entry, entry_order
from mqtune.journal.files.copy import JOURNAL_FILE, JournalFile, entries_of, incomplete, lacks_entries
from mqtune.results.experiments import Readable, Snapshot, empty_experiment, saved_events, with_entry

#: Seconds between checks of whether the file has grown.
_POLL_S: Final = 0.02


class Replaced(Exception):
    """The journal's file was replaced. The next read begins with the new file's first entry."""


class Source(Protocol):
    """A source of a journal's entries."""

    def read(self, timeout_s: float) -> list[Entry]:
        """Return new entries. Wait up to *timeout_s* seconds for the first one.

        Raises:
            BrokerUnavailable: the server does not answer.
            Replaced: the source is a file, which was replaced.
            CopyIncomplete: the source is a file, which lacks entries that its driver could not write.
        """

    def close(self) -> None:
        """Close the source."""


class FolderSource:
    """Reads entries from the driver's copy of the journal on this machine.

    Raises:
        FileNotFoundError: the copy does not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / JOURNAL_FILE
        self._inode = self._path.stat().st_ino
        self._size = self._end = 0

    def read(self, timeout_s: float) -> list[Entry]:
        deadline = time.monotonic() + timeout_s
        while not (entries := self._read_new()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if not entries and lacks_entries(self._path, self._end):
            raise incomplete(self._path, self._path.parent.name)
        return entries

    def _read_new(self) -> list[Entry]:
        if (self._path.stat().st_ino, self._path.stat().st_size) == (self._inode, self._size):
            return []
        with self._path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_ino != self._inode or status.st_size < self._end:
                self._inode, self._size, self._end = status.st_ino, 0, 0
                raise Replaced
            self._size = status.st_size
            file.seek(self._end)
            entries = []
            for entry, self._end in entries_of(file):
                entries.append(entry)
        return entries

    def close(self) -> None:
        """Do nothing, as no file is open."""


class BrokerSource:
    """Reads entries from the journal on a broker.

    Args:
        patience_s: seconds for which a read tries to reach the server.
        folder: the folder to copy the entries to, or None.

    Raises:
        ConfigurationError: the broker has no such experiment.
        BrokerUnavailable: the broker does not answer.
    """

    def __init__(self, url: str, name: str, *, patience_s: float | None = None, folder: Path | None = None) -> None:
        from mqtune.results.follower import PATIENCE_S, Follower  # noqa: PLC0415 - only this needs redis

        patience_s = PATIENCE_S if patience_s is None else patience_s
        self._copy = None if folder is None else JournalFile(folder / JOURNAL_FILE)
        with contextlib.ExitStack() as stack:
            self._follower = stack.enter_context(contextlib.closing(Follower(url, name, patience_s=patience_s)))
            if self._copy is not None:
                self._copy.begin([])
                stack.callback(self._copy.close)
            self._open = stack.pop_all()

    def read(self, timeout_s: float) -> list[Entry]:
        entries = self._follower.read(timeout_s)
        if self._copy is not None:
            self._copy.append(entries)
        return entries

    def close(self) -> None:
        self._open.close()


class Fold:
    """The state of an experiment, computed from its events so far.

    Attributes:
        ended_at: when the experiment ended, in seconds since the epoch. None if it has not ended.
        is_out_of_order: whether a driver is known to have processed the events in another order. Then this state may
            differ from the driver's.
    """

    def __init__(self, created: ExperimentCreated) -> None:
        self.experiment = empty_experiment(created)
        self.ended_at: float | None = None
        self.is_out_of_order = False

    def on_report(self, report: Report, trial: Trial) -> None:
        """Do nothing. A subclass may process the accepted report here."""

    def take(self, event: Event | Report) -> None:
        """Fold an event, a batch of reports, or one report.

        Raises:
            InvalidTransition: the event can't follow the ones before, as a driver processed them in another order.
        """
        if isinstance(event, Report):
            trial = self.experiment.apply_report(event)
            if trial is not None:
                self.on_report(event, trial)
        elif isinstance(event, Reports):
            self.experiment.unreadable += event.unreadable
            for report in event:
                self.take(report)
        else:
            if isinstance(event, ExperimentEnded):
                self.ended_at = event.at
            elif isinstance(event, TrialStaged | DriverStarted):
                self.ended_at = None
            self.experiment.apply(event)

    def take_entry(self, entry: Entry) -> set[TrialId]:
        """Fold an entry, and return the ids of its trials.

        If the event can't follow the ones before, the rest of the entry is skipped, and ``is_out_of_order`` is set.
        """
        event = decode_event(entry.data, entry.id)
        if event is None:
            return set()
        try:
            self.take(event)
            if isinstance(event, Told):
                self.take(event.report)
            self.is_out_of_order = self.is_out_of_order or self._has_later_reports(event)
        except InvalidTransition:
            self.is_out_of_order = True
            return set()
        trials = (
            [report.trial for report in event] if isinstance(event, Reports) else [TrialId(getattr(event, "trial", ""))]
        )
        return {*trials} & self.experiment.trials.keys()

    def _has_later_reports(self, event: Event) -> bool:
        """Return whether reports later than the one that was decided on were already folded."""
        if not isinstance(event, DecisionTaken) or not event.sequence:
            return False
        return self.experiment.trials[event.trial].attempts[event.attempt - 1].reports > event.sequence


F = TypeVar("F", bound=Fold)


class Followed(Generic[F]):
    """Follows an experiment: folds each entry of its journal once, from the first one on.

    New entries are folded in the order of the journal. Drivers may have used another order: see
    ``Fold.is_out_of_order``. Only one thread may use an instance.

    Args:
        source: the source of entries. ``close`` closes it.
        fold: makes a fold from the journal's first event.
        written: the journal's copy, to fold the entries that already exist in the drivers' order. Its ``count`` is set
            to the number of folded entries.

    Attributes:
        last: the id of the last folded entry.

    Raises:
        ConfigurationError: the experiment has not begun yet.
        as ``Source.read``.
    """

    def __init__(
        self, source: Source, name: str, fold: Callable[[ExperimentCreated], F], written: Snapshot | None = None
    ) -> None:
        self.source, self.name = source, name
        self.last = START.entry
        self._make, self._written = fold, written
        try:
            self.fold = self.fold_all()
        except BaseException:
            source.close()
            raise

    @property
    def has_ended(self) -> bool:
        return self.fold.ended_at is not None

    def fold_all(self) -> F:
        """Fold all entries that the source has not yet returned, and return the new fold.

        If the file is replaced meanwhile, begin again with its first entry.
        """
        while True:
            with contextlib.suppress(Replaced):
                return self._fold_all()

    def _fold_all(self) -> F:
        if self._written is not None:
            count = 0
            while entries := self.source.read(0):
                count += len(entries)
                self.last = entries[-1].id
            self._written.count = count
            return self.fold_in_order(copy(self._written))
        entries = self.source.read(0)
        fold = self._make_fold(decode_event(entries[0].data, entries[0].id) if entries else None)
        while entries:
            # The first entry made the fold.
            for entry in entries if self.last != START.entry else entries[1:]:
                fold.take_entry(entry)
            self.last = entries[-1].id
            entries = self.source.read(0)
        return fold

    def fold_in_order(self, part: Readable, may_continue: Callable[[], bool] = lambda: True) -> F:
        """Fold entries in the drivers' order, while *may_continue* returns True. Return the fold."""
        events = saved_events(part)
        fold = self._make_fold(next(events, None))
        for event in events:
            try:
                fold.take(event)
            except ImpossibleEvent as error:
                raise with_entry(error, self.name, part.read()) from None
            if not may_continue():
                break
        return fold

    def _make_fold(self, created: Event | Report | None) -> F:
        if not isinstance(created, ExperimentCreated):
            raise ConfigurationError(
                f"experiment {self.name!r} has not begun yet; try again when its driver has started, or free space if "
                "the driver's disk is full"
            )
        return self._make(created)

    def take(self, entry: Entry) -> set[TrialId]:
        """Fold a new entry, and return the ids of its trials."""
        if self._written is not None:
            self._written.count = (self._written.count or 0) + 1
        self.last = entry.id
        return self.fold.take_entry(entry)

    def fold_new(self, timeout_s: float) -> bool:
        """Fold new entries, and return whether there were any. Wait up to *timeout_s* for the first.

        Raises:
            BrokerUnavailable: the server does not answer, and the experiment has not ended. The next call continues.
            CopyIncomplete: the copy on this machine lacks entries.
        """
        try:
            entries = self._read(timeout_s)
        except BrokerUnavailable:
            # A server that was started for this experiment alone ends with its driver.
            if not self.has_ended:
                raise
            entries = []
        new = [entry for entry in entries if entry_order(entry.id) > entry_order(self.last)]
        for entry in new:
            self.take(entry)
        return bool(new)

    def _read(self, timeout_s: float) -> list[Entry]:
        try:
            return self.source.read(timeout_s)
        except Replaced:
            # A driver replaced the file by one with the same entries, and more.
            return self._read(0)

    def close(self) -> None:
        self.source.close()


def source_of(name: str, folder: Path | None, url: str | None) -> Source:
    """Open the source of an experiment's entries: the server if *url* is given, else the folder.

    Raises:
        as ``BrokerSource`` and ``FolderSource``.
    """
    if url is None and folder is not None:
        return FolderSource(folder)
    return BrokerSource(url or "", name)
