"""What earlier drivers wrote, for a replay: each event at the place in the journal that its driver had come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mqtune.core.events import START, Cursor, DecisionTaken, Event
from mqtune.core.trial import TrialId
from mqtune.journal.base import entry_order


class Past:
    """The events of earlier drivers that a replay has not come to.

    Args:
        events: those events, by their cursors.
        is_open: whether who drives the experiment is to see again what came after the last of them.
    """

    def __init__(self, events: Mapping[Cursor, list[Event]], *, is_open: bool) -> None:
        #: The entries in which a driver stood when it wrote any of them.
        self.entries = {cursor.entry for cursor in events}
        self.is_open = is_open
        self._events = dict(events)
        self._acted_to = max(map(_place, events), default=_place(START))

    def concerns(self, cursor: Cursor, trial: TrialId) -> bool:
        """Whether any that was written there is a decision on this trial."""
        written = self._events.get(cursor, ())
        return any(isinstance(event, DecisionTaken) and event.trial == trial for event in written)

    def take(self, cursor: Cursor) -> Sequence[Event]:
        """Return, once, those that were written there."""
        return self._events.pop(cursor, ())

    def take_rest(self) -> list[Event]:
        """Return, once, all others: the replay is over."""
        rest = [event for events in self._events.values() for event in events]
        self._events, self.entries = {}, set()
        return rest

    def came_past(self, cursor: Cursor) -> bool:
        """Whether a driver has acted here, or later."""
        return _place(cursor) <= self._acted_to

    def known_of(self, entry: str) -> int | None:
        """Return how many reports of an entry a replay takes in; None for all."""
        if not self.is_open:
            return None
        *acted, count = self._acted_to
        place = [*entry_order(entry)]
        return None if place < acted else count if place == acted else 0


def _place(cursor: Cursor) -> tuple[int, int, int]:
    """Return what sorts cursors by where they stand in the journal."""
    return *entry_order(cursor.entry), cursor.reports
