"""What the page knows of experiments: a fold of each that follows its journal while somebody looks, and nothing when nobody does."""

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
from mqtune.core.events import ExperimentCreated
from mqtune.core.experiment import Experiment
from mqtune.core.text import flatten
from mqtune.core.timing import Timing
from mqtune.core.trial import Report, Trial, TrialId, is_number
from mqtune.journal.base import Entry, entry_order
from mqtune.journal.copy import JOURNAL_FILE, JournalFile
from mqtune.results.experiments import Readable, RecordedReport, Snapshot, duration, state_in_words, state_of_folder
from mqtune.results.followed import BrokerSource, Fold, FolderSource, Followed, Replaced, Source
from mqtune.results.plots.data import Curve, Read, time_attr_of
from mqtune.results.results import Results

#: Reading everything again waits for so many times as long as the last time took.
AGAIN: Final = 20.0
#: Trials and metrics of which the values are kept, those looked at last; a metric of 1,000,000 reports takes 24 MB.
_LOOKS: Final = 8
#: How often something is made anew because a trial has changed meanwhile.
_TRIES: Final = 5

#: For how long all is folded again before what is on its way to the screen comes first for as long.
_SLICE_S: Final = 0.002
#: How many entries may be folded while everybody waits: a moment's work, also when each is a batch of reports.
_FEW: Final = 20

Curves = dict[str, Curve]
T = TypeVar("T")


class _Look(NamedTuple):
    """A trial of which somebody looks at all metrics, or else a metric of which somebody looks at all trials."""

    trial: TrialId | None = None
    metric: str = ""


class _Turns:
    """Has a thread compute for half of the time, a moment at a time."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def pass_on(self) -> None:
        """Wait, if the moment is over."""
        if (took_s := time.monotonic() - self._since) >= _SLICE_S:
            # Threads that answer a reader would otherwise wait for the interpreter's lock at each step.
            time.sleep(took_s)
            self._since = time.monotonic()


class _CurveFold(Fold):
    """What has become of an experiment, and the values of its reports.

    Attributes:
        began_at: when it was begun, of ``time.monotonic()``.
        results: its results so far.
        heard: gets each report that counts; None where nobody wants them.
    """

    def __init__(self, created: ExperimentCreated, folder: Path, written: Readable) -> None:
        super().__init__(created)
        self.began_at = time.monotonic()
        self.results = Results(self.experiment, folder, written)
        self.time_attr = time_attr_of(self.results)
        self.curves: dict[TrialId, Curves] = {}
        self.heard: list[Report] | None = None

    def on_report(self, report: Report, trial: Trial) -> None:
        curves = self.curves.get(trial.id)
        if curves is None:
            curves = self.curves[trial.id] = {name: Curve() for name in self.experiment.objective.metrics}
        for metric, curve in curves.items():
            curve.take(report.timestamp, report.metrics, self.time_attr, metric)
        if self.heard is not None:
            self.heard.append(report)


class Changes(NamedTuple):
    """The trials that have changed, those that did last first, and the id of the entry up to which that is."""

    entry: str
    trials: list[Trial]


class Feed:
    """One experiment, followed in a thread of its own; ``lock`` keeps it as it is, and is held for moments alone.

    Entries that come are folded as they come; a driver may have processed some in another order (see ``events_in_order``).
    Where that shows, all is folded again in the driver's order, in another thread, while news goes on coming.

    Args:
        place: where the experiment is.
        is_idle: told of the feed when it may end; returns whether it does.
        settled: called when all of a journal has been folded.

    Raises:
        ConfigurationError: there is no such experiment, or it has not begun.
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
        #: What is called, in the feed's thread, when something has changed.
        self.listeners: set[Callable[[], None]] = set()
        #: Why there is no news, in words; empty while there may be.
        self.problem = ""
        self.state = ""
        self._asked_at = -math.inf
        #: When its journal was last read in vain or not, but without an error.
        self._heard_at = time.monotonic()
        self._is_idle = is_idle
        self._settled = settled
        self._is_closed = threading.Event()
        #: What has come since all was begun to be folded again; None while it is not.
        self._since: list[Entry] | None = None
        #: What has come of trials and metrics whose values are being read, and who reads them.
        self._pending: dict[_Look, list[Report]] = {}
        self._reading = Locks()
        with contextlib.ExitStack() as stack:
            self._source, self._state_of, folder = _open_source(place, stack)
            #: What was taken in.
            self._written = Snapshot(JournalFile(folder / JOURNAL_FILE), 0)
            # Not this object: the fold goes as soon as nobody has it any more.
            make = partial(_CurveFold, folder=folder, written=self._written)
            self._followed = Followed(self._source, place.name, make, self._written)
            stack.callback(self._followed.close)
            self._begin(self._followed.fold)
            self._ask_state()
            self._open = stack.pop_all()
        # All of that may have taken longer than it stays.
        self.touched_at = time.monotonic()
        self._thread = threading.Thread(target=self._follow, name=f"mqtune-ui-{place.name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, and wait for that; not for a store that hangs."""
        self._is_closed.set()
        self._thread.join(4 * self._timing.feed_wait_s)

    def read(self) -> Iterator[Entry]:
        """Yield the entries that were taken in."""
        return self._written.read()

    def changes(self, after: str) -> Changes:
        """Return the trials that changed behind an entry; none without one."""
        with self.lock:
            order, found = entry_order(after) if after else None, []
            for id_, entry in reversed(self._changed.items()):
                if order is None or entry_order(entry) <= order:
                    break
                found.append(self.experiment.trials[id_])
            return Changes(self.last, found)

    @property
    def is_folding_again(self) -> bool:
        """Whether all of the journal is being folded again in the driver's order."""
        return self._since is not None

    @property
    def last(self) -> str:
        """The id of the last entry that was taken in."""
        return self._followed.last

    @property
    def _fold(self) -> _CurveFold:
        return self._followed.fold

    @property
    def experiment(self) -> Experiment:
        """What has become of the experiment so far."""
        return self._fold.experiment

    @property
    def results(self) -> Results:
        """Its results so far."""
        return self._fold.results

    def unlocked(self, make: Callable[[Results], T]) -> T:
        """Return what is made of the results so far, while the experiment may go on: nothing waits for it.

        What it takes from the results is as it was but for single trials, which may have changed meanwhile.
        """
        for _ in range(_TRIES):
            with self.lock:
                results = copy(self.results)
                results.experiment = _still(results.experiment)
            # Something of a trial has grown while it was looked through.
            with contextlib.suppress(RuntimeError):
                return make(results)
        with self.lock:
            return make(self.results)

    def curves(self, results: Read, metric: str) -> Mapping[TrialId, Curve]:
        """Return the reports so far of each trial that *results* have, as pictures are made of them.

        For a metric that is not the experiment's own all of the journal is read when it is first looked at.
        """
        known = results.experiment.trials
        by_trial = None if metric in self.experiment.objective.metrics else self._looked_at(_Look(metric=metric))
        with self.lock:
            each = (self._fold.curves if by_trial is None else by_trial).items()
            found = [(id_, curves[metric]) for id_, curves in each if id_ in known]
        return {id_: curve.copy() for id_, curve in found}

    def detail(self, trial: TrialId) -> Curves:
        """Return all metrics of a trial that are numbers, by their names; the journal is read when it is first looked at."""
        by_trial = self._looked_at(_Look(trial))
        with self.lock:
            return {name: curve.copy() for name, curve in by_trial.get(trial, {}).items()}

    def _looked_at(self, look: _Look) -> dict[TrialId, Curves]:
        """Return the values of a trial or a metric, by trial; it goes on while it is one of those looked at last."""
        # Who looks meanwhile finds what the first one has read.
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
                # Nobody would ever take what comes.
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
        """Return the values of a trial or a metric in a part of the journal."""
        found: dict[TrialId, Curves] = {}
        for report in Results(self.experiment, self.results.folder, part).reports(look.trial):
            if not report.late:
                self._add(found, look, report)
        return found

    # Folding.

    def _begin(self, fold: _CurveFold) -> None:
        """Go on with a fold of all there is."""
        with self.lock:
            self._go_on_with(fold)
            # Whoever folds another file has folded in vain.
            self._since = None
            #: The last entry of each trial since the feed began, the newest last.
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
        """Fold a part of the journal in the driver's order and then what has come since, and go on with that."""
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
            # The file is another one by now, or gone; who follows it sees that too.
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
        """Take a report into the values of a trial, or of a metric."""
        time_attr = self._fold.time_attr
        if look.trial is None:
            curves = found.get(report.trial)
            if curves is None:
                curves = found[report.trial] = {look.metric: Curve()}
            curves[look.metric].take(report.timestamp, report.metrics, time_attr, look.metric)
        elif look.trial == report.trial:
            metrics, curves = dict(flatten(report.metrics)), found.setdefault(report.trial, {})
            for name, value in metrics.items():
                if is_number(value) and name != time_attr:
                    curves.setdefault(name, Curve()).take(report.timestamp, metrics, time_attr, name)

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

    # Following.

    def _follow(self) -> None:
        while not self._is_closed.is_set() and not self._may_end():
            is_new, problem = False, ""
            try:
                is_new = self._more() | self._ask_state()
                self._heard_at = time.monotonic()
            except BrokerUnavailable as error:
                # The error in it doesn't say how long one attempt took.
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
    """Return an experiment that gets and loses no trial any more."""
    still = copy(experiment)
    for name, value in vars(still).items():
        if isinstance(value, dict | list | deque):
            setattr(still, name, value.copy())
    return still


def _open_source(place: Place, stack: contextlib.ExitStack) -> tuple[Source, Callable[[str], str], Path]:
    """Return where an experiment's entries come from, what says its state in words, and the folder that has a copy."""
    if place.folder is None or (place.broker and place.own_folder is None):
        try:
            return _open_there(place, stack)
        except (ConfigurationError, BrokerUnavailable):
            # It has ended, and the broker has forgotten it, or is gone.
            if place.folder is None:
                raise
    return FolderSource(place.folder), partial(state_of_folder, place.folder), place.folder


def _open_there(place: Place, stack: contextlib.ExitStack) -> tuple[Source, Callable[[str], str], Path]:
    """Return the same of an experiment on a broker, which is copied to a folder that goes with the feed."""
    from mqtune.client import Client  # noqa: PLC0415 - only this needs redis

    with contextlib.ExitStack() as there:
        folder = Path(there.enter_context(tempfile.TemporaryDirectory(prefix="mqtune-ui-")))
        handle = there.enter_context(Client(place.broker or "")).experiment(place.name)
        # The feed tries again itself, and says so meanwhile.
        source = BrokerSource(place.broker or "", place.name, patience_s=0, folder=folder)
        stack.push(there.pop_all())

    def state(outcome: str) -> str:
        if outcome or (found := handle.state()) is None:
            return outcome
        return state_in_words(found.outcome, is_driven=found.is_driven, age_s=found.age_s, script=found.script)

    return source, state, folder


class Feeds:
    """The feeds of the experiments that somebody looks at.

    Args:
        find: returns where the experiment of a name is; raises ConfigurationError if there is none.
    """

    def __init__(self, find: Callable[[str], Place], timing: Timing = Timing()) -> None:
        self._timing = timing
        #: Called when a feed has folded all of its journal.
        self.settled: Callable[[], object] = lambda: None
        self._find = find
        self._lock = threading.Lock()
        self._feeds: dict[str, Feed] = {}
        self._opening = Locks()

    def get(self, name: str) -> Feed:
        """Return the feed of an experiment, which stays for some time without being asked for.

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
        """The number of experiments that are followed now."""
        return len(self._feeds)

    def close(self) -> None:
        """Close all."""
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
            # One that is not here yet is about to be: it would stay here, and follow nothing.
            if not is_idle or self._feeds.get(feed.place.name) is not feed:
                return False
            del self._feeds[feed.place.name]
            return True
