"""Follows the journals of viewed experiments, while somebody views them."""

from __future__ import annotations

import contextlib
import math
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from mqtune.cli.place import Place
from mqtune.cli.ui.paced import Locks
from mqtune.core.errors import BrokerUnavailable, ConfigurationError, MqtuneError
from mqtune.core.events import DriverStarted, Event, ExperimentCreated, RequestAnswered
from mqtune.core.experiment import Experiment
from mqtune.core.text import flatten
from mqtune.core.timing import Timing
from mqtune.core.trial import Report, Trial, TrialId, is_number
from mqtune.journal.base import Entry, entry_order
from mqtune.journal.files.copy import JOURNAL_FILE, JournalFile
from mqtune.results.experiments import Readable, RecordedReport, Snapshot, duration, state_in_words, state_of_folder
from mqtune.results.followed import BrokerSource, Fold, FolderSource, Followed, Replaced, Source
from mqtune.results.plots.data import PlottedCurve, Read, time_attr_of
from mqtune.results.results import Results

#: Pause between full replays, as a multiple of the last one's duration.
AGAIN: Final = 20.0
#: Cached trials and metrics. A metric of 1,000,000 reports takes 24 MB.
_LOOKS: Final = 8
#: Attempts to compute something before it is done under the lock.
_TRIES: Final = 5

#: Seconds of computing before a thread sleeps for as long.
_SLICE_S: Final = 0.002
#: So few entries are folded under the lock.
_FEW: Final = 20

#: The limits that the page shows and changes.
LIMITS: Final = ("max_trials", "max_concurrent")

Curves = dict[str, PlottedCurve]
T = TypeVar("T")


class _Look(NamedTuple):
    """All metrics of a trial, or a metric of all trials."""

    trial: TrialId | None = None
    metric: str = ""


class _Turns:
    """Limits a thread to half of the time."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def pass_on(self) -> None:
        """Sleep if the time slice is over."""
        if (took_s := time.monotonic() - self._since) >= _SLICE_S:
            # Otherwise request threads wait for the GIL at each step.
            time.sleep(took_s)
            self._since = time.monotonic()


class _CurveFold(Fold):
    """An experiment's state, and its reported values.

    Attributes:
        began_at: its start, by ``time.monotonic()``.
        results: its results so far.
        heard: collects counted reports; None if nobody needs them.
    """

    def __init__(self, created: ExperimentCreated, folder: Path, written: Readable) -> None:
        super().__init__(created)
        self.began_at = time.monotonic()
        self.results = Results(self.experiment, folder, written)
        self.time_attr = time_attr_of(self.results)
        self.curves: dict[TrialId, Curves] = {}
        self.heard: list[Report] | None = None
        #: The limits that hold now, as far as the journal has them.
        self.limits: dict[str, object] = {}
        self._limit(created.definition)

    def take(self, event: Event | Report) -> None:
        # Nearly all are reports.
        if event.__class__ is RequestAnswered or event.__class__ is DriverStarted:
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
            curve.take(report.timestamp, report.metrics, self.time_attr, metric)
        if self.heard is not None:
            self.heard.append(report)


class Changes(NamedTuple):
    """The changed trials, newest change first, and the last included entry's id."""

    entry: str
    trials: list[Trial]


class Feed:
    """One experiment, followed in a thread. ``lock`` freezes it and must be held only briefly.

    Entries are folded as they arrive, though a driver may have processed some in another order (see
    ``events_in_order``). If so, another thread replays the journal in the driver's order, while news is still folded.

    Args:
        place: the experiment's place.
        is_idle: asked whether the feed may end.
        settled: called after a whole journal was folded.

    Raises:
        ConfigurationError: the experiment is missing, or has not begun.
        BrokerUnavailable: its broker does not answer.
    """

    def __init__(
        self,
        place: Place,
        is_idle: Callable[[Feed], bool],
        settled: Callable[[], object] = lambda: None,
        timing: Timing = Timing(),
    ) -> None:
        self._timing = timing
        self.place = place
        self.lock = threading.RLock()
        self.touched_at = time.monotonic()
        #: Called in the feed's thread on changes.
        self.listeners: set[Callable[[], None]] = set()
        #: Empty without a problem.
        self.problem = ""
        self.state = ""
        self._asked_at = -math.inf
        #: Last read of the journal without an error.
        self._heard_at = time.monotonic()
        self._is_idle = is_idle
        self._settled = settled
        self._is_closed = threading.Event()
        #: Entries since the replay began; None outside a replay.
        self._since: list[Entry] | None = None
        #: New reports for values being read, and their readers' locks.
        self._pending: dict[_Look, list[Report]] = {}
        self._reading = Locks()
        with contextlib.ExitStack() as stack:
            self._source, self._state_of, folder = _open_source(place, stack)
            #: The processed part of the journal.
            self._written = Snapshot(JournalFile(folder / JOURNAL_FILE), 0)
            # It has no reference to this object, so that an unused fold is freed immediately.
            make = partial(_CurveFold, folder=folder, written=self._written)
            self._followed = Followed(self._source, place.name, make, self._written)
            stack.callback(self._followed.close)
            self._begin(self._followed.fold)
            self._ask_state()
            self._open = stack.pop_all()
        # Opening may take longer than an idle feed lives.
        self.touched_at = time.monotonic()
        self._thread = threading.Thread(target=self._follow, name=f"mqtune-ui-{place.name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and wait for it, but not for a hanging store."""
        self._is_closed.set()
        self._thread.join(4 * self._timing.feed_wait_s)

    def read(self) -> Iterator[Entry]:
        """Yield the processed entries."""
        return self._written.read()

    def changes(self, after: str) -> Changes:
        """Return the trials that changed after an entry; an empty list without one."""
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
        """The last processed entry's id."""
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
        """The limits that hold now, as far as the journal has them."""
        return self._fold.limits

    def curve_of(self, trial: TrialId) -> PlottedCurve | None:
        """Return a trial's reports of the only metric. The caller must hold the lock."""
        return self._fold.curves.get(trial, {}).get(self.experiment.metric)

    def curves_of_best(self) -> Curves:
        """Return the best trial's reports by metric. The result is empty without a best trial."""
        with self.lock:
            best = self.experiment.best
            curves = {} if best is None else self._fold.curves.get(best.id, {})
            return {name: curve.copy() for name, curve in curves.items()}

    def unlocked(self, make: Callable[[Results], T]) -> T:
        """Return ``make(results)`` without blocking the feed.

        *make* sees frozen collections, but single trials may change meanwhile.
        """
        for _ in range(_TRIES):
            with self.lock:
                results = copy(self.results)
                results.experiment = _still(results.experiment)
            # A trial's collection has grown during iteration.
            with contextlib.suppress(RuntimeError):
                return make(results)
        with self.lock:
            return make(self.results)

    def curves(self, results: Read, metric: str) -> Mapping[TrialId, PlottedCurve]:
        """Return the reports of each trial in *results*, for pictures.

        The first request for a metric that is not optimised reads the whole journal.
        """
        known = results.experiment.trials
        by_trial = None if metric in self.experiment.objective.metrics else self._looked_at(_Look(metric=metric))
        with self.lock:
            each = (self._fold.curves if by_trial is None else by_trial).items()
            found = [(id_, curves[metric]) for id_, curves in each if id_ in known]
        return {id_: curve.copy() for id_, curve in found}

    def detail(self, trial: TrialId) -> Curves:
        """Return a trial's numeric metrics. The first request reads the journal."""
        by_trial = self._looked_at(_Look(trial))
        with self.lock:
            return {name: curve.copy() for name, curve in by_trial.get(trial, {}).items()}

    def _looked_at(self, look: _Look) -> dict[TrialId, Curves]:
        """Return values by trial, kept up to date while recently used."""
        # Concurrent readers share the first one's result.
        with self._reading.held(look):
            with self.lock:
                found, part = self._looks.pop(look, None), copy(self._written)
                if found is not None:
                    self._looks[look] = found
                    return found
                pending = self._pending[look] = []
            try:
                found = self._read(look, part)
            except BaseException:
                # Otherwise reports would accumulate forever.
                with self.lock:
                    del self._pending[look]
                raise
            with self.lock:
                del self._pending[look]
                for each in pending:
                    self._add(found, look, each)
                self._looks[look] = found
                while len(self._looks) > _LOOKS:
                    del self._looks[next(iter(self._looks))]
                return found

    def _read(self, look: _Look, part: Snapshot) -> dict[TrialId, Curves]:
        found: dict[TrialId, Curves] = {}
        for report in Results(self.experiment, self.results.folder, part).reports(look.trial):
            if not report.late:
                self._add(found, look, report)
        return found

    def _begin(self, fold: _CurveFold) -> None:
        """Continue with a fold of the whole journal."""
        with self.lock:
            self._go_on_with(fold)
            # A replay of another file is obsolete.
            self._since = None
            #: Each trial's last entry since the feed began, newest last.
            self._changed: dict[TrialId, str] = {}
        self._settled()

    def _go_on_with(self, fold: _CurveFold) -> None:
        self._followed.fold = fold
        self._looks: dict[_Look, dict[TrialId, Curves]] = {}
        self._wait_with_folding(fold.began_at)

    def _wait_with_folding(self, began: float) -> None:
        now = time.monotonic()
        self._fold_again_at = now + AGAIN * (now - began)

    def _fold_again(self, part: Snapshot, since: list[Entry]) -> None:
        """Replay part of the journal in the driver's order, then newer entries, and use the result."""
        began, turns = time.monotonic(), _Turns()

        def pass_on() -> bool:
            turns.pass_on()
            return not self._is_closed.is_set()

        fold: _CurveFold | None
        try:
            fold = self._followed.fold_in_order(part, pass_on)
            while len(since) > _FEW and not self._is_closed.is_set():
                with self.lock:
                    some, since[:] = since[:], []
                for entry in some:
                    fold.take_entry(entry)
                    turns.pass_on()
        except (MqtuneError, OSError):
            # The file was replaced or removed, as the following thread will notice.
            fold = None
        with self.lock:
            if self._since is since:
                self._since = None
                self._wait_with_folding(began)
                if fold is not None:
                    for entry in since:
                        fold.take_entry(entry)
                    self._go_on_with(fold)
        self._settled()
        self._tell()

    def _hear(self, report: Report) -> None:
        for look, pending in self._pending.items():
            if look.trial in (None, report.trial):
                pending.append(report)
        for look, found in self._looks.items():
            self._add(found, look, report)

    def _add(self, found: dict[TrialId, Curves], look: _Look, report: Report | RecordedReport) -> None:
        time_attr = self._fold.time_attr
        if look.trial is None:
            curves = found.get(report.trial)
            if curves is None:
                curves = found[report.trial] = {look.metric: PlottedCurve()}
            curves[look.metric].take(report.timestamp, report.metrics, time_attr, look.metric)
        elif look.trial == report.trial:
            metrics, curves = dict(flatten(report.metrics)), found.setdefault(report.trial, {})
            for name, value in metrics.items():
                if is_number(value) and name != time_attr:
                    curves.setdefault(name, PlottedCurve()).take(report.timestamp, metrics, time_attr, name)

    def _take_entry(self, entry: Entry) -> None:
        if self._since is not None:
            self._since.append(entry)
        heard: list[Report] | None = [] if self._looks or self._pending else None
        self._fold.heard = heard
        changed = self._followed.take(entry)
        for report in heard or ():
            self._hear(report)
        for trial in changed:
            self._changed.pop(trial, None)
            self._changed[trial] = entry.id

    def _follow(self) -> None:
        while not self._is_closed.is_set() and not self._may_end():
            is_new, problem = False, ""
            try:
                is_new = self._more() | self._ask_state()
                self._heard_at = time.monotonic()
            except BrokerUnavailable as error:
                # The error's own text lacks the total duration.
                cause = error.__context__ or error
                problem = f"no news from Redis for {duration(time.monotonic() - self._heard_at)}: {cause}"
            except (MqtuneError, OSError) as error:
                problem = str(error) if isinstance(error, MqtuneError) else f"its journal can't be read: {error}"
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

    def _more(self) -> bool:
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


def _still(experiment: Experiment) -> Experiment:
    """Return a copy of an experiment that gains and loses no trial."""
    still = copy(experiment)
    for name, value in vars(still).items():
        if isinstance(value, dict | list | deque):
            setattr(still, name, value.copy())
    return still


def _open_source(place: Place, stack: contextlib.ExitStack) -> tuple[Source, Callable[[str], str], Path]:
    """Return an experiment's source of entries, its state in words, and its copy's folder."""
    if place.folder is None or (place.broker and place.own_folder is None):
        try:
            return _open_there(place, stack)
        except (ConfigurationError, BrokerUnavailable):
            # The broker has lost the ended experiment, or is gone.
            if place.folder is None:
                raise
    return FolderSource(place.folder), partial(state_of_folder, place.folder), place.folder


def _open_there(place: Place, stack: contextlib.ExitStack) -> tuple[Source, Callable[[str], str], Path]:
    """Return the same for a broker's experiment, with a temporary folder."""
    from mqtune.client import Client  # noqa: PLC0415 - only this needs redis

    with contextlib.ExitStack() as there:
        folder = Path(there.enter_context(tempfile.TemporaryDirectory(prefix="mqtune-ui-")))
        handle = there.enter_context(Client(place.broker or "")).experiment(place.name)
        # The feed itself retries and reports the problem.
        source = BrokerSource(place.broker or "", place.name, patience_s=0, folder=folder)
        stack.push(there.pop_all())

    def state(outcome: str) -> str:
        if outcome or (found := handle.state()) is None:
            return outcome
        return state_in_words(found.outcome, is_driven=found.is_driven, age_s=found.age_s, script=found.script)

    return source, state, folder


class Feeds:
    """The feeds of viewed experiments.

    Args:
        find: returns an experiment's place, or raises ConfigurationError.
    """

    def __init__(self, find: Callable[[str], Place], timing: Timing = Timing()) -> None:
        self._timing = timing
        self.settled: Callable[[], object] = lambda: None
        self._find = find
        self._lock = threading.Lock()
        self._feeds: dict[str, Feed] = {}
        self._opening = Locks()

    def get(self, name: str) -> Feed:
        """Return the feed of an experiment. It ends after some time without use.

        Raises:
            as ``Feed``.
        """
        if (feed := self._touched(name)) is not None:
            return feed
        place = self._find(name)
        with self._opening.held(name):
            if (feed := self._touched(name)) is None:
                feed = Feed(place, self._let_go, self.settled, self._timing)
                with self._lock:
                    self._feeds[name] = feed
            return feed

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

    def _let_go(self, feed: Feed) -> bool:
        with self._lock:
            is_idle = not feed.listeners and time.monotonic() - feed.touched_at > self._timing.linger_s
            # A feed not registered yet is about to be, and must not stop.
            if not is_idle or self._feeds.get(feed.place.name) is not feed:
                return False
            del self._feeds[feed.place.name]
            return True
