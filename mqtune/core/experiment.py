"""The experiment: a fold over its events, without clock, socket or thread."""

from __future__ import annotations

import bisect
import contextlib
import json
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from mqtune.core.codec import Body, Number, encode_value
from mqtune.core.errors import ConfigurationError, ImpossibleEvent, InvalidTransition
from mqtune.core.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointSaved,
    CheckpointsDropped,
    DecisionTaken,
    DriverStarted,
    Event,
    ExperimentCreated,
    ExperimentEnded,
    Labelled,
    Reports,
    RequestAnswered,
    Requested,
    Told,
    TrialClosed,
    TrialStaged,
    decode_event,
)
from mqtune.core.labels import Labels
from mqtune.core.objective import Metric, Modes, Objective, dominates, has_nan, pareto_front
from mqtune.core.owner import NOBODY, Owner
from mqtune.core.plain import RowConverter, from_plain, to_plain
from mqtune.core.resources import Resources
from mqtune.core.text import name_in_words, names_in_words
from mqtune.core.trial import (
    DEVICE_BROKEN,
    FORGOTTEN,
    ITERATION,
    OUTSIDE,
    PARAMETERS,
    UNDRIVEN,
    WORKER_ERROR,
    Action,
    Attempt,
    AttemptEnd,
    CheckpointId,
    Decision,
    FurtherTask,
    Metrics,
    Report,
    SavedCheckpoint,
    Stop,
    Transition,
    Trial,
    TrialId,
    TrialStatus,
    attempt_and_number,
    is_number,
    trial_of,
)
from mqtune.core.usage import sound_usage

#: How many attempts in a row a trial may lose, or have requeued without a report, before it fails. A flaky machine
#: causes fewer. The limit keeps a trial that crashes its machines from stopping a whole fleet.
LOST_BUDGET: Final = 5
#: The action of a request that changes labels, and its arguments. The fold applies it without waiting for a driver.
LABEL: Final = "label"
LABELS: Final = frozenset({"tags", "untag", "note", "notes"})
#: The attributes of an experiment that its events change: plain values, queues of them, and trials by their ids.
_VALUES: Final = (
    "keys",
    "carried_out",
    "created_at",
    "outcome",
    "reason",
    "reports",
    "unreadable",
    "run_s",
    "metric_seen",
    "_driven_before_s",
    "_driven_since",
    "_driven_at",
)
_QUEUES: Final = ("to_retry", "to_restart", "_answered")
_OF_TRIALS: Final = ("_front", "_open", "busy", "outside")
_ATTEMPTS: Final = RowConverter(Attempt, resources=Resources | None)
_TRIALS: Final = RowConverter(Trial, attempts=Any)
_ATTEMPTS_AT: Final = _TRIALS.names.index("attempts")
#: The version and the names of all values of a state. A state of another form can't be read.
STATE_FORM: Final = (4, *_VALUES, *_QUEUES, *_OF_TRIALS, *_TRIALS.names, *_ATTEMPTS.names)
#: How many answered requests are remembered. Redis may lose its ids of requests and accept a repeated one again.
ANSWERED_COUNT: Final = 1_000


class CodeChange(NamedTuple):
    """A change of the experiment's code, found when a driver started.

    Later attempts run the new code. ``trials`` is the number of trials at that time, and ``files`` are the changed
    files.
    """

    at: Number
    trials: int
    files: tuple[str, ...]


class Experiment:
    """The fold over an experiment's events. The same events in one order give the same state.

    Only ``apply`` and ``apply_report`` change it. Work for one event does not grow with the number of trials.

    Args:
        metric: the metric to optimise, or a list of metrics and outcome constraints, such as "latency <= 10".
        mode: "min" or "max", or a list with one for each metric.
        max_failures: how many times a trial is run again after its own code has failed; -1 for no limit.
        max_lost: how many attempts in a row without progress may be lost and run again; -1 for no limit.
        accept_no_report: whether a trial without a report of the metric may be completed.
    """

    def __init__(
        self,
        name: str,
        *,
        metric: Metric,
        mode: Modes,
        max_failures: int = 0,
        max_lost: int = LOST_BUDGET,
        accept_no_report: bool = False,
    ) -> None:
        self.name = name
        self.objective = Objective.of(metric, mode)
        #: The metric. Empty if there are several.
        self.metric = self.objective.metrics[0] if self.objective.is_single else ""
        #: The mode of the first metric.
        self.mode = self.objective.modes[0]
        self.max_failures = max_failures
        self.max_lost = max_lost
        self.accept_no_report = accept_no_report
        self.trials: dict[TrialId, Trial] = {}
        #: The trials that users added with a key of their own, by that key.
        self.keys: dict[str, TrialId] = {}
        self.counts: dict[TrialStatus, int] = dict.fromkeys(TrialStatus, 0)
        #: Trials that wait for another attempt, in the order of their precedence.
        self.to_retry: list[TrialId] = []
        #: Paused trials whose decision already says how they restart, oldest first.
        self.to_restart: deque[TrialId] = deque()
        #: Unanswered requests by id, in the order of their execution.
        self.requests: dict[str, Requested] = {}
        #: Requests whose effect is in the journal, but whose answer is not: the trial, or an empty text, by id.
        self.carried_out: dict[str, str] = {}
        self.created_at: float | None = None
        #: The person or program that created it.
        self.owner = NOBODY
        self.code_changes: list[CodeChange] = []
        self.labels = Labels()
        self.outcome = ""
        self.reason = ""
        self.best: Trial | None = None
        #: The different environments of attempts, by their hashes.
        self._environments: dict[int, Body] = {}
        self.reports = 0
        #: The number of unreadable reports in its journal.
        self.unreadable = 0
        #: Trials with an open attempt for workers. Timers iterate over these, and never over all trials.
        self.busy: dict[TrialId, Trial] = {}
        #: Trials with an open attempt that people evaluate outside.
        self.outside: dict[TrialId, Trial] = {}
        #: The total duration of all ended attempts, in seconds.
        self.run_s = 0.0
        #: Whether any report has a number for the metric.
        self.metric_seen = False
        self._sign = 1.0 if self.mode == "min" else -1.0
        #: With several metrics, the feasible trials with a value of each metric. ``_front`` has the ended trials that
        #: no other ended trial dominates, and ``_open`` the trials that have not ended.
        self._front: dict[TrialId, Trial] = {}
        self._open: dict[TrialId, Trial] = {}
        self._answered: deque[str] = deque(maxlen=ANSWERED_COUNT)
        self._driven_before_s = 0.0
        self._driven_since: float | None = None
        self._driven_at = 0.0

    @property
    def live(self) -> int:
        """The number of attempts that run on a worker or wait for one."""
        return len(self.busy)

    @property
    def running(self) -> int:
        """The number of trials that workers run."""
        return self.counts[TrialStatus.RUNNING] - len(self.outside)

    @property
    def statuses(self) -> dict[str, int]:
        """The number of trials by status, without zeros."""
        return {status.value: count for status, count in self.counts.items() if count}

    @property
    def has_only_failed(self) -> bool:
        """Whether there are trials and all have failed."""
        return 0 < len(self.trials) == self.counts[TrialStatus.FAILED]

    @property
    def leaders(self) -> Mapping[TrialId, Trial]:
        """The best trial. With several metrics, the ended trials that no ended trial dominates."""
        return self._front if self.best is None else {self.best.id: self.best}

    @property
    def pareto_front(self) -> list[Trial]:
        """With several metrics, the trials that no other one dominates, sorted by the first metric."""
        return pareto_front(
            [*self._front.values(), *(trial for trial in self._open.values() if not trial.is_abandoned)]
        )

    def driven_s(self, now: float) -> float:
        """Return for how many seconds drivers have run, up to *now* (seconds since the epoch)."""
        return self._driven_before_s + (0.0 if self._driven_since is None else max(0.0, now - self._driven_since))

    def is_better(self, value: float, than: float) -> bool:
        """Whether *value* beats *than* in the experiment's mode. Any value beats NaN."""
        return than != than or self._sign * value < self._sign * than  # noqa: PLR0124 - NaN is not itself

    def is_feasible(self, trial: Trial) -> bool:
        """Whether the report in ``trial.best_metrics`` meets the constraints."""
        return self.objective.is_feasible(trial.best_metrics)

    def state(self) -> Body:
        """Return the fold's state as values that msgpack can carry, for ``restore``."""
        trials = _TRIALS.rows(self.trials.values())
        for row in trials:
            row[_ATTEMPTS_AT] = _ATTEMPTS.rows(row[_ATTEMPTS_AT])
        return {
            **{name: getattr(self, name) for name in _VALUES},
            **{name: [*getattr(self, name)] for name in (*_QUEUES, *_OF_TRIALS)},
            "trials": to_plain(trials),
            "counts": to_plain(self.counts),
            "requests": [request.encode() for request in self.requests.values()],
            "code_changes": self.code_changes,
            "labels": self.labels,
            "owner": self.owner,
            "best": None if self.best is None else self.best.id,
        }

    def restore(self, state: Body) -> None:
        """Restore the state of an experiment with the same definition and ``STATE_FORM``."""
        for name in _VALUES:
            setattr(self, name, state[name])
        for name in _QUEUES:
            getattr(self, name).extend(state[name])
        trials = _TRIALS.objects(state["trials"])
        self.trials = {trial.id: trial for trial in trials}
        for trial in trials:
            trial.attempts = _ATTEMPTS.objects(trial.attempts)
            for attempt in trial.attempts:
                attempt.environment = self._share_environment(attempt.environment)
        for name in _OF_TRIALS:
            setattr(self, name, {id_: self.trials[id_] for id_ in state[name]})
        self.counts = from_plain(dict[TrialStatus, int], state["counts"])
        events = map(decode_event, state["requests"])
        self.requests = {event.id: event for event in events if isinstance(event, Requested)}
        self.code_changes = from_plain(list[CodeChange], state["code_changes"])
        self.labels = from_plain(Labels, state["labels"])
        self.owner = from_plain(Owner, state["owner"])
        self.best = None if state["best"] is None else self.trials[state["best"]]

    def apply(self, event: Event) -> None:
        """Apply an event. Single reports go through ``apply_report``.

        Raises:
            ImpossibleEvent: the event can't follow the previous ones.
        """
        try:
            self._apply(event)
        except (LookupError, InvalidTransition) as error:
            named = " ".join(f"{name} {getattr(event, name)}" for name in ("trial", "attempt") if hasattr(event, name))
            why = error if isinstance(error, InvalidTransition) else repr(error)
            raise ImpossibleEvent(
                f"experiment {self.name!r}: its journal has a {event.KIND!r} event of {named} in an impossible place: "
                f"{why}",
                event,
            ) from error

    def _apply(self, event: Event) -> None:
        if not isinstance(event, Reports) and (request := getattr(event, "request", "")) in self.requests:
            self.carried_out[request] = getattr(event, "trial", "")
        match event:
            case Requested():
                if event.id not in self._answered and event.id not in self.requests:
                    self.requests[event.id] = event
                    self._label(event)
            case RequestAnswered():
                self._answer(event)
            case TrialStaged():
                self._stage(event)
            case AttemptStarted():
                self._start(event)
            case Told():
                self._driven_at = event.at
            case DecisionTaken():
                self._decide(event)
            case AttemptEnded():
                self._end(event)
            case CheckpointSaved():
                trial = self.trials[event.trial]
                if event.attempt == trial.attempt.number and trial.attempt.end is None:
                    _add_checkpoint(trial, CheckpointId(event.checkpoint), event.at, trial.last_metrics)
            case CheckpointsDropped():
                self._drop_checkpoints(event.checkpoints)
            case TrialClosed():
                self._close(event)
            case Labelled():
                labelled = self.trials[TrialId(event.trial)] if event.trial else self
                labelled.labels = Labels(tuple(event.tags), event.notes)
            case Reports():
                self.unreadable += event.unreadable
                for report in event:
                    self.apply_report(report)
            case ExperimentCreated():
                self.created_at = event.at
                self.owner = event.owner
            case DriverStarted():
                if self._driven_since is not None:
                    self._driven_before_s += max(0.0, self._driven_at - self._driven_since)
                self._driven_since = self._driven_at = event.at
                if event.code_changed:
                    self.code_changes.append(CodeChange(event.at, len(self.trials), tuple(event.code_changed)))
            case ExperimentEnded():
                self._driven_at = event.at
                self.outcome, self.reason = event.outcome, event.reason

    def apply_report(self, report: Report) -> Trial | None:
        """Apply one report.

        Return its trial, or None if the report is late: no scheduler sees it then.

        Raises:
            ImpossibleEvent: the trial does not exist.
        """
        # Unpacked, which is faster for a flood of reports.
        id_, number, sequence, timestamp, metrics, checkpoint = report
        try:
            trial = self.trials[id_]
        except KeyError:
            raise ImpossibleEvent(
                f"experiment {self.name!r}: its journal has a report of trial {id_!r}, which does not exist", report
            ) from None
        attempt = trial.attempts[-1]
        is_current = number == attempt.number and attempt.end is None
        if checkpoint and is_current:
            # A pausing trial saves its checkpoint after the decision, with a late report.
            _add_checkpoint(trial, checkpoint, timestamp, metrics)
        if not is_current or trial.decision is not None:
            trial.late_reports += 1
            if is_current:
                trial.late_metrics = metrics
            return None
        attempt.reports = sequence
        trial.reports += 1
        self.reports += 1
        trial.last_metrics = metrics
        trial.last_timestamp = timestamp
        if (chosen := metrics.get(PARAMETERS)).__class__ is dict:
            trial.config = attempt.config = chosen
        value = metrics.get(self.metric)
        if value.__class__ is float or is_number(value):
            trial.has_metric = self.metric_seen = True
            if value == value:  # noqa: PLR0124 - NaN is not itself
                self._apply_value(trial, value, report)
        elif not self.objective.is_single:
            self._apply_point(trial, report)
        return trial

    def would_count(self, report: Report) -> bool:
        """Whether ``apply_report`` would accept this report. It counts other reports as late."""
        trial = self.trials[report.trial]
        attempt = trial.attempt
        return report.attempt == attempt.number and attempt.end is None and trial.decision is None

    def _apply_point(self, trial: Trial, report: Report) -> None:
        """Apply the values in a report if there are several metrics."""
        point = self.objective.point(report.metrics)
        if point is None:
            return
        trial.has_metric = self.metric_seen = True
        if not has_nan(point):
            trial.best_metrics, trial.point = report.metrics, point
            if self.is_feasible(trial):
                self._open[trial.id] = trial
            else:
                self._open.pop(trial.id, None)

    def _apply_value(self, trial: Trial, value: float, report: Report) -> None:
        trial.metric_sum += value
        trial.metric_count += 1
        best, is_feasible = trial.best_value, True
        if self.objective.constraints:
            is_feasible, was_feasible = self.objective.is_feasible(report.metrics), self.is_feasible(trial)
            if was_feasible and not is_feasible:
                return
            best = best if was_feasible is is_feasible else math.nan
        # This is ``is_better`` without the call: most reports of a flood end here.
        if best == best and self._sign * value >= self._sign * best:  # noqa: PLR0124 - NaN is not itself
            return
        trial.best_value = value
        trial.best_metrics = report.metrics
        if is_feasible and (self.best is None or self.is_better(value, self.best.best_value)):
            self.best = trial

    def _advance(self, trial: Trial, status: TrialStatus, reason: str, by: str, at: float) -> None:
        before = trial.status
        trial.advance(status, reason=reason, by=by, at=at)
        self.counts[before] -= 1
        self.counts[status] += 1
        if status is TrialStatus.ABANDONED:
            self._replace_best(trial)
        if status.is_terminal and self._open.pop(trial.id, None) is not None and not trial.is_abandoned:
            self._enter_front(trial)

    def _enter_front(self, trial: Trial) -> None:
        others = self._front.values()
        if not any(dominates(other.point, trial.point) for other in others):
            self._front = {other.id: other for other in others if not dominates(trial.point, other.point)}
            self._front[trial.id] = trial

    def _replace_best(self, trial: Trial) -> None:
        """Find another best trial if *trial*, which is abandoned, is the best one."""
        if self.best is trial:
            self.best = None
            for other in self.trials.values():
                value = other.best_value
                if value == value and not other.is_abandoned and self.is_feasible(other):  # noqa: PLR0124 - NaN is not itself
                    is_best = self.best is None or self.is_better(value, self.best.best_value)
                    self.best = other if is_best else self.best

    def _stage(self, event: TrialStaged) -> None:
        self._driven_at = event.at
        trial = self.trials.get(event.trial)
        if trial is None:
            trial = self.trials[event.trial] = Trial(
                event.trial,
                event.config,
                parent=TrialId(event.source) if event.source else None,
                labels=Labels(tuple(event.tags), event.notes),
                key=event.key,
            )
            if event.key:
                self.keys[event.key] = trial.id
            trial.history.append(Transition(TrialStatus.CANDIDATE, event.at, "", event.by))
            self.counts[TrialStatus.CANDIDATE] += 1
        self._remove_from_waiting(trial)
        self._advance(trial, TrialStatus.QUEUED, event.reason, event.by, event.at)
        trial.config = event.config
        trial.timeout_s = event.timeout_s
        trial.decision = trial.restart = trial.pause_point = None
        trial.late_metrics = {}
        trial.checkpoint = checkpoint = CheckpointId(event.checkpoint)
        if checkpoint and trial_of(checkpoint) == trial.id and attempt_and_number(checkpoint)[0] == 0:
            # An imported checkpoint counts as the trial's own.
            trial.checkpoints.setdefault(checkpoint, SavedCheckpoint(checkpoint, event.at, {}))
        source = TrialId(event.source) if event.source else None
        trial.attempts.append(
            Attempt(
                event.attempt,
                queued_at=event.at,
                config=event.config,
                checkpoint=checkpoint,
                source=source,
                resources=event.resources,
            )
        )
        trial.outside = event.outside
        if event.outside:
            trial.attempt.worker, self.outside[trial.id] = OUTSIDE, trial
            self._advance(trial, TrialStatus.RUNNING, "", event.by, event.at)
        else:
            self.busy[trial.id] = trial
        # An ended experiment continues.
        self.outcome = self.reason = ""

    def _start(self, event: AttemptStarted) -> None:
        trial = self.trials[event.trial]
        attempt = trial.attempts[event.attempt - 1]
        if event.task:
            files = event.stdout_path, event.stderr_path, event.log_mark
            task = FurtherTask(event.task, event.worker, event.host, event.queue, tuple(event.devices), *files)
            attempt.further_tasks = (*attempt.further_tasks, task)
            if attempt.started_at is not None:
                # An attempt starts with its last task.
                attempt.started_at = max(attempt.started_at, event.at)
            return
        attempt.worker, attempt.host, attempt.queue = event.worker, event.host, event.queue
        attempt.devices = tuple(event.devices)
        attempt.started_at = event.at
        attempt.environment = self._share_environment(event.environment)
        attempt.working_dir = event.working_dir
        attempt.stdout_path, attempt.stderr_path = event.stdout_path, event.stderr_path
        attempt.log_mark = event.log_mark
        if attempt is trial.attempt and attempt.end is None:
            self._advance(trial, TrialStatus.RUNNING, "", event.worker, event.at)

    def _share_environment(self, environment: Body) -> Body:
        """Return an earlier attempt's equal environment if there is one, to save memory."""
        known = self._environments.setdefault(hash(encode_value(environment)), environment)
        return known if known == environment else environment

    def _decide(self, event: DecisionTaken) -> None:
        self._driven_at = event.at
        trial = self.trials[event.trial]
        if event.attempt == trial.attempt.number:
            attempt = trial.attempt
            attempt.intent = event.intent
            attempt.stop = Stop(event.by, event.reason, event.at, event.sequence)
            if not event.intent.hands_back:
                trial.decision = Decision(Action(event.action), event.reason)
                trial.restart = event.restart
            if event.action == Action.PAUSE.value and event.by == "user" and event.sequence:
                trial.pause_point = trial.checkpoint
            trial.reason = event.reason
            if trial.is_abandoned:
                self._replace_best(trial)

    def _end(self, event: AttemptEnded) -> None:
        trial = self.trials[event.trial]
        attempt = trial.attempts[event.attempt - 1]
        if attempt.end is not None:
            return
        if self.outside.pop(trial.id, None) is None:
            self.busy.pop(trial.id, None)
        attempt.end, attempt.ended_at, attempt.pid = event.end, event.at, event.pid
        attempt.exit_code, attempt.signal = event.exit_code, event.signal
        attempt.error_type, attempt.error = event.error_type, event.error
        attempt.stdout_tail, attempt.stderr_tail = event.stdout_tail, event.stderr_tail
        attempt.retired = event.retired
        attempt.usage = sound_usage(event.usage)
        if attempt.started_at is not None:
            ran_s = max(0.0, event.at - attempt.started_at)
            trial.run_s += ran_s
            self.run_s += ran_s
        if attempt is trial.attempt:
            status, reason = self._status_after(trial, attempt, outlived=event.outlived)
            if status is TrialStatus.QUEUED:
                bisect.insort(self.to_retry, trial.id, key=lambda id_: self.trials[id_].precedence)
            elif status is TrialStatus.PAUSED and trial.restart is not None:
                self.to_restart.append(trial.id)
            decided = trial.decision is not None and attempt.stop is not None
            by = attempt.stop.by if decided and attempt.stop else attempt.worker or "driver"
            self._advance(trial, status, reason, by, event.at)

    def _close(self, event: TrialClosed) -> None:
        self._driven_at = event.at
        trial = self.trials[event.trial]
        self._remove_from_waiting(trial)
        trial.restart = None
        self._advance(trial, TrialStatus(event.status), event.reason, event.by, event.at)

    def _label(self, request: Requested) -> None:
        """Execute a valid request for labels, without a driver. The driver refuses invalid ones."""
        labelled = self.trials.get(TrialId(request.trial)) if request.trial else self
        if request.action == LABEL and labelled is not None and request.arguments.keys() <= LABELS:
            with contextlib.suppress(ConfigurationError):
                labelled.labels = labelled.labels.after(request.arguments)
                self.carried_out[request.id] = request.trial

    def _remove_from_waiting(self, trial: Trial) -> None:
        for waiting in (self.to_retry, self.to_restart):
            if trial.id in waiting:
                waiting.remove(trial.id)

    def _answer(self, event: RequestAnswered) -> None:
        self._driven_at = event.at
        self.requests.pop(event.id, None)
        self.carried_out.pop(event.id, None)
        self._answered.append(event.id)

    def _drop_checkpoints(self, checkpoints: Sequence[str]) -> None:
        for checkpoint in map(CheckpointId, checkpoints):
            trial = self.trials.get(trial_of(checkpoint))
            if trial is not None:
                trial.checkpoints.pop(checkpoint, None)
                if trial.checkpoint == checkpoint:
                    trial.checkpoint = next(reversed(trial.checkpoints), CheckpointId(""))
                if trial.pause_point == checkpoint:
                    # The trial can't continue from that report: the remaining checkpoints may belong to later ones.
                    trial.pause_point = CheckpointId("")

    def _status_after(self, trial: Trial, attempt: Attempt, *, outlived: bool) -> tuple[TrialStatus, str]:
        """Return the status of a trial after the end of its attempt, and the reason."""
        end = attempt.end
        _note_progress(trial)
        if trial.decision is not None:
            # The decision counts, whether it caused the attempt's end or the attempt ended by itself before.
            trial.reached, trial.setbacks, trial.lost = 0.0, 0, 0
            by_hand = attempt.stop is not None and attempt.stop.by == "user"
            if trial.decision.action is Action.COMPLETE and by_hand:
                # A person may complete a trial without the metric.
                return TrialStatus.COMPLETED, trial.decision.reason
            if trial.decision.action is Action.COMPLETE:
                status, reason = self._status_of_completed(trial, trial.decision.reason)
                # A trial that has used its budget gets no other attempt.
                return (TrialStatus.FAILED if status is TrialStatus.QUEUED else status), reason
            if trial.decision.action is Action.FAIL:
                trial.failures += 1
            return trial.decision.action.effect.status, trial.decision.reason
        if end is AttemptEnd.COMPLETED:
            return self._status_of_completed(trial, "")
        if attempt.intent.hands_back:
            return TrialStatus.QUEUED, trial.reason
        if end is AttemptEnd.STOPPED:
            return TrialStatus.EARLY_STOPPED, attempt.error or "terminated by hand"
        if end is AttemptEnd.FAILED and outlived:
            # Another attempt would take as long.
            trial.failures += 1
            return TrialStatus.FAILED, _failure_line(attempt)
        if end is AttemptEnd.FAILED:
            return self._status_of_failed(trial, _failure_line(attempt))
        if attempt.error_type == FORGOTTEN:
            return TrialStatus.QUEUED, attempt.error
        broken = attempt.error_type == DEVICE_BROKEN
        if broken and _has_broken_another(trial):
            # Not a broken device: the trial itself raises an error with such a text.
            return self._status_of_failed(trial, f"{_failure_line(attempt)}, as on another device before")
        # A requeue without a driver is not the trial's fault. Nor is a preempted worker, if the trial made progress.
        is_workers_fault = attempt.error_type == WORKER_ERROR
        is_setback = end is AttemptEnd.LOST or not attempt.reports or broken or is_workers_fault
        if attempt.error_type != UNDRIVEN and is_setback:
            trial.setbacks += 1
            trial.lost += 1
        worker = attempt.worker or "its worker"
        cause = f"{'requeued' if end is AttemptEnd.HANDED_BACK else 'lost'} by {worker}"
        if attempt.could_not_start:
            cause = f"could not be started by {worker}: {_failure_line(attempt)}"
        elif broken:
            cause = f"device {','.join(attempt.devices)} of {worker} is broken: {_failure_line(attempt)}"
        elif is_workers_fault:
            cause = f"{cause} after an error of the worker: {_failure_line(attempt)}"
        if 0 <= self.max_lost < trial.lost:
            so_often = f"{trial.lost} attempts in a row were lost or requeued without progress"
            return TrialStatus.FAILED, f"{cause}; {so_often}, and max_lost={self.max_lost}"
        return TrialStatus.QUEUED, cause

    def _status_of_completed(self, trial: Trial, reason: str) -> tuple[TrialStatus, str]:
        if trial.has_metric or self.accept_no_report:
            return TrialStatus.COMPLETED, reason
        metrics = self.objective.metrics
        given, printed = (", ".join(f"{spelled(name)}: …" for name in metrics) for spelled in (repr, json.dumps))
        hint = (
            f"call mqtune.report({{{given}}}) in the training; a script without mqtune prints a line instead: "
            f"[tune-metric]: {{{printed}}}"
        )
        if not trial.last_metrics and not trial.attempt.reports:
            # A completed attempt may carry the error of a child process that tried to report.
            return self._status_of_failed(trial, f"ended without any report: {trial.attempt.error or hint}")
        last, number = trial.last_metrics, trial.attempt.reports
        keys = ", ".join(f"{name}={name_in_words(last[name])}" for name in metrics if name in last) or names_in_words(
            last
        )
        those = "its only report has no number" if number == 1 else f"none of its {number} reports has a number"
        return self._status_of_failed(trial, f"{those} for {self.objective} (the last has {keys}): {hint}")

    def _status_of_failed(self, trial: Trial, reason: str) -> tuple[TrialStatus, str]:
        trial.failures += 1
        trial.setbacks += 1
        again = self.max_failures < 0 or trial.failures <= self.max_failures
        return TrialStatus.QUEUED if again else TrialStatus.FAILED, reason


def _add_checkpoint(trial: Trial, checkpoint: CheckpointId, at: float, metrics: Metrics) -> None:
    trial.checkpoint = checkpoint
    trial.checkpoints[checkpoint] = SavedCheckpoint(checkpoint, at, metrics)


def _note_progress(trial: Trial) -> None:
    """Reset the setbacks of a trial that has made progress."""
    reached = trial.last_metrics.get(ITERATION, trial.reports)
    if is_number(reached) and reached > trial.reached:
        trial.reached, trial.setbacks, trial.lost = reached, 0, 0


def _has_broken_another(trial: Trial) -> bool:
    """Whether an earlier attempt has ended because another device was broken."""
    attempt = trial.attempt
    others = (other for other in trial.attempts if other.error_type == DEVICE_BROKEN)
    return any((other.worker, other.devices) != (attempt.worker, attempt.devices) for other in others)


def _failure_line(attempt: Attempt) -> str:
    """Return a failure in one line: its type, and the line of its error that says most.

    In a traceback that is the line with the type, which begins the message. It is the last such line, as a cause stands
    above its effect. Other errors end with it.
    """
    lines = [line.strip("| ") for line in attempt.error.strip().splitlines()]
    last = next((line for line in reversed(lines) if any(map(str.isalnum, line))), lines[-1] if lines else "")
    with_type = (line for line in reversed(lines) if line.partition(":")[0].rpartition(".")[2] == attempt.error_type)
    return next(with_type, None) or f"{attempt.error_type}: {last}"
