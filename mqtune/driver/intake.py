"""Queue of journal entries that the driver has read but not processed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

from mqtune.core.events import Cursor, Event, ExperimentCreated, Reports, Told, decode_event, is_of_driver
from mqtune.core.experiment import Experiment
from mqtune.core.trial import Report, Trial
from mqtune.driver.deciders import GO_ON, Deciders, Verdict
from mqtune.driver.plain import PlainReports
from mqtune.journal.base import Entry

#: A place in the journal, as cursors have it.
_Place = tuple[str, int]


class Intake:
    """Gives its driver one event, or report, after the other, and knows where that stands.

    The driver's own events are left out: it has applied them. In a replay each event of an earlier driver comes right
    behind the place at which that wrote it.

    Args:
        experiment: folds each report.
        deciders: are asked about each that counts.
        look: called now and then, see ``PlainReports``.
        act: called for what plain reports bring, see there, and for verdicts on reports that were told.
    """

    def __init__(
        self,
        experiment: Experiment,
        deciders: Deciders,
        *,
        look: Callable[[], object],
        act: Callable[[Report, Verdict | None], object],
    ) -> None:
        #: Those who hear of each report that counts, after the deciders.
        self.listeners: list[Callable[[Trial, Report], object]] = []
        #: Whether all that was put in is taken in.
        self.is_done = True
        #: Whether it gives what an earlier driver may have seen.
        self.is_replaying = False
        self._experiment = experiment
        self._deciders = deciders
        self._act = act
        self._plain = PlainReports(experiment, deciders, self.listeners, look=look, act=act)
        self._entries: Iterator[tuple[int, Entry]] = iter(())
        #: What was decoded and comes next, each with its place; without one it leaves the driver where it stands.
        self._queue: deque[tuple[_Place | None, Event | Report]] = deque()
        #: Where the driver stood before.
        self._before = self._plain.place
        #: What earlier drivers wrote at this place, as far as it is to come, and behind it.
        self._here: deque[Event] = deque()
        self._past: dict[_Place, list[Event]] = {}
        #: The entries in which earlier drivers stood.
        self._awaited: set[str] = set()
        self._keeps_new = False

    @property
    def cursor(self) -> Cursor:
        """Where the driver stands in the journal."""
        return Cursor(*self._plain.place)

    @property
    def has_past(self) -> bool:
        """Whether an earlier driver has written anything here, or behind this place."""
        return bool(self._here or self._past)

    def put(self, entries: Iterable[Entry]) -> None:
        """Have these entries come next; all that was put in before is taken in."""
        self._entries, self.is_done = enumerate(entries), False

    def replay(self, entries: Iterable[Entry], past: Mapping[Cursor, list[Event]], *, keeps_new: bool) -> None:
        """Have the whole journal come again, until ``go_live``.

        Args:
            entries: the journal's.
            past: what earlier drivers wrote, by their cursors.
            keeps_new: whether the first report behind all of that waits, and all behind it, until then.
        """
        self.put(entries)
        self._past = {(entry, count): events for (entry, count), events in past.items()}
        self._awaited = {cursor.entry for cursor in past}
        self.is_replaying, self._keeps_new = True, keeps_new

    def go_live(self) -> None:
        """Have what comes from here on count as new."""
        self.is_replaying = self._keeps_new = False

    def next(self, *, is_plain: bool) -> Event | Report | None:
        """Come to the next event, or single report, and return it; None where there is no other.

        Where that *is_plain*, reports that only go on are taken in on the way. Of a batch in which some can't be read,
        a batch without reports comes first, and says how many they are.
        """
        if self._here:
            return self._here.popleft()
        if not self._queue and not self._decode(is_plain=is_plain):
            return self._end()
        place, found = self._queue[0]
        if self._leaves_reports and isinstance(found, Report):
            return None
        self._queue.popleft()
        self._before = self._plain.place
        if place is not None:
            self._plain.place = place
        if self._past:
            self._here.extend(self._past.pop(self._plain.place, ()))
        return found

    def judge(self, report: Report) -> Verdict | None:
        """Fold the report that the driver has come to, and return the verdict on it.

        It is None for one that came after a decision. An error leaves the driver before that report: the next one
        begins with it, as if it had not come so far.
        """
        try:
            return self._judged(report)
        except Exception:
            self._plain.place = self._before
            raise

    def _judged(self, report: Report) -> Verdict | None:
        if (trial := self._experiment.apply_report(report)) is None:
            return None
        verdict = self._deciders.on_report(trial, report)
        for listener in self.listeners:
            listener(trial, report)
        return verdict

    def take_told(self, told: Told) -> None:
        """Fold a report that was told, and act on the verdict, unless its attempt ends with it."""
        if self._deciders.is_broken:
            self._experiment.apply_report(told.report)
            return
        verdict = self._judged(told.report)
        if verdict is not None and verdict is not GO_ON and not told.ends:
            self._act(told.report, verdict)

    def ahead(self, count: int) -> list[Report]:
        """Return up to *count* reports that come next, before any other event, without those that would be late now."""
        found: list[Report] = []
        place = 0
        while len(found) < count and (place < len(self._queue) or self._decode()):
            _, next_ = self._queue[place]
            if isinstance(next_, Report):
                if self._experiment.would_count(next_):
                    found.append(next_)
            elif not isinstance(next_, Reports):
                break
            place += 1
        return found

    def leave(self) -> Iterator[Event | Report]:
        """Yield all that comes, without coming to it: the next driver does."""
        while self._queue or self._decode():
            yield self._queue.popleft()[1]
        self.is_done = True

    @property
    def _leaves_reports(self) -> bool:
        """Whether the replay has passed the last event of an earlier driver, so that the next report is new."""
        return self._keeps_new and not self._past

    def _decode(self, *, is_plain: bool = False) -> bool:
        """Decode another entry; return whether there is one that the driver is to come to."""
        queue, known = self._queue, len(self._queue)
        is_plain = is_plain and not self._leaves_reports
        while len(queue) == known and (entry := self._plain.take(self._entries, self._awaited, is_plain=is_plain)):
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
        # What was written behind entries that are not there, as in a journal that was cut.
        for events in self._past.values():
            self._here.extend(events)
        self._past = {}
        return self._here.popleft() if self._here else None
