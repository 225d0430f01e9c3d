"""Warns if a server's memory, or a journal's allowed size, is nearly used up."""

from __future__ import annotations

import logging
from typing import Final

from mqtune.journal.server.room import MAKE_ROOM, NEARLY_FULL, JournalRoom, Room

logger = logging.getLogger(__name__)

#: The used part of a server's memory must fall by this before a warning ends. Clients that connect and disconnect
#: change the used part by less.
SLACK: Final = 0.05


class RoomWatch:
    """Logs each change of a server or journal: when it is nearly full, full, or has space again.

    Args:
        server: name of the server or journal in messages.
        way_out: hint for the user.
        slack: the used part must fall by this, from the part at which a warning was logged, before the warning ends.
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
        """Compare the current use with the last warning, and log a change.

        None means that the use is unknown.
        """
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
