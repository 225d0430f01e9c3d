"""The driver's loop: reads the journal, has the scheduler decide, journals what it decides, keeps the slots busy."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from mqtune.backends.base import Backend
from mqtune.callback import Callback
from mqtune.errors import ConfigurationError, MetricMissing, MqtuneError, TrainableNotFound
from mqtune.experiment import Experiment
from mqtune.interrupts import Interrupted, Interrupts
from mqtune.journal.base import Entry, Journal
from mqtune.journal.file import JournalFile
from mqtune.messages import (
    START,
    AttemptEnded,
    Cursor,
    DecisionTaken,
    Event,
    ExperimentCreated,
    ExperimentEnded,
    Reports,
    TrialStaged,
    decode_event,
    encode_value,
)
from mqtune.replay import driver_events
from mqtune.schedulers.base import Scheduler
from mqtune.searchers.base import Searcher
from mqtune.trial import CONTINUE, Action, AttemptEnd, Config, Decision, Intent, Trial, TrialId, TrialStatus
from mqtune.upkeep import Upkeep

__all__ = ["Driver"]

logger = logging.getLogger(__name__)

#: Entries that one read takes: enough for a flood, few enough to look at timers in between.
READ_COUNT: Final = 1_000
_REPLAY_COUNT: Final = 10_000


class Driver:
    """Drives one experiment; one thread calls it.

    Args:
        journal: the experiment's.
        backend: where its attempts run.
        experiment: the fold, empty.
        scheduler: bound to the metric.
        searcher: fresh; a replay brings it to where it was.
        max_trials: how many trials the searcher is asked for; None for as many as it has.
        max_concurrent: how many attempts may be live at once; None for as many as there are slots.
        copy: the local copy of the journal.
        callbacks: who is told.
        owner: a token that no other driver has.
        interrupts: what may end a wait.
    """

    def __init__(
        self,
        *,
        journal: Journal,
        backend: Backend,
        experiment: Experiment,
        scheduler: Scheduler,
        searcher: Searcher,
        max_trials: int | None,
        max_concurrent: int | None,
        copy: JournalFile,
        callbacks: Sequence[Callback],
        owner: str,
        interrupts: Interrupts | None = None,
    ) -> None:
        self.experiment = experiment
        self.exhausted = False
        self.failure: MqtuneError | None = None
        self._journal = journal
        self._backend = backend
        self._scheduler = scheduler
        self._searcher = searcher
        self._max_trials = max_trials
        self._max_concurrent = max_concurrent
        self._copy = copy
        self._callbacks = callbacks
        self._owner = owner
        self._interrupts = interrupts if interrupts is not None else Interrupts()
        self._added: deque[Config] = deque()
        self._suggested = 0
        self._entry, self._number = START
        self._read_to = START.entry
        self._pending: dict[Cursor, list[Event]] = {}
        self._draining = False
        # What is called for each report is looked up once: a flood of reports is the driver's hot path.
        self._on_report = _overridden("on_report", Searcher, [searcher])
        #: Callbacks, once the replay is over: what happened before is not told again.
        self._told: Sequence[Callback] = ()
        self._upkeep = Upkeep(
            journal, backend, experiment, owner=owner, end=self._apply_end, cursor=lambda: self._cursor
        )

    @property
    def is_finished(self) -> bool:
        """Whether nothing runs and nothing is left to start."""
        if self.experiment.live:
            return False
        return self._draining or not (self.experiment.to_retry or self._added or self._wants_more())

    @property
    def waiting_for(self) -> str:
        """Why nothing runs, or an empty text."""
        if self.experiment.counts[TrialStatus.RUNNING] or self._draining or self.is_finished:
            return ""
        return "" if self._backend.slots else self._backend.why_no_slot()

    def begin(self, name: str, definition: dict[str, Any], *, is_new: bool) -> None:
        """Create the experiment, or bring it back to where its journal ends, and start the loop's timers."""
        if is_new:
            created = ExperimentCreated(name=name, definition=definition, at=time.time())
            self._journal.record(created.encode(), definition=encode_value(definition))
        self._replay()
        # What ended an earlier driver need not end this one.
        self.failure = None
        self._told = self._callbacks
        self._on_report += _overridden("on_report", Callback, self._callbacks)
        self._backend.refresh()
        for callback in self._callbacks:
            callback.on_start(self.experiment)

    def add(self, config: Config) -> None:
        """Have a config tried next, before the searcher's."""
        self._added.append(config)

    def step(self, block_s: float) -> None:
        """Start what there is room for, wait up to *block_s* seconds for news, and act on all of it."""
        self._fill()
        deadline = time.monotonic() + block_s
        intervals = [time.monotonic() + c.interval_s for c in self._callbacks if c.interval_s is not None]
        until = min(deadline, self._upkeep.due, *intervals) if not self.is_finished else 0.0
        entries: list[Entry] = []
        with contextlib.suppress(Interrupted), self._interrupts.may_end_wait():
            entries = self._journal.read(self._read_to, count=READ_COUNT, block_s=max(0.0, until - time.monotonic()))
        if entries:
            self._copy.append(entries)
            self._read_to = entries[-1].id
            for entry in entries:
                self._take(entry)
        if self._journal.fleet_changed:
            self._journal.fleet_changed = False
            self._backend.refresh()
        self._upkeep.run_due()
        self._fill()
        for callback in self._callbacks:
            callback.on_step(self.waiting_for)

    def hand_back_all(self, reason: str) -> None:
        """Start nothing more, and end all attempts so that a later driver can run their trials again."""
        self._draining = True
        for trial in list(self.experiment.trials.values()):
            if trial.is_busy and trial.attempt.end is None and trial.attempt.intent is Intent.RUN:
                self._decide(trial, 0, Intent.HAND_BACK, "hand_back", reason)

    def forfeit_leases(self) -> None:
        """End all running attempts as lost; for when no worker can be left."""
        self._upkeep.forfeit_leases()

    def stop(self, trial: Trial, reason: str) -> None:
        """Stop a trial, whatever the scheduler thinks."""
        self._decide(trial, 0, Intent.STOP, Action.STOP.value, reason)

    def end(self, outcome: str, reason: str) -> None:
        """Journal that this driver is done, and have all of the journal in the copy."""
        if self.experiment.outcome != outcome:
            event = ExperimentEnded(outcome=outcome, reason=reason, at=time.time(), cursor=self._cursor)
            self._journal.record(event.encode())
            self.experiment.apply(event)
        while entries := self._journal.read(self._read_to, count=_REPLAY_COUNT):
            self._copy.append(entries)
            self._read_to = entries[-1].id

    def close(self) -> None:
        """Close the copy, and give the lock back, so that another driver may go on at once."""
        self._copy.close()
        self._journal.unlock(self._owner)

    @property
    def _cursor(self) -> Cursor:
        return Cursor(self._entry, self._number)

    # Taking events in.

    def _replay(self) -> None:
        entries: list[Entry] = []
        while found := self._journal.read(entries[-1].id if entries else START.entry, count=_REPLAY_COUNT):
            entries += found
        self._copy.begin(entries)
        if entries:
            self._read_to = entries[-1].id
        self._pending = driver_events(entries)
        for entry in entries:
            self._take(entry)
        for events in list(self._pending.values()):
            for event in events:
                self._apply_own(event)
        self._pending = {}

    def _take(self, entry: Entry) -> None:
        event = decode_event(entry.data)
        if event is None or getattr(event, "cursor", None) is not None:
            # The driver's own events were applied when they were written, or come with their cursors.
            return
        if isinstance(event, Reports):
            self._take_reports(entry.id, event)
            return
        if isinstance(event, AttemptEnded):
            self._apply_end(event)
        else:
            self.experiment.apply(event)
        if not isinstance(event, ExperimentCreated):
            self._entry, self._number = entry.id, 0
        self._catch_up()

    def _take_reports(self, entry: str, reports: Reports) -> None:
        self._entry = entry
        apply, decide = self.experiment.apply_report, self._scheduler.on_report
        for number, report in enumerate(reports, 1):
            self._number = number
            trial = apply(report)
            if trial is not None:
                decision = decide(trial, report)
                for told in self._on_report:
                    told(trial, report)
                if decision is not CONTINUE and decision.action is not Action.CONTINUE:
                    self._obey(trial, report.sequence, decision)
            if self._pending:
                self._catch_up()

    def _obey(self, trial: Trial, sequence: int, decision: Decision) -> None:
        written = self._pending.get(self._cursor, ())
        if any(isinstance(event, DecisionTaken) and event.trial == trial.id for event in written):
            return
        if decision.action is Action.PAUSE:
            raise ConfigurationError(
                f"{type(self._scheduler).__name__} wants trial {trial.id} paused, which can't be done yet; let it stop or go on"
            )
        intent = Intent.COMPLETE if decision.action is Action.COMPLETE else Intent.STOP
        self._decide(trial, sequence, intent, decision.action.value, decision.reason)

    def _catch_up(self) -> None:
        """Apply what an earlier driver wrote when it had come this far."""
        for event in self._pending.pop(self._cursor, ()):
            self._apply_own(event)

    def _apply_own(self, event: Event) -> None:
        if isinstance(event, AttemptEnded):
            self._apply_end(event)
            return
        if isinstance(event, TrialStaged) and event.attempt == 1 and event.suggested:
            suggested = self._searcher.suggest()
            self._suggested += 1
            if suggested != event.config:
                logger.warning(
                    "trial %s: the searcher now suggests %r, the journal has %r and counts",
                    event.trial,
                    suggested,
                    event.config,
                )
        self.experiment.apply(event)

    def _apply_end(self, event: AttemptEnded) -> None:
        self.experiment.apply(event)
        trial = self.experiment.trials[event.trial]
        attempt = trial.attempts[event.attempt - 1]
        if attempt.end is AttemptEnd.FAILED and not attempt.pid and not self.experiment.reports:
            self.failure = TrainableNotFound(f"trial {trial.id} could not be started: {attempt.error}")
        if trial.status.is_terminal:
            if trial.status is TrialStatus.FAILED and attempt.reports and not self.experiment.metric_seen:
                self.failure = MetricMissing(f"trial {trial.id}: {trial.reason}")
            self._scheduler.on_trial_end(trial)
            self._searcher.on_trial_end(trial)
            for callback in self._told:
                callback.on_trial_end(trial)

    # Acting.

    def _wants_more(self) -> bool:
        return not self.exhausted and (self._max_trials is None or self._suggested < self._max_trials)

    def _fill(self) -> None:
        """Stage attempts until each slot has one, and, if the searcher doesn't mind, another that waits for it."""
        if self._draining or self.failure is not None:
            return
        room = self._backend.slots * (1 if self._searcher.adaptive else 2)
        if self._max_concurrent is not None:
            room = min(room, self._max_concurrent)
        while self.experiment.live < room and self._stage_next():
            pass

    def _stage_next(self) -> bool:
        """Stage one attempt: a retry, an added config, or the searcher's next; False when there is none."""
        experiment = self.experiment
        if experiment.to_retry:
            trial = experiment.trials[experiment.to_retry[0]]
            self._stage(trial.id, len(trial.attempts) + 1, trial.config, reason=trial.reason)
            return True
        suggested = not self._added
        if self._added:
            config: Config | None = self._added.popleft()
        elif self._wants_more():
            config = self._searcher.suggest()
        else:
            return False
        if config is None:
            self.exhausted = True
            return False
        self._suggested += suggested
        self._stage(TrialId(f"{len(experiment.trials) + 1:04d}"), 1, config, suggested=suggested)
        return True

    def _stage(self, trial: TrialId, attempt: int, config: Config, *, suggested: bool = True, reason: str = "") -> None:
        event = TrialStaged(
            trial=trial,
            attempt=attempt,
            config=config,
            at=time.time(),
            cursor=self._cursor,
            suggested=suggested,
            reason=reason,
        )
        self._journal.stage(trial, attempt, config, event.encode())
        self.experiment.apply(event)
        self._backend.publish(trial, attempt, config)

    def _decide(self, trial: Trial, sequence: int, intent: Intent, action: str, reason: str) -> None:
        """Journal a decision and have it carried out; both happen in one step, on the server."""
        attempt = trial.attempt
        now = time.time()
        decision = DecisionTaken(
            trial=trial.id,
            attempt=attempt.number,
            sequence=sequence,
            action=action,
            intent=intent,
            reason=reason,
            at=now,
            cursor=self._cursor,
        )
        end = AttemptEnd.HANDED_BACK if intent is Intent.HAND_BACK else AttemptEnd.STOPPED
        ended = AttemptEnded(trial=trial.id, attempt=attempt.number, end=end, at=now, error=reason, cursor=self._cursor)
        answer = self._journal.intend(trial.id, attempt.number, intent, decision.encode(), ended.encode())
        self.experiment.apply(decision)
        if answer == "unclaimed":
            self._apply_end(ended)


def _overridden(method: str, base: type, targets: Sequence[object]) -> list[Callable[..., None]]:
    """Return the bound methods of those targets that do more than their base class, which does nothing."""
    return [getattr(t, method) for t in targets if getattr(type(t), method) is not getattr(base, method)]
