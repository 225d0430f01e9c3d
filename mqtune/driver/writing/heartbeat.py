"""The driver's heartbeat: it renews the lock, and sends and receives state."""

from __future__ import annotations

import math
from collections.abc import Callable

from mqtune.core.timing import Timing
from mqtune.driver.writing.ledger import Ledger
from mqtune.journal.base import DriverState, OnLoss, ServerState
from mqtune.journal.server.room import JournalRoom


class Heartbeat:
    """Renews the driver's lock.

    The same command writes the driver's state to the server: its policy for workers, why no trial starts, and the
    journal's size limit. It returns the server's state, such as the journal's size.

    Args:
        ledger: the driver's ledger, which checks after each heartbeat whether the server has lost entries.
        holder: the token with which the driver has taken the lock.
        on_loss: the policy for workers while no driver runs.
        waits: returns why no trial starts now, in words.
        journal_mb: the user's limit for the journal's size, in millions of bytes.
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
        #: The user's limit for the journal's size, in millions of bytes.
        self.journal_mb = float(journal_mb)
        #: The limit set by ``cap``, in millions of bytes.
        self._cap_mb = math.inf
        #: The reason for the cap, in words.
        self._cap_reason = ""
        #: The limit that the server has, in bytes. None before the first heartbeat.
        self._sent_bytes: int | None = None
        #: The state of the server, as of the last heartbeat.
        self.server = ServerState()

    def cap(self, megabytes: float, reason: str) -> None:
        """Limit the journal's size from the next heartbeat on, even below the user's limit.

        When the journal reaches the limit, ``report()`` waits in trials, and no other trial begins.

        Args:
            megabytes: the limit in millions of bytes. Infinite removes it.
            reason: the reason for the cap, in words.
        """
        self._cap_mb, self._cap_reason = megabytes, reason

    @property
    def most_bytes(self) -> int:
        """The journal's size limit in bytes: the lower one of the user's limit and the cap."""
        return math.ceil(min(self.journal_mb, self._cap_mb) * 10**6)

    @property
    def is_due(self) -> bool:
        """Whether the journal's limit has changed since the last heartbeat: trials may wait for it."""
        return self.most_bytes != self._sent_bytes

    @property
    def room(self) -> JournalRoom:
        """The journal's size and its limit, as of the last heartbeat."""
        cap_reason = self._cap_reason if self._cap_mb < self.journal_mb else ""
        return JournalRoom(self.server.journal_bytes, self.most_bytes, cap_reason)

    def beat(self) -> None:
        """Renew the driver's lock, send the driver's state, and receive the server's state."""
        state = DriverState(self._on_loss, self._waits(), self._ledger.read_to, self.most_bytes)
        journal, hold_s = self._ledger.journal, self._timing.lock_s
        self.server = self._ledger.surely(lambda: journal.heartbeat(self._holder, hold_s, state))
        # Somebody may have restored an old backup of the server, without an outage that the driver would notice.
        self._ledger.check_read()
        self._sent_bytes = state.most_bytes
