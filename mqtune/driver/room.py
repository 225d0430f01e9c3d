"""Warns of a server whose memory runs out."""

from __future__ import annotations

import logging
from typing import Final

from mqtune.journal.room import MAKE_ROOM, NEARLY_FULL, Room

logger = logging.getLogger(__name__)

#: By how much the part in use must fall below that at which a warning came, until the warning is over: clients that come and go make
#: for less.
_SLACK: Final = 0.05


class RoomWatch:
    """Warns once when a server's memory is nearly full, once when it is full, and says when there is room again."""

    def __init__(self) -> None:
        #: Why nothing begins, for people; empty unless the server is full.
        self.why = ""
        #: From which part in use on it has warned; 0 while it has not.
        self._warned_at = 0.0

    def look(self, room: Room | None) -> None:
        """Warn if it is time; with None nothing is known."""
        if room is None:
            return
        reached = 1.0 if room.is_full else NEARLY_FULL if room.shortage else 0.0
        if reached < self._warned_at and room.part > self._warned_at - _SLACK:
            return
        if reached > self._warned_at:
            logger.warning("%s; %s", room.shortage, MAKE_ROOM, extra={"action": "broker_has_no_room"})
        elif reached < self._warned_at:
            logger.warning("Redis has room again: %s", room)
        self._warned_at, self.why = reached, room.shortage if room.is_full else ""
