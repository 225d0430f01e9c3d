"""Queue of journal entries that the driver has read but not processed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

from mqtune.core.events import Cursor, Event, ExperimentCreated, Reports, Told, decode_event, is_of_driver
from mqtune.core.experiment import Experiment
from mqtune.core.trial import Report, Trial
from mqtune.driver.path.plain import PlainReports
from mqtune.driver.rules.deciders import GO_ON, Deciders, Verdict
from mqtune.journal.base import Entry

#: A place in the journal, as in ``Cursor``: an entry's id, and the number of its processed reports.
_Place = tuple[str, int]


class Intake:
    """Delivers events and reports to the driver one at a time, and tracks the driver's cursor.

    The driver's own events are left out, because it has applied them. In a replay, each event of an earlier driver
    comes directly after its cursor.

    A report *counts* unless a decision on its attempt came before it.

    Args:
        experiment: the fold, which gets each report.
        deciders: judge each report that counts.
        look: called at least every 64 entries, for example to renew the lock.
        act: called with a report and its verdict if they have a consequence, see ``PlainReports``. Also called for
            reports of trials that are evaluated outside.
    """

    def __init__(
        self,
        experiment: Experiment,
        deciders: Deciders,
        *,
        look: Callable[[], object],
        act: Callable[[Report, Verdict | None], object],
    ) -> None:
        #: Called with each report that counts, after the deciders.
        self.listeners: list[Callable[[Trial, Report], object]] = []
        #: Whether all given entries are processed.
        self.is_done = True
        #: Whether the entries are from before this driver, so that an earlier driver may have processed them.
        self.is_replaying = False
        self._experiment = experiment
        self._deciders = deciders
        self._act = act
        self._plain = PlainReports(experiment, deciders, self.listeners, look=look, act=act)
        self._entries: Iterator[tuple[int, Entry]] = iter(())
        #: Decoded events and reports, each with its place. An item with place None does not move the cursor.
        self._queue: deque[tuple[_Place | None, Event | Report]] = deque()
        #: The place before the last event, for errors.
        self._before = self._plain.place
        #: Remaining events of earlier drivers whose cursor is the current place.
        self._here: deque[Event] = deque()
        #: Events of earlier drivers with later cursors, by cursor.
        self._past: dict[_Place, list[Event]] = {}
        #: Ids of entries that earlier drivers' cursors point at.
        self._awaited: set[str] = set()
        self._leaves_new = False

    @property
    def cursor(self) -> Cursor:
        """The driver's position in the journal."""
        return Cursor(*self._plain.place)

    @property
    def has_past(self) -> bool:
        """Whether events of an earlier driver remain, at this place or later."""
        return bool(self._here or self._past)

    def put(self, entries: Iterable[Entry]) -> None:
        """Give the intake its next entries. All earlier entries must be processed."""
        self._entries, self.is_done = enumerate(entries), False

    def replay(self, entries: Iterable[Entry], past: Mapping[Cursor, list[Event]], *, leaves_new: bool) -> None:
        """Give the intake the whole journal, to replay it until ``go_live``.

        Args:
            entries: the journal's entries.
            past: events of earlier drivers, by their cursors.
            leaves_new: whether ``next`` returns None at the first report after the last event in *past*, so that the
                later reports remain for after ``go_live``.
        """
        self.put(entries)
        self._past = {(entry, count): events for (entry, count), events in past.items()}
        self._awaited = {cursor.entry for cursor in past}
        self.is_replaying, self._leaves_new = True, leaves_new

    def go_live(self) -> None:
        """Treat all further entries as new."""
        self.is_replaying = self._leaves_new = False

    def next(self, *, may_fold: bool) -> Event | Report | None:
        """Move the cursor to the next event or report, and return that. Return None at the end.

        If *may_fold*, ``PlainReports`` folds reports up to the next other event, and this returns none of them. If some
        reports of an entry can't be decoded, a ``Reports`` event comes first, whose ``unreadable`` counts them.
        """
        if self._here:
            return self._here.popleft()
        if not self._queue and not self._fill_queue(may_fold=may_fold):
            return self._end()
        place, item = self._queue[0]
        if self._leaves_reports and isinstance(item, Report):
            return None
        self._queue.popleft()
        self._before = self._plain.place
        if place is not None:
            self._plain.place = place
        if self._past:
            self._here.extend(self._past.pop(self._plain.place, ()))
        return item

    def judge(self, report: Report) -> Verdict | None:
        """Fold the report that ``next`` has returned, and return its verdict.

        Return None if it doesn't count. After an error the cursor is before the report, so the next driver begins with
        it.
        """
        try:
            return self._fold_and_decide(report)
        except Exception:
            self._plain.place = self._before
            raise

    def _fold_and_decide(self, report: Report) -> Verdict | None:
        if (trial := self._experiment.apply_report(report)) is None:
            return None
        verdict = self._deciders.on_report(trial, report)
        for listener in self.listeners:
            listener(trial, report)
        return verdict

    def apply_told(self, told: Told) -> None:
        """Fold an outside trial's report. Act on the verdict, unless the report is the last one."""
        if self._deciders.is_broken:
            self._experiment.apply_report(told.report)
            return
        verdict = self._fold_and_decide(told.report)
        if verdict is not None and verdict is not GO_ON and not told.ends:
            self._act(told.report, verdict)

    def peek(self, count: int) -> list[Report]:
        """Return up to *count* of the next reports that count, and that no other event precedes."""
        reports: list[Report] = []
        place = 0
        while len(reports) < count and (place < len(self._queue) or self._fill_queue()):
            _, next_ = self._queue[place]
            if isinstance(next_, Report):
                if self._experiment.would_count(next_):
                    reports.append(next_)
            elif not isinstance(next_, Reports):
                break
            place += 1
        return reports

    def drain(self) -> Iterator[Event | Report]:
        """Yield the remaining events and reports. The cursor stays, so the next driver gets them."""
        while self._queue or self._fill_queue():
            yield self._queue.popleft()[1]
        self.is_done = True

    @property
    def _leaves_reports(self) -> bool:
        """Whether the replay is past the earlier drivers' last event, and must leave later reports."""
        return self._leaves_new and not self._past

    def _fill_queue(self, *, may_fold: bool = False) -> bool:
        """Decode entries until the queue has a new item. Return False at the end of the entries."""
        queue, known = self._queue, len(self._queue)
        may_fold = may_fold and not self._leaves_reports
        while len(queue) == known and (entry := self._plain.take(self._entries, self._awaited, may_fold=may_fold)):
            event = decode_event(entry.data, entry.id)
            if isinstance(event, Reports):
                if event.unreadable:
                    queue.append((None, Reports([], event.unreadable)))
                queue.extend(((entry.id, number), report) for number, report in enumerate(event, 1))
            elif event is not None and not is_of_driver(event):
                queue.append((None if isinstance(event, ExperimentCreated) else (entry.id, 0), event))
        return len(queue) > known

    def _end(self) -> Event | None:
        self._entries, self.is_done = iter(()), True
        # Their cursors are in missing entries, for example of a truncated journal.
        for events in self._past.values():
            self._here.extend(events)
        self._past = {}
        return self._here.popleft() if self._here else None
