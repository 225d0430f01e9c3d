"""A look at the reports that the loop is about to hand out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mqtune.core.events import START, Cursor, Reports, decode_event
from mqtune.core.experiment import Experiment
from mqtune.core.trial import Report
from mqtune.journal.base import Entry

#: A place in the journal, and the report there; None for an entry of another kind.
_Item = tuple[Cursor, Report | None]


class LookAhead:
    """Reads the reports behind the one in hand, up to the first entry of another kind, and folds none of them."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._place = START
        #: What is behind that place: as far as it was looked at, and the rest.
        self._seen: list[_Item] = []
        self._rest: Iterator[_Item] = iter(())

    def come_to(self, entries: Iterable[Entry]) -> None:
        """Look at these entries from now on, which the loop takes in."""
        self._place, self._seen, self._rest = START, [], _items(entries)

    def behind(self, place: Cursor, count: int) -> list[Report]:
        """Return up to *count* reports behind a place, which is never before that of an earlier call, without late ones."""
        self._pass(place)
        found: list[Report] = []
        for report in self._reports():
            if report is None or len(found) == count:
                break
            if self._experiment.would_count(report):
                found.append(report)
        return found

    def _pass(self, place: Cursor) -> None:
        """Forget all up to a place."""
        if place == self._place:
            return
        self._place = place
        for passed, (seen, _) in enumerate(self._seen, 1):
            if seen == place:
                del self._seen[:passed]
                return
        self._seen.clear()
        any(each == place for each, _ in self._rest)

    def _reports(self) -> Iterator[Report | None]:
        yield from (report for _, report in self._seen)
        for item in self._rest:
            self._seen.append(item)
            yield item[1]


def _items(entries: Iterable[Entry]) -> Iterator[_Item]:
    for entry in entries:
        event = decode_event(entry.data, entry.id)
        if isinstance(event, Reports):
            yield from ((Cursor(entry.id, number), report) for number, report in enumerate(event, 1))
        else:
            yield Cursor(entry.id, 0), None
