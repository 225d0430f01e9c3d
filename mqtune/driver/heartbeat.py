"""The driver's heartbeat: it keeps the lock, and exchanges states with the server."""

from __future__ import annotations

from collections.abc import Callable

from mqtune.core.timing import Timing
from mqtune.journal.base import DriverState, OnLoss, ServerState
from mqtune.journal.restore import Restorer
from mqtune.journal.room import JournalRoom


class Heartbeat:
    """Keeps the driver's lock, and exchanges states with the server.

    Args:
        restorer: the driver's, with the journal. What the server has lost is restored with the next heartbeat.
        holder: the token by which the driver has the lock.
        on_loss: the policy of workers without a driver.
        waits: says for people why nothing starts now.
    """

    def __init__(
        self,
        restorer: Restorer,
        holder: str,
        on_loss: OnLoss,
        waits: Callable[[], str],
        timing: Timing = Timing(),
    ) -> None:
        self._restorer = restorer
        self._holder = holder
        self._on_loss = on_loss
        self._waits = waits
        self._timing = timing
        #: How many bytes the journal may have; 0 for any number.
        self._most_bytes = 0
        #: The caps that let it have no more, in words; empty for none.
        self._capped = ""
        #: The limit that the server knows; None before the first heartbeat.
        self._told_bytes: int | None = None
        #: The state of the server, as of the last heartbeat.
        self.server = ServerState()

    def limit(self, most_bytes: int, capped: str = "") -> None:
        """Limit the journal from the next heartbeat on.

        Args:
            most_bytes: how many bytes it may have until trials are told to wait; 0 for any number.
            capped: the caps that let it have no more, in words; empty for none.
        """
        self._most_bytes, self._capped = most_bytes, capped

    @property
    def is_due(self) -> bool:
        """Whether the server does not know the journal's limit yet: trials may wait for it."""
        return self._most_bytes != self._told_bytes

    @property
    def room(self) -> JournalRoom:
        """The room that is left in the journal, as of the last heartbeat."""
        return JournalRoom(self.server.journal_bytes, self._most_bytes, self._capped)

    def beat(self) -> None:
        """Keep the lock, and exchange states with the server."""
        state = DriverState(self._on_loss, self._waits(), self._restorer.read_to, self._most_bytes)
        self.server = self._restorer.heartbeat(self._holder, self._timing.lock_s, state)
        self._told_bytes = state.most_bytes
