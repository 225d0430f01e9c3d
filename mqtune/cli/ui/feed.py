"""Follow the journals of experiments while somebody views them on the live page."""

from __future__ import annotations

import contextlib
import math
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from mqtune.cli.place import Place
from mqtune.cli.ui.history import EventLog
from mqtune.cli.ui.paced import Locks
from mqtune.core.errors import BrokerUnavailable, ConfigurationError, MqtuneError
from mqtune.core.events import DriverStarted, Event, ExperimentCreated, Reports, RequestAnswered
from mqtune.core.experiment import Experiment
from mqtune.core.text import flatten
from mqtune.core.timing import Timing
from mqtune.core.trial import Report, Trial, TrialId, is_number
from mqtune.journal.base import Entry, entry_order
from mqtune.journal.files.copy import JOURNAL_FILE, JournalFile
from mqtune.results.experiments import Readable, RecordedReport, Snapshot, duration, state_in_words, state_of_folder
from mqtune.results.followed import BrokerSource, Fold, FolderSource, Followed, Replaced, Source
from mqtune.results.frames import Row
from mqtune.results.plots.data import PlottedCurve, Read, time_attr_of
from mqtune.results.results import Results

#: The pause before the next replay of a whole journal, as a multiple of the last replay's duration.
AGAIN: Final = 20.0
#: The most cached selections of curves. A metric of 1,000,000 reports takes 24 MB.
_MOST_SELECTIONS: Final = 8
#: How often to try a computation without the lock before it is done with the lock.
_TRIES: Final = 5
#: A thread computes for these seconds, and then sleeps for as long.
_SLICE_S: Final = 0.002
#: At most this many entries are folded under the lock.
_FEW: Final = 20

#: The limits that the page shows and changes.
LIMITS: Final = ("max_trials", "max_concurrent")

Curves = dict[str, PlottedCurve]
T = TypeVar("T")


class _Selection(NamedTuple):
    """Selected curves: all metrics of a trial, or else one metric of all trials."""

    trial: TrialId | None = None
    metric: str = ""


class _Turns:
    """Makes a thread sleep for half of its time."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def sleep_if_due(self) -> None:
        """Sleep if the time slice is used up."""
        if (took_s := time.monotonic() - self._since) >= _SLICE_S:
            # Otherwise the threads of requests would wait for the GIL at each step.
            time.sleep(took_s)
            self._since = time.monotonic()


class _CurveFold(Fold):
    """The state of an experiment, with the curves of its metrics.

    Attributes:
        began_at: when the fold began, by ``time.monotonic()``.
        results: the experiment's results so far.
        log: the newest events in words.
        heard: collects accepted reports. None if they are not needed.
    """

    def __init__(self, created: ExperimentCreated, folder: Path, written: Readable) -> None:
        super().__init__(created)
        self.began_at = time.monotonic()
        self.results = Results(self.experiment, folder, written)
        self.time_attr = time_attr_of(self.results)
        self.curves: dict[TrialId, Curves] = {}
        self.log = EventLog()
        self.log.add(created)
        self.heard: list[Report] | None = None
        #: The experiment's present limits, as far as the journal has them.
        self.limits: dict[str, object] = {}
        self._limit(created.definition)

    def take(self, event: Event | Report) -> None:
        # Fast for reports, which are nearly all of the events.
        if event.__class__ is not Report and event.__class__ is not Reports:
            self.log.add(event)
            self._note_limits(event)
        super().take(event)

    def _note_limits(self, event: Event | Report) -> None:
        if isinstance(event, DriverStarted):
            self._limit(event.changes)
        elif isinstance(event, RequestAnswered) and event.done:
            request = self.experiment.requests.get(event.id)
            if request is not None and request.action == "set":
                self._limit(request.arguments)

    def _limit(self, values: Mapping[str, object]) -> None:
        self.limits |= {name: values[name] for name in LIMITS if values.get(name) is not None}

    def on_report(self, report: Report, trial: Trial) -> None:
        curves = self.curves.get(trial.id)
        if curves is None:
            curves = self.curves[trial.id] = {name: PlottedCurve() for name in self.experiment.objective.metrics}
        for metric, curve in curves.items():
            curve.add(report.timestamp, report.metrics, self.time_attr, metric)
        if self.heard is not None:
            self.heard.append(report)


class Opening:
    """The progress of a feed that is being opened.

    Attributes:
        entries: the number of folded entries.
        total: the number of all entries, or 0 if it is not known yet.
    """

    def __init__(self) -> None:
        self.entries = self.total = 0
        self._passes = 0

    def watch(self, entries: Iterable[Entry], total: int) -> Iterator[Entry]:
        """Yield the entries of a journal, and count them if they are being folded."""
        self.total, self._passes = total, self._passes + 1
        # Events in the drivers' order need two passes, of which the second one takes nearly all of the time.
        is_folding = self._passes % 2 == 0
        for number, entry in enumerate(entries, 1):
            if is_folding:
                self.entries = number
            yield entry


class _WatchedSnapshot(Snapshot):
    """The folded part of a journal's copy. Reads of it are the progress of the opening feed."""

    def __init__(self, copy: Readable, opening: Opening) -> None:
        super().__init__(copy, 0)
        self._opening = opening

    def read(self) -> Iterator[Entry]:
        return self._opening.watch(super().read(), self.count or 0)


class Changes(NamedTuple):
    """The trials that changed, the last changed first, up to the entry with the id *entry*."""

    entry: str
    trials: list[Trial]


class Feed:
    """Follows one experiment in a thread. While ``lock`` is held, the experiment doesn't change.

    Hold the lock only briefly.

    Entries are folded as they arrive. If a driver has processed them in another order (see ``events_in_order``),
    another thread replays the journal in the driver's order. New entries are folded meanwhile.

    Args:
        place: the experiment's folder and broker.
        is_idle: returns whether the feed may end. It is asked when the feed was unused for some time.
        settled: called when a whole journal has been folded.
        opening: gets the progress while the whole journal is folded.

    Raises:
        ConfigurationError: the experiment does not exist, or has not begun.
        BrokerUnavailable: the experiment's broker does not answer.
    """

    def __init__(
        self,
        place: Place,
        is_idle: Callable[[Feed], bool],
        settled: Callable[[], object] = lambda: None,
        timing: Timing = Timing(),
        opening: Opening | None = None,
    ) -> None:
        self._timing = timing
        self.place = place
        self.lock = threading.RLock()
        self.touched_at = time.monotonic()
        #: Functions that the feed's thread calls after each change.
        self.listeners: set[Callable[[], None]] = set()
        #: Why the journal can't be followed now, or empty.
        self.problem = ""
        self.state = ""
        self._asked_at = -math.inf
        #: When the journal was last read without an error.
        self._heard_at = time.monotonic()
        self._is_idle = is_idle
        self._settled = settled
        self._is_closed = threading.Event()
        #: The entries that arrived since the replay began. None while nothing is replayed.
        self._since: list[Entry] | None = None
        #: Reports that arrive while a selection is read from the journal, and the locks of its readers.
        self._pending: dict[_Selection, list[Report]] = {}
        self._reading = Locks()
        with contextlib.ExitStack() as stack:
            self._source, self._state_of, folder = _open_source(place, stack)
            #: The part of the journal's copy that was folded.
            self._written: Snapshot = _WatchedSnapshot(JournalFile(folder / JOURNAL_FILE), opening or Opening())
            # No reference to this object, so that a replaced fold is freed immediately.
            make = partial(_CurveFold, folder=folder, written=self._written)
            self._followed = Followed(self._source, place.name, make, self._written)
            stack.callback(self._followed.close)
            self._begin(self._followed.fold)
            self._ask_state()
            self._open = stack.pop_all()
        # Opening may take longer than the time after which an unused feed ends.
        self.touched_at = time.monotonic()
        self._thread = threading.Thread(target=self._follow, name=f"mqtune-ui-{place.name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, and wait for it. Don't wait long, as the server or disk may hang."""
        self._is_closed.set()
        self._thread.join(4 * self._timing.feed_wait_s)

    def log_page(self, kind: str = "") -> Row:
        """Return the newest lines of the log, of one kind or of all, and their total number."""
        with self.lock:
            return self._fold.log.page(kind)

    def changes(self, after: str) -> Changes:
        """Return the trials that changed after the entry *after*. If it is empty, return none."""
        with self.lock:
            order, trials = entry_order(after) if after else None, []
            for id_, entry in reversed(self._changed.items()):
                if order is None or entry_order(entry) <= order:
                    break
                trials.append(self.experiment.trials[id_])
            return Changes(self.last, trials)

    @property
    def is_folding_again(self) -> bool:
        """Whether the journal is being replayed in the driver's order."""
        return self._since is not None

    @property
    def last(self) -> str:
        """The id of the last folded entry."""
        return self._followed.last

    @property
    def _fold(self) -> _CurveFold:
        return self._followed.fold

    @property
    def experiment(self) -> Experiment:
        return self._fold.experiment

    @property
    def results(self) -> Results:
        return self._fold.results

    @property
    def limits(self) -> Mapping[str, object]:
        """The experiment's present limits, as far as the journal has them."""
        return self._fold.limits

    def curve_of(self, trial: TrialId) -> PlottedCurve | None:
        """Return a trial's curve of the only metric, or None. The caller must hold the lock."""
        return self._fold.curves.get(trial, {}).get(self.experiment.metric)

    def curves_of_best(self) -> Curves:
        """Return the best trial's curves by metric. It is empty without a best trial."""
        with self.lock:
            best = self.experiment.best
            curves = {} if best is None else self._fold.curves.get(best.id, {})
            return {name: curve.copy() for name, curve in curves.items()}

    def unlocked(self, make: Callable[[Results], T]) -> T:
        """Return ``make(results)``, if possible without holding the lock.

        The collections that *make* sees don't change, but trials in them may.
        """
        for _ in range(_TRIES):
            with self.lock:
                results = copy(self.results)
                results.experiment = _frozen(results.experiment)
            # RuntimeError: a collection of a trial was changed while it was iterated.
            with contextlib.suppress(RuntimeError):
                return make(results)
        with self.lock:
            return make(self.results)

    def curves(self, results: Read, metric: str) -> Mapping[TrialId, PlottedCurve]:
        """Return a metric's curve of each trial in *results*, for pictures. New reports are added to them.

        If the metric is not optimised, its first request reads the whole journal.
        """
        known = results.experiment.trials
        by_trial = None if metric in self.experiment.objective.metrics else self._selected(_Selection(metric=metric))
        with self.lock:
            curves_by_trial = (self._fold.curves if by_trial is None else by_trial).items()
            return {id_: curves[metric] for id_, curves in curves_by_trial if id_ in known}

    def detail(self, trial: TrialId) -> Curves:
        """Return a trial's curves of all numeric metrics. Its first request reads the whole journal."""
        by_trial = self._selected(_Selection(trial))
        with self.lock:
            return {name: curve.copy() for name, curve in by_trial.get(trial, {}).items()}

    def _selected(self, selection: _Selection) -> dict[TrialId, Curves]:
        """Return the selected curves by trial. They are cached, and then kept up to date."""
        # Requests for the same selection wait for the first one's result.
        with self._reading.held(selection):
            with self.lock:
                curves, part = self._selections.pop(selection, None), copy(self._written)
                if curves is not None:
                    self._selections[selection] = curves
                    return curves
                pending = self._pending[selection] = []
            try:
                curves = self._read(selection, part)
            except BaseException:
                # Otherwise reports would be collected forever.
                with self.lock:
                    del self._pending[selection]
                raise
            with self.lock:
                del self._pending[selection]
                for report in pending:
                    self._add(curves, selection, report)
                self._selections[selection] = curves
                while len(self._selections) > _MOST_SELECTIONS:
                    del self._selections[next(iter(self._selections))]
                return curves

    def _read(self, selection: _Selection, part: Snapshot) -> dict[TrialId, Curves]:
        curves: dict[TrialId, Curves] = {}
        for report in Results(self.experiment, self.results.folder, part).reports(selection.trial):
            if not report.late:
                self._add(curves, selection, report)
        return curves

    def _begin(self, fold: _CurveFold) -> None:
        """Use a new fold of the whole journal, and forget which trials have changed."""
        with self.lock:
            self._use(fold)
            # A replay of the replaced file is obsolete.
            self._since = None
            #: The last entry of each trial that has changed since, the newest last.
            self._changed: dict[TrialId, str] = {}
        self._settled()

    def _use(self, fold: _CurveFold) -> None:
        self._followed.fold = fold
        self._selections: dict[_Selection, dict[TrialId, Curves]] = {}
        self._schedule_replay(fold.began_at)

    def _schedule_replay(self, began: float) -> None:
        """Set the time of the next replay. *began* is when the last one began."""
        now = time.monotonic()
        self._fold_again_at = now + AGAIN * (now - began)

    def _fold_again(self, part: Snapshot, since: list[Entry]) -> None:
        """Replay a part of the journal in the driver's order, then newer entries. Use the result."""
        began, turns = time.monotonic(), _Turns()

        def may_continue() -> bool:
            turns.sleep_if_due()
            return not self._is_closed.is_set()

        fold: _CurveFold | None
        try:
            fold = self._followed.fold_in_order(part, may_continue)
            while len(since) > _FEW and not self._is_closed.is_set():
                with self.lock:
                    some, since[:] = since[:], []
                for entry in some:
                    fold.take_entry(entry)
                    turns.sleep_if_due()
        except (MqtuneError, OSError):
            # The file was replaced or removed. The feed's thread will notice that.
            fold = None
        with self.lock:
            if self._since is since:
                self._since = None
                self._schedule_replay(began)
                if fold is not None:
                    for entry in since:
                        fold.take_entry(entry)
                    self._use(fold)
        self._settled()
        self._tell()

    def _add_to_selections(self, report: Report) -> None:
        for selection, pending in self._pending.items():
            if selection.trial in (None, report.trial):
                pending.append(report)
        for selection, curves in self._selections.items():
            self._add(curves, selection, report)

    def _add(self, by_trial: dict[TrialId, Curves], selection: _Selection, report: Report | RecordedReport) -> None:
        """Add a report to the selected curves, if it belongs to them."""
        time_attr = self._fold.time_attr
        if selection.trial is None:
            curves = by_trial.get(report.trial)
            if curves is None:
                curves = by_trial[report.trial] = {selection.metric: PlottedCurve()}
            curves[selection.metric].add(report.timestamp, report.metrics, time_attr, selection.metric)
        elif selection.trial == report.trial:
            metrics, curves = dict(flatten(report.metrics)), by_trial.setdefault(report.trial, {})
            for name, value in metrics.items():
                if is_number(value) and name != time_attr:
                    curves.setdefault(name, PlottedCurve()).add(report.timestamp, metrics, time_attr, name)

    def _take_entry(self, entry: Entry) -> None:
        if self._since is not None:
            self._since.append(entry)
        heard: list[Report] | None = [] if self._selections or self._pending else None
        self._fold.heard = heard
        changed = self._followed.take(entry)
        for report in heard or ():
            self._add_to_selections(report)
        for trial in changed:
            self._changed.pop(trial, None)
            self._changed[trial] = entry.id

    def _follow(self) -> None:
        while not self._is_closed.is_set() and not self._may_end():
            is_new, problem = False, ""
            try:
                is_new = self._fold_new() | self._ask_state()
                self._heard_at = time.monotonic()
            except BrokerUnavailable as error:
                # The error's own text has the duration of one try, and not of all.
                cause = error.__context__ or error
                problem = f"no news from Redis for {duration(time.monotonic() - self._heard_at)}: {cause}"
            except (MqtuneError, OSError) as error:
                problem = str(error) if isinstance(error, MqtuneError) else f"the journal can't be read: {error}"
            if is_new or problem != self.problem:
                self.problem = problem
                self._tell()
            if problem:
                self._is_closed.wait(self._timing.feed_state_s)
        self._open.close()

    def _tell(self) -> None:
        for listener in list(self.listeners):
            listener()

    def _may_end(self) -> bool:
        is_idle = not self.listeners and time.monotonic() - self.touched_at > self._timing.linger_s
        return is_idle and self._is_idle(self)

    def _fold_new(self) -> bool:
        """Fold new entries, and return whether there were any. Start a replay if one is due."""
        try:
            entries = self._source.read(self._timing.feed_wait_s)
        except Replaced:
            self._begin(self._followed.fold_all())
            return True
        with self.lock:
            for entry in entries:
                self._take_entry(entry)
            is_due = self._fold.is_out_of_order and time.monotonic() >= self._fold_again_at
            if is_due and self._since is None:
                self._since = []
                folding = threading.Thread(
                    target=self._fold_again,
                    args=(copy(self._written), self._since),
                    name=f"mqtune-ui-{self.place.name}-again",
                    daemon=True,
                )
                folding.start()
        return bool(entries)

    def _ask_state(self) -> bool:
        if time.monotonic() - self._asked_at <= self._timing.feed_state_s:
            return False
        before, self.state = self.state, self._state_of(self.experiment.outcome)
        self._asked_at = time.monotonic()
        return self.state != before


def _frozen(experiment: Experiment) -> Experiment:
    """Return a copy of an experiment whose collections don't change. Its trials are shared."""
    frozen = copy(experiment)
    for name, value in vars(frozen).items():
        if isinstance(value, dict | list | deque):
            setattr(frozen, name, value.copy())
    return frozen


def _open_source(place: Place, stack: contextlib.ExitStack) -> tuple[Source, Callable[[str], str], Path]:
    """Return an experiment's source of entries, a function for its state, and its copy's folder.

    The function returns the state in words, given the experiment's outcome.
    """
    if place.folder is None or (place.broker and place.own_folder is None):
        try:
            return _open_on_broker(place, stack)
        except (ConfigurationError, BrokerUnavailable):
            # The broker does not answer, or no longer has the experiment.
            if place.folder is None:
                raise
    return FolderSource(place.folder), partial(state_of_folder, place.folder), place.folder


def _open_on_broker(place: Place, stack: contextlib.ExitStack) -> tuple[Source, Callable[[str], str], Path]:
    """Do the same as ``_open_source`` for an experiment on a broker. The folder is temporary."""
    from mqtune.client import Client  # noqa: PLC0415 - only this needs redis

    with contextlib.ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="mqtune-ui-")))
        handle = opened.enter_context(Client(place.broker or "")).experiment(place.name)
        # Reads don't retry, as the feed itself does, and reports the problem meanwhile.
        source = BrokerSource(place.broker or "", place.name, patience_s=0, folder=folder)
        stack.push(opened.pop_all())

    def state(outcome: str) -> str:
        if outcome or (driver := handle.state()) is None:
            return outcome
        return state_in_words(driver.outcome, is_driven=driver.is_driven, age_s=driver.age_s, script=driver.script)

    return source, state, folder


class Feeds:
    """The feeds of all experiments that somebody views.

    Args:
        find: returns the place of an experiment of this name, or raises ConfigurationError.
    """

    def __init__(self, find: Callable[[str], Place], timing: Timing = Timing()) -> None:
        self._timing = timing
        self.settled: Callable[[], object] = lambda: None
        self._find = find
        self._lock = threading.Lock()
        self._feeds: dict[str, Feed] = {}
        self._locks = Locks()
        #: The progress of feeds that are being opened.
        self._opening: dict[str, Opening] = {}

    def get(self, name: str) -> Feed:
        """Return the feed of an experiment. Open it if needed. It ends if unused for some time.

        Raises:
            as ``Feed``.
        """
        if (feed := self._touched(name)) is not None:
            return feed
        place = self._find(name)
        with self._locks.held(name):
            if (feed := self._touched(name)) is None:
                opening = self._opening[name] = Opening()
                try:
                    feed = Feed(place, self._release, self.settled, self._timing, opening)
                finally:
                    del self._opening[name]
                with self._lock:
                    self._feeds[name] = feed
            return feed

    def opening(self, name: str) -> Opening:
        """Return the progress of a feed that is being opened."""
        return self._opening.get(name) or Opening()

    def __len__(self) -> int:
        """Return the number of feeds."""
        return len(self._feeds)

    def close(self) -> None:
        """Close all feeds."""
        with self._lock:
            feeds, self._feeds = [*self._feeds.values()], {}
        for feed in feeds:
            feed.close()

    def _touched(self, name: str) -> Feed | None:
        with self._lock:
            if (feed := self._feeds.get(name)) is not None:
                feed.touched_at = time.monotonic()
            return feed

    def _release(self, feed: Feed) -> bool:
        """Forget a feed if it is still unused. Return whether it is forgotten, and so may end."""
        with self._lock:
            is_idle = not feed.listeners and time.monotonic() - feed.touched_at > self._timing.linger_s
            # A feed that is not yet registered is being opened, and must not end.
            if not is_idle or self._feeds.get(feed.place.name) is not feed:
                return False
            del self._feeds[feed.place.name]
            return True
