"""Warns of a server whose memory runs out, and of a journal that has nearly all bytes that it may have."""

from __future__ import annotations

import logging
from typing import Final

from mqtune.journal.room import MAKE_ROOM, NEARLY_FULL, JournalRoom, Room

logger = logging.getLogger(__name__)

#: The slack of a server: clients that come and go make for less.
SLACK: Final = 0.05


class RoomWatch:
    """Warns once when a server's memory is nearly full, once when it is full, and says when there is room again.

    It does the same for a journal.

    Args:
        what: whose room it is.
        way_out: what can be done.
        slack: by how much the part in use must fall below that at which a warning came, until the warning is over.
    """

    def __init__(self, what: str = "Redis", way_out: str = MAKE_ROOM, *, slack: float = SLACK) -> None:
        self._what = what
        self._way_out = way_out
        self._slack = slack
        #: Why nothing begins, for people; empty unless the server is full.
        self.why = ""
        #: From which part in use on it has warned; 0 while it has not.
        self._warned_at = 0.0

    def look(self, room: Room | JournalRoom | None) -> None:
        """Warn if it is time; with None nothing is known."""
        if room is None:
            return
        reached = 1.0 if room.is_full else NEARLY_FULL if room.shortage else 0.0
        if reached < self._warned_at and room.part > self._warned_at - self._slack:
            return
        if reached > self._warned_at:
            logger.warning("%s; %s", room.shortage, self._way_out, extra={"action": "no_room_left"})
        elif reached < self._warned_at:
            logger.warning("%s has room again: %s", self._what, room)
        self._warned_at, self.why = reached, room.shortage if room.is_full else ""
