"""Reading a journal again: each of the driver's events goes right behind what the driver had processed when it wrote it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from mqtune.core.codec import REPORTS_PREFIX
from mqtune.core.events import START, Cursor, Event, ExperimentCreated, Reports, decode_event
from mqtune.core.trial import Report

__all__ = ["driver_events", "events_in_order"]


def driver_events(entries: Iterable[tuple[str, bytes]]) -> dict[Cursor, list[Event]]:
    """Return the driver's events by their cursor, in the order in which they were written."""
    found: dict[Cursor, list[Event]] = defaultdict(list)
    for id_, data in entries:
        if data.startswith(REPORTS_PREFIX):
            # Nearly all of a long journal, and never the driver's.
            continue
        event = decode_event(data, id_)
        cursor = getattr(event, "cursor", None)
        if event is not None and cursor is not None:
            found[cursor].append(event)
    return dict(found)


def events_in_order(entries: list[tuple[str, bytes]]) -> Iterator[Event | Report]:
    """Yield a journal's events and single reports in the order in which the driver processed them.

    Where some of a batch can't be read, a batch without reports comes before the others, and says how many they are.
    """
    pending = driver_events(entries)
    for id_, data in entries:
        event = decode_event(data, id_)
        if event is None or getattr(event, "cursor", None) is not None:
            continue
        if isinstance(event, Reports):
            if event.unreadable:
                yield Reports([], event.unreadable)
            for number, report in enumerate(event, 1):
                yield report
                yield from pending.pop(Cursor(id_, number), ())
            continue
        yield event
        yield from pending.pop(START if isinstance(event, ExperimentCreated) else Cursor(id_), ())
    # What a driver wrote after entries that are not here, as in a journal that was cut.
    for events in pending.values():
        yield from events
