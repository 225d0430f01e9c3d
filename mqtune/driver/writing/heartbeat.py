"""The driver's heartbeat: it keeps the lock, and exchanges states with the server."""

from __future__ import annotations

import math
from collections.abc import Callable

from mqtune.core.timing import Timing
from mqtune.driver.writing.ledger import Ledger
from mqtune.journal.base import DriverState, OnLoss, ServerState
from mqtune.journal.server.room import JournalRoom


class Heartbeat:
    """Keeps the driver's lock, and exchanges states between driver and server.

    Args:
        ledger: the driver's, with the journal. Each heartbeat notices what the server has lost.
        holder: the token by which the driver has the lock.
        on_loss: the policy of workers without a driver.
        waits: returns the reason why nothing starts now, for people.
        journal_mb: how large the journal may be, in millions of bytes; see ``cap``.
    """

    def __init__(
        self,
        ledger: Ledger,
        holder: str,
        on_loss: OnLoss,
        waits: Callable[[], str],
        journal_mb: float,
        timing: Timing = Timing(),
    ) -> None:
        self._ledger = ledger
        self._holder = holder
        self._on_loss = on_loss
        self._waits = waits
        self._timing = timing
        #: The limit that the user gives the journal, and the cap on that, in millions of bytes.
        self.journal_mb = float(journal_mb)
        self._cap_mb = math.inf
        #: The reason for the cap, in words.
        self._capped = ""
        #: The limit that the server knows; None before the first heartbeat.
        self._told_bytes: int | None = None
        #: The state of the server, as of the last heartbeat.
        self.server = ServerState()

    def cap(self, megabytes: float, reason: str) -> None:
        """Limit the journal from the next heartbeat on, however large its user wants it.

        Once it has as many bytes, trials wait with their reports, and no other trial begins.

        Args:
            megabytes: how large it may be, in millions of bytes; infinite for any size.
            reason: the reason for the cap, for people.
        """
        self._cap_mb, self._capped = megabytes, reason

    @property
    def most_bytes(self) -> int:
        """The number of bytes that the journal may have; 0 for any number."""
        return math.ceil(min(self.journal_mb, self._cap_mb) * 10**6)

    @property
    def is_due(self) -> bool:
        """Whether the server does not know the journal's limit yet: trials may wait for it."""
        return self.most_bytes != self._told_bytes

    @property
    def room(self) -> JournalRoom:
        """The room that is left in the journal, as of the last heartbeat."""
        capped = self._capped if self._cap_mb < self.journal_mb else ""
        return JournalRoom(self.server.journal_bytes, self.most_bytes, capped)

    def beat(self) -> None:
        """Renew the driver's lock. Write its state to the server, and read the server's state."""
        state = DriverState(self._on_loss, self._waits(), self._ledger.read_to, self.most_bytes)
        journal, hold_s = self._ledger.journal, self._timing.lock_s
        self.server = self._ledger.surely(lambda: journal.heartbeat(self._holder, hold_s, state))
        # A server may be set back, by hand, without having been away.
        self._ledger.check_read()
        self._told_bytes = state.most_bytes
