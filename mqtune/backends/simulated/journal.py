"""The driver's hand on the journal of a simulation: to wait for news is to let virtual time pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mqtune.core.codec import decode_value
from mqtune.core.trial import Intent, TrialId
from mqtune.journal.base import Assignment, Cleared, Entry, Intended, Reconciled
from mqtune.journal.memory import MemoryJournal, MemoryServer

if TYPE_CHECKING:
    from mqtune.backends.simulated.fleet import SimulatedFleet

__all__ = ["SimulatedJournal", "WorkersJournal"]


class WorkersJournal(MemoryJournal):
    """The workers' hand on the journal, which notes how far they have written."""

    def __init__(self, server: MemoryServer, experiment: str) -> None:
        super().__init__(server, experiment)
        self.written_to = 0

    def _append(self, event: bytes) -> None:
        super()._append(event)
        self.written_to = self._state.forgotten + len(self._state.entries)


class SimulatedJournal(MemoryJournal):
    """A journal in memory that tells the simulated workers what the driver wants, and has them work while it waits.

    Work for one call does not grow with the number of trials. Locks never run out: time passes only while the driver
    waits.
    """

    def __init__(self, fleet: SimulatedFleet) -> None:
        super().__init__(fleet.server, fleet.experiment)
        self._fleet = fleet

    def read(self, after: str, *, count: int, block_s: float = 0) -> list[Entry]:
        """Return what there is; if workers have written none of it, let up to *block_s* virtual seconds pass, until they do.

        The workers act in the order of time, and no further than the first instant that leaves an entry, so that the
        driver decides on it before anything else happens. For what the driver itself has written, time does not stop.
        """
        if block_s > 0 and self._fleet.written_to <= int(after.partition("-")[0]):
            self._fleet.advance(block_s)
            self.fleet_changed = self.fleet_changed or self._fleet.changed
            self._fleet.changed = False
        return super().read(after, count=count)

    def record(self, event: bytes, *, definition: bytes | None = None) -> None:
        super().record(event, definition=definition)
        if definition is not None:
            self._fleet.is_lockstep = decode_value(definition).get("sync") == "lockstep"

    def stage(self, trial: TrialId, attempt: int, assignment: Assignment, event: bytes) -> bool:
        """Make an attempt claimable; workers know at once, as there is no queue on which it could be lost."""
        is_staged = super().stage(trial, attempt, assignment, event)
        if is_staged:
            self._fleet.publish(trial, attempt)
        return is_staged

    def intend(self, trial: TrialId, attempt: int, intent: Intent, event: bytes, ended: bytes) -> Intended:
        answer = super().intend(trial, attempt, intent, event, ended)
        if answer == "running":
            self._fleet.tell(trial, attempt, intent)
        return answer

    def request_save(self, trial: TrialId, attempt: int) -> bool:
        runs = super().request_save(trial, attempt)
        if runs:
            self._fleet.ask_to_save(trial, attempt)
        return runs

    def clear(self, cleared: Sequence[Cleared]) -> None:
        super().clear(cleared)
        for trial, attempt, sequence in cleared:
            self._fleet.let_go_on(trial, attempt, sequence)

    def expired(self) -> list[TrialId]:
        return self._fleet.expired()

    def reap(self, trial: TrialId, attempt: int, event: bytes) -> bool:
        is_reaped = super().reap(trial, attempt, event)
        if is_reaped:
            self._fleet.reaped(trial)
        return is_reaped

    def reconcile(self, attempts: Sequence[tuple[TrialId, int]], lease_s: float) -> Reconciled:
        """Say that all is as the driver believes; nothing of a simulation gets lost."""
        return Reconciled("", [True] * len(attempts))

    def forfeit_leases(self) -> None:
        super().forfeit_leases()
        self._fleet.lose_all()

    def unclaimed(self, older_than_s: float) -> list[TrialId]:
        """Return nothing: no attempt is ever lost on its way to a simulated worker."""
        return []
