"""The driver's hand on its journal, which puts back what the server loses before it goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from mqtune.core.clock import Clock
from mqtune.core.errors import CheckpointGone, JournalGone
from mqtune.core.events import START, Cursor, Event
from mqtune.core.trial import CheckpointId, Intent, TrialId, is_in_memory
from mqtune.journal.base import Assignment, Cleared, DriverSide, Entry, Held, Intended, Journal, Reconciled
from mqtune.journal.file import JournalFile
from mqtune.journal.reader import JournalReader
from mqtune.journal.recovery import PutBack, bring_back_end, entries_behind, put_back

__all__ = ["RestoringJournal"]

T = TypeVar("T")


class RestoringJournal(DriverSide):
    """A driver's journal on a server that may lose what it had: all of it, or what was written last.

    What the driver has read is in the local copy, and what it has written since is kept here. A write that finds the journal
    gone has it put back, and is then done. The driver hears of attempts that did not survive that as of any others that are
    lost: by the entries that follow. One thread uses it.

    Args:
        journal: the experiment's.
        reader: with which the driver reads it.
        copy: the local copy, which has what was read.
        owner: the driver's token.
        clock: tells the time of what is journaled.
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
        #: What the driver has written and not read since.
        self._unread: deque[bytes] = deque()
        self._looked_after = journal.outages

    def catch_up(self) -> dict[Cursor, list[Event]]:
        """Have the reader read all that there is, and return the driver's events in it, as the reader does.

        What the server has lost since the copy was written is put back before.
        """
        self._definition = self._journal.definition()
        try:
            return self._reader.catch_up()
        except JournalGone:
            bring_back_end(self._journal, self._copy, owner=self._owner, at=self._clock.time())
            return self._reader.catch_up()

    def read_back(self, entries: Sequence[Entry]) -> None:
        """Take note that these were read: what the driver had written of them, and whatever it wrote before, is in the copy."""
        for entry in entries:
            if entry.data in self._unread:
                while self._unread.popleft() != entry.data:
                    pass

    def look(self) -> bool:
        """Put back what was lost, if the server was away since the last look; True when something was.

        What was read since then is void in that case: it is not what follows.

        Raises:
            JournalGone: it can't be put back.
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
        """Whether every event is there that the driver has written and not read since."""
        return not self._unread or set(self._unread) <= set(self._behind())

    def _behind(self) -> list[bytes]:
        """Return what the server has behind the entry that was read last."""
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
        """Return these events with what is missing of the driver's own, each before what it wrote later."""
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
        """Take note of what the driver goes by from now on.

        A server that takes it for nothing new has it already; or was set back, does not know what it is about, and gets it
        when that is noticed.
        """
        self._unread.extend(events)

    def _surely(self, write: Callable[[], T]) -> T:
        """Write; if the journal is gone, put it back first."""
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

    def unlock(self, owner: str) -> None:
        self._journal.unlock(owner)

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

    def close_trial(self, trial: TrialId, attempt: int, event: bytes) -> bool:
        is_new = self._surely(lambda: self._journal.close_trial(trial, attempt, event))
        self._wrote(event)
        return is_new

    def request_save(self, trial: TrialId, attempt: int) -> bool:
        return self._surely(lambda: self._journal.request_save(trial, attempt))

    def clear(self, cleared: Sequence[Cleared]) -> None:
        self._surely(lambda: self._journal.clear(cleared))

    def drop_checkpoints(self, checkpoints: Sequence[CheckpointId], event: bytes) -> None:
        self._surely(lambda: self._journal.drop_checkpoints(checkpoints, event))
        self._wrote(event)

    def reap(self, trial: TrialId, attempt: int, event: bytes) -> bool:
        is_ended = self._surely(lambda: self._journal.reap(trial, attempt, event))
        if is_ended:
            self._wrote(event)
        return is_ended

    def reconcile(self, attempts: Sequence[tuple[TrialId, int]], lease_s: float) -> Reconciled:
        return self._surely(lambda: self._journal.reconcile(attempts, lease_s))

    def void(self, trial: TrialId, attempt: int, timestamp: float, event: bytes) -> bool:
        is_ended = self._surely(lambda: self._journal.void(trial, attempt, timestamp, event))
        if is_ended:
            self._wrote(event)
        return is_ended

    def forfeit_leases(self) -> None:
        self._surely(self._journal.forfeit_leases)

    # What it asks.

    @property
    def outages(self) -> int:
        return self._journal.outages

    def definition(self) -> bytes | None:
        return self._journal.definition()

    def checkpoint(self, checkpoint: CheckpointId) -> bytes | None:
        return self._journal.checkpoint(checkpoint)

    def expired(self) -> list[TrialId]:
        return self._journal.expired()

    def unclaimed(self, older_than_s: float) -> list[TrialId]:
        return self._journal.unclaimed(older_than_s)

    def held(self) -> list[Held]:
        return self._journal.held()
