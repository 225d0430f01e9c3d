"""Reads the events of a whole journal, in the order in which drivers processed them."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator

from mqtune.core.codec import REPORTS_PREFIX
from mqtune.core.errors import MessageVersionError
from mqtune.core.events import START, Cursor, Event, ExperimentCreated, Reports, Told, decode_event
from mqtune.core.trial import Report, TrialId


def readable_events(entries: Iterable[tuple[str, bytes]]) -> Iterator[Event]:
    """Yield the readable events of entries. Reports are left out."""
    for id_, data in entries:
        if not data.startswith(REPORTS_PREFIX):
            with contextlib.suppress(MessageVersionError):
                if (event := decode_event(data, id_)) is not None:
                    yield event


def driver_events(entries: Iterable[tuple[str, bytes]]) -> dict[Cursor, list[Event]]:
    """Return the drivers' events by their cursor, in the order of the journal."""
    by_cursor: dict[Cursor, list[Event]] = defaultdict(list)
    for id_, data in entries:
        if data.startswith(REPORTS_PREFIX):
            continue
        event = decode_event(data, id_)
        cursor = getattr(event, "cursor", None)
        if event is not None and cursor is not None:
            by_cursor[cursor].append(event)
    return dict(by_cursor)


def events_in_order(entries: list[tuple[str, bytes]]) -> Iterator[Event | Report]:
    """Yield a journal's events and single reports in the order of their processing.

    If some reports of a batch can't be decoded, a ``Reports`` event comes first, whose ``unreadable`` counts them.
    """
    pending = driver_events(entries)
    yield from placed_events(entries, pending)
    # These point at entries that are missing from a damaged journal.
    for events in pending.values():
        yield from with_told(events)


def with_told(events: Iterable[Event]) -> Iterator[Event | Report]:
    """Yield a driver's events. Each ``Told`` event is followed by its report."""
    for event in events:
        yield event
        if isinstance(event, Told):
            yield event.report


def reports_of(entries: Iterable[tuple[str, bytes]], trial: TrialId) -> Iterator[Report]:
    """Yield the reports of one trial, in order. Entries that don't name it are not decoded."""
    name = trial.encode()
    for id_, data in entries:
        if name in data:
            event = decode_event(data, id_)
            reports = event if isinstance(event, Reports) else [event.report] if isinstance(event, Told) else []
            yield from (report for report in reports if report.trial == trial)


def placed_events(entries: Iterable[tuple[str, bytes]], pending: dict[Cursor, list[Event]]) -> Iterator[Event | Report]:
    """Yield each worker or client event, followed by the driver events with a cursor to it.

    Yielded driver events are removed from *pending*.
    """
    for id_, data in entries:
        event = decode_event(data, id_)
        if event is None or getattr(event, "cursor", None) is not None:
            continue
        if isinstance(event, Reports):
            if event.unreadable:
                yield Reports([], event.unreadable)
            for number, report in enumerate(event, 1):
                yield report
                yield from with_told(pending.pop(Cursor(id_, number), ()))
            continue
        yield event
        yield from with_told(pending.pop(START if isinstance(event, ExperimentCreated) else Cursor(id_), ()))
