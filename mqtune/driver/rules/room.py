"""Warns if a server's memory, or a journal's limit of bytes, is nearly used up."""

from __future__ import annotations

import logging
from typing import Final

from mqtune.journal.server.room import MAKE_ROOM, NEARLY_FULL, JournalRoom, Room

logger = logging.getLogger(__name__)

#: Hysteresis of a server. Clients that connect and disconnect change less.
SLACK: Final = 0.05


class RoomWatch:
    """Warns once if a server or journal is nearly full, once if it is full, and once after.

    Args:
        server: name of the server or journal.
        way_out: hint for the user.
        slack: how far the used part must fall below the part at the warning until the warning is over.
    """

    def __init__(self, server: str = "Redis", way_out: str = MAKE_ROOM, *, slack: float = SLACK) -> None:
        self._server = server
        self._way_out = way_out
        self._slack = slack
        #: Why no trial starts, for users. Empty unless the server is full.
        self.why = ""
        #: Used part at the last warning; 0 without a warning.
        self._warned_at = 0.0

    def look(self, room: Room | JournalRoom | None) -> None:
        """Warn if necessary. None means that the use is unknown."""
        if room is None:
            return
        reached = 1.0 if room.is_full else NEARLY_FULL if room.shortage else 0.0
        if reached < self._warned_at and room.part > self._warned_at - self._slack:
            return
        if reached > self._warned_at:
            logger.warning("%s; %s", room.shortage, self._way_out, extra={"action": "no_room_left"})
        elif reached < self._warned_at:
            logger.warning("%s has room again: %s", self._server, room)
        self._warned_at, self.why = reached, room.shortage if room.is_full else ""
