"""Trials: their statuses, transitions, attempts, reports and decisions."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NewType, TypeGuard

from mqtune.core.codec import Body, Number
from mqtune.core.errors import InvalidTransition
from mqtune.core.labels import NO_LABELS, Labels

if TYPE_CHECKING:
    from mqtune.core.resources import Resources
else:
    # A trial's process reads this module, and needs no resources.
    Resources = Any


class TrialStatus(Enum):
    """The status of a trial.

    ::

                        ┌────────────── resume ───────────────┐
                        ▼                                     │
        CANDIDATE ──▶ QUEUED ──▶ RUNNING ──▶ PAUSED ──────────┘
                        ▲          │ ├──▶ COMPLETED         │
                        └─ retry ──┘ ├──▶ EARLY_STOPPED ◀───┘ not resumed
                                     └──▶ FAILED          any that is not terminal ──▶ ABANDONED
    """

    CANDIDATE = "candidate"  #: has a config and no attempt
    QUEUED = "queued"  #: an attempt waits in a queue
    RUNNING = "running"  #: a worker has the lease on an attempt, or a person evaluates it outside
    PAUSED = "paused"  #: its process is gone; the scheduler may resume it
    COMPLETED = "completed"  #: ended by itself, or used its whole budget
    EARLY_STOPPED = "early_stopped"  #: the scheduler stopped it
    FAILED = "failed"  #: its attempts ended in errors and no retry is left, or a person says so
    ABANDONED = "abandoned"  #: given up by a person, or with its experiment

    @property
    def is_terminal(self) -> bool:
        """Whether the status is final."""
        return self in _TERMINAL

    @property
    def expecting_data(self) -> bool:
        """Whether the trial's reports count: it runs, is paused, or has ended with a result."""
        return self in _EXPECTING_DATA

    @property
    def is_deployed(self) -> bool:
        """Whether an attempt waits in a queue or runs."""
        return self is TrialStatus.QUEUED or self is TrialStatus.RUNNING

    @property
    def is_candidate(self) -> bool:
        """Whether the trial has no attempt yet."""
        return self is TrialStatus.CANDIDATE

    @property
    def is_queued(self) -> bool:
        """Whether an attempt waits in a queue."""
        return self is TrialStatus.QUEUED

    @property
    def is_running(self) -> bool:
        """Whether a worker has the lease on an attempt."""
        return self is TrialStatus.RUNNING

    @property
    def is_paused(self) -> bool:
        """Whether the trial is paused and may be resumed."""
        return self is TrialStatus.PAUSED

    @property
    def is_completed(self) -> bool:
        """Whether the trial ended by itself, or used its whole budget."""
        return self is TrialStatus.COMPLETED

    @property
    def is_early_stopped(self) -> bool:
        """Whether the scheduler stopped the trial."""
        return self is TrialStatus.EARLY_STOPPED

    @property
    def is_failed(self) -> bool:
        """Whether the trial's attempts ended in errors. Its config may be proposed again."""
        return self is TrialStatus.FAILED

    @property
    def is_abandoned(self) -> bool:
        """Whether the trial was abandoned. Its config is never proposed again."""
        return self is TrialStatus.ABANDONED


_TERMINAL: Final = frozenset(
    {TrialStatus.COMPLETED, TrialStatus.EARLY_STOPPED, TrialStatus.FAILED, TrialStatus.ABANDONED}
)
#: The statuses that may follow each status.
ALLOWED: Final[dict[TrialStatus, frozenset[TrialStatus]]] = {
    TrialStatus.CANDIDATE: frozenset({TrialStatus.QUEUED, TrialStatus.ABANDONED}),
    # A queued attempt fails if it can never run (import error, worker died on the claim). It is withdrawn from its
    # queue if its trial is paused, stopped or completed.
    TrialStatus.QUEUED: _TERMINAL | {TrialStatus.QUEUED, TrialStatus.RUNNING, TrialStatus.PAUSED},
    TrialStatus.RUNNING: _TERMINAL | {TrialStatus.QUEUED, TrialStatus.PAUSED},
    # The scheduler stops a paused trial early that it will never resume. A person may mark it as failed.
    TrialStatus.PAUSED: frozenset(
        {TrialStatus.QUEUED, TrialStatus.EARLY_STOPPED, TrialStatus.FAILED, TrialStatus.ABANDONED}
    ),
    **dict.fromkeys(_TERMINAL, frozenset()),
}

_EXPECTING_DATA: Final = frozenset(
    {TrialStatus.RUNNING, TrialStatus.PAUSED, TrialStatus.COMPLETED, TrialStatus.EARLY_STOPPED}
)


TrialId = NewType("TrialId", str)
#: The unique name of a checkpoint; see ``checkpoint_id``.
CheckpointId = NewType("CheckpointId", str)
Config = Body
Metrics = Body
#: The values of several metrics, turned so that lower is better.
Point = tuple[Number, ...]

#: Stands for the worker's name if a person evaluates a trial.
OUTSIDE: Final = "outside"

#: Metrics that mqtune adds to every report: the number of reports of the trial, the seconds since the previous report,
#: and the trial's total seconds. A checkpoint keeps the first and the last, so that the next attempt counts on.
ITERATION: Final = "training_iteration"
TIME_THIS_ITER: Final = "time_this_iter_s"
TIME_TOTAL: Final = "time_total_s"

#: The metric with the parameters of a trial that chooses them itself, such as an Optuna objective. They become the
#: trial's config.
PARAMETERS: Final = "mqtune.params"

#: The delay, in seconds, before a retry after two attempts in a row without progress. The first retry is not delayed.
#: Each further one multiplies the delay by the factor, up to the longest delay. Without a delay, a trial that fails at
#: its first line would be queued a hundred times a second, and each attempt leaves up to 48 kB in the journal.
RETRY_PAUSE_S: Final = 0.1
RETRY_PAUSE_FACTOR: Final = 2.0
LONGEST_RETRY_PAUSE_S: Final = 60.0

#: The error type of attempts that a worker requeues because the experiment has no driver; also the name of the order.
UNDRIVEN: Final = "undriven"
#: The error type of an attempt whose keys Redis has lost.
FORGOTTEN: Final = "forgotten"
#: The error type of an attempt that is requeued because its device is broken.
DEVICE_BROKEN: Final = "DeviceBroken"
#: The error type of an attempt that ended by an error of its worker.
WORKER_ERROR: Final = "WorkerError"

#: The first letter of a checkpoint's id. A persistent one is a folder in the store, one in memory a dict in Redis.
_PERSISTENT: Final = "p"
_IN_MEMORY: Final = "m"
#: The end of a checkpoint's id: the attempt, the number, and the mark of the claim if the id has one.
_NUMBERS: Final = re.compile(r"-(\d+)-(\d+)(?:\.\w+)?\Z", re.ASCII)


def checkpoint_id(trial: str, attempt: int, number: int, *, in_memory: bool, claim: str = "") -> CheckpointId:
    """Return the unique id of the *number*-th checkpoint (from 1) of an attempt.

    Attempt 0 stands for imported checkpoints, whose numbers have no order. *claim* marks the worker's claim of the
    attempt. If Redis loses the claim, another worker may claim the attempt again, and its ids still differ.
    """
    mark = f".{claim}" if claim else ""
    return CheckpointId(f"{_IN_MEMORY if in_memory else _PERSISTENT}-{trial}-{attempt}-{number}{mark}")


def trial_of(checkpoint: CheckpointId) -> TrialId:
    """Return the trial that saved a checkpoint."""
    return TrialId(checkpoint.partition("-")[2].rsplit("-", 2)[0])


def attempt_and_number(checkpoint: CheckpointId) -> tuple[int, int]:
    """Return the attempt and the number in a checkpoint's id, or zeros for another name."""
    numbers = _NUMBERS.search(checkpoint)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def is_checkpoint_of(checkpoint: object, trial: str, attempt: int, claim: str) -> bool:
    """Whether *checkpoint* is a valid id for a checkpoint of this attempt under this claim."""
    if type(checkpoint) is not str:
        return False
    name = CheckpointId(checkpoint)
    number = attempt_and_number(name)[1]
    return number > 0 and name == checkpoint_id(trial, attempt, number, in_memory=is_in_memory(name), claim=claim)


def is_in_memory(checkpoint: CheckpointId) -> bool:
    """Whether a checkpoint is a dict in Redis and not a folder in a store."""
    return checkpoint.startswith(f"{_IN_MEMORY}-")


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a metric's value is a number, NaN and infinity included. Bools are not."""
    # The first check is the fast way for most values.
    return value.__class__ is float or (isinstance(value, int | float) and not isinstance(value, bool))


class AttemptEnd(Enum):
    """How an attempt ended."""

    COMPLETED = "completed"  #: the trainable returned
    STOPPED = "stopped"  #: it was stopped
    PAUSED = "paused"  #: it was paused
    FAILED = "failed"  #: user code raised, exited or was killed
    LOST = "lost"  #: its worker's lease expired
    HANDED_BACK = "handed_back"  #: its worker was drained, preempted or could not start it, or its driver left


#: The values of all ends, for counts of attempts.
ENDS: Final = tuple(end.value for end in AttemptEnd)


class Intent(Enum):
    """The driver's order to an attempt. Redis stores it until the attempt ends."""

    RUN = "run"
    STOP = "stop"
    PAUSE = "pause"
    #: Stop as COMPLETED: the trial has used its whole budget.
    COMPLETE = "complete"
    #: Stop as ABANDONED: a person has given the trial up.
    ABANDON = "abandon"
    #: Requeue the trial: the attempt ends as HANDED_BACK.
    HAND_BACK = "hand_back"
    #: Requeue the trial so that another experiment gets its slot. It has as much time to save as for a pause.
    GIVE_WAY = "give_way"

    @property
    def effect(self) -> Effect:
        """The consequences for the attempt and its trial."""
        return _BY_INTENT[self]

    @property
    def hands_back(self) -> bool:
        """Whether the attempt is to end as HANDED_BACK, so that the trial runs again."""
        return self.effect.end is AttemptEnd.HANDED_BACK


class Action(Enum):
    """A decision on a trial. A scheduler returns one of the first four for a report."""

    CONTINUE = "continue"
    STOP = "stop"
    PAUSE = "pause"
    #: Stop it as COMPLETED: it has used its whole budget.
    COMPLETE = "complete"
    #: Stop it as ABANDONED: a person has given it up.
    ABANDON = "abandon"
    #: Stop it as FAILED: a person says so, or its reports are invalid.
    FAIL = "fail"

    @property
    def effect(self) -> Effect:
        """The consequences for the attempt and its trial."""
        return EFFECTS[self.value]


class Effect(NamedTuple):
    """The consequences of a decision to end or steer an attempt.

    Attributes:
        intent: the order that the worker gets.
        end: how an attempt ends that obeys the order.
        status: the status of the trial after that.
        reach: an intent with a larger number replaces one with a smaller number.
        keeps_state: whether the trial may save a checkpoint and resume.
    """

    intent: Intent
    end: AttemptEnd
    status: TrialStatus
    reach: int
    keeps_state: bool = False

    def replaces(self, other: Effect) -> bool:
        """Whether this decision on a trial may replace another one. Abandoning replaces all others."""
        return self.reach > other.reach or self.status is TrialStatus.ABANDONED is not other.status


#: The effects by the name of the decision in the journal.
EFFECTS: Final = {
    "continue": Effect(Intent.RUN, AttemptEnd.COMPLETED, TrialStatus.RUNNING, 0),
    "pause": Effect(Intent.PAUSE, AttemptEnd.PAUSED, TrialStatus.PAUSED, 1, keeps_state=True),
    "hand_back": Effect(Intent.HAND_BACK, AttemptEnd.HANDED_BACK, TrialStatus.QUEUED, 1, keeps_state=True),
    "give_way": Effect(Intent.GIVE_WAY, AttemptEnd.HANDED_BACK, TrialStatus.QUEUED, 1, keeps_state=True),
    "stop": Effect(Intent.STOP, AttemptEnd.STOPPED, TrialStatus.EARLY_STOPPED, 2),
    "complete": Effect(Intent.COMPLETE, AttemptEnd.COMPLETED, TrialStatus.COMPLETED, 2),
    "abandon": Effect(Intent.ABANDON, AttemptEnd.STOPPED, TrialStatus.ABANDONED, 2),
    # The worker gets an order to stop. The decision in the journal makes the trial FAILED.
    "fail": Effect(Intent.STOP, AttemptEnd.STOPPED, TrialStatus.FAILED, 2),
}
_BY_INTENT: Final = {effect.intent: effect for effect in reversed(EFFECTS.values())}


@dataclass(frozen=True, slots=True)
class Restart:
    """How a paused trial's next attempt starts: config, checkpoint, and the trial that saved it."""

    config: Config
    checkpoint: CheckpointId = CheckpointId("")
    source: TrialId | None = None
    by: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        # In a message, an empty text stands for None.
        object.__setattr__(self, "source", self.source or None)


class Decision(NamedTuple):
    """A scheduler's decision for a report, with a short reason.

    For a pause, ``source`` may name another trial. The paused trial will then continue from that trial's current
    checkpoint, which is kept until it does.
    """

    action: Action
    reason: str = ""
    source: TrialId | None = None


CONTINUE: Final = Decision(Action.CONTINUE)


class Report(NamedTuple):
    """One metrics dict from a trainable.

    ``sequence`` counts from 1 within the attempt, without gaps. ``timestamp`` is the time of the report by the server's
    clock, in seconds since the epoch (UTC). It never goes backwards within a trial. ``checkpoint`` is the checkpoint
    that was saved with the report, or empty.
    """

    trial: TrialId
    attempt: int
    sequence: int
    timestamp: float
    metrics: Metrics
    checkpoint: CheckpointId = CheckpointId("")


#: The defaults of a report's last fields, in order. Messages may omit fields from the end.
REPORT_DEFAULTS: Final = tuple(Report._field_defaults.values())
_DEFAULT_TYPES: Final = [*map(type, REPORT_DEFAULTS)]


def are_report_fields(values: Sequence[object]) -> bool:
    """Whether these values fit the optional fields at the end of a report, in order."""
    return list(map(type, values)) == _DEFAULT_TYPES[: len(values)]


class SavedCheckpoint(NamedTuple):
    """An existing checkpoint, with its time and the metrics of its report or the one before."""

    id: CheckpointId
    at: Number
    metrics: Metrics


class Transition(NamedTuple):
    """A trial's step to a status, with its time (seconds since the epoch, UTC) and reason.

    ``by`` is the worker's name, "scheduler", "searcher", "driver" or "user", or another name in the event.
    """

    status: TrialStatus
    at: Number
    reason: str
    by: str


class Stop(NamedTuple):
    """An order to end an attempt. ``sequence`` is the number of the report that caused it, or 0."""

    by: str
    reason: str
    at: Number
    sequence: int


class FurtherTask(NamedTuple):
    """A task of an attempt after its first one: its number, and where it runs."""

    number: int
    worker: str
    host: str
    queue: str
    devices: tuple[str, ...]
    stdout_path: str = ""
    stderr_path: str = ""
    log_mark: str = ""


@dataclass(slots=True)
class Attempt:
    """One run of a trial on one worker. Times are seconds since the epoch (UTC).

    Attributes:
        checkpoint: the checkpoint that it starts from; empty for none.
        source: the trial that saved that checkpoint, if it is another trial.
        environment: the versions of Python, of the packages that the trainable has imported, and of its code.
        working_dir: with ``Process(working_dir="trial")``, its own folder on ``host``; else empty.
        retired: why its process runs no further attempt; else empty.
        usage: the resources that it used, by the names in docs/workers.md. Empty until it has ended.
        resources: its own resources, if they depend on the config; else None.
        further_tasks: its tasks after task 0. ``worker`` and the other single values are those of task 0.
    """

    number: int
    queued_at: Number
    config: Config = field(default_factory=dict)
    checkpoint: CheckpointId = CheckpointId("")
    source: TrialId | None = None
    resources: Resources | None = None
    worker: str = ""
    host: str = ""
    queue: str = ""
    environment: Body = field(default_factory=dict)
    pid: int = 0
    devices: tuple[str, ...] = ()
    started_at: Number | None = None
    ended_at: Number | None = None
    end: AttemptEnd | None = None
    intent: Intent = Intent.RUN
    stop: Stop | None = None
    exit_code: int | None = None
    signal: int | None = None
    error_type: str = ""
    error: str = ""
    retired: str = ""
    working_dir: str = ""
    stdout_path: str = ""
    stderr_path: str = ""
    log_mark: str = ""
    stdout_tail: str = ""
    stderr_tail: str = ""
    usage: Body = field(default_factory=dict)
    reports: int = 0
    further_tasks: tuple[FurtherTask, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether the attempt's reports count: it has not ended, and has no order to end."""
        return self.end is None and self.intent is Intent.RUN

    def further_task(self, number: int) -> FurtherTask | None:
        """Return a further task by its number, or None."""
        return next((task for task in self.further_tasks if task.number == number), None)

    @property
    def could_not_start(self) -> bool:
        """Whether the worker requeued the attempt because its process could not start."""
        has_error = self.error_type not in ("", UNDRIVEN)
        return self.end is AttemptEnd.HANDED_BACK and has_error and not self.pid


#: The first setback in a row with a delay, and a number of doublings that reaches the longest delay.
_PAUSED_FROM: Final = 2
_MOST_DOUBLINGS: Final = 32


@dataclass(slots=True)
class Trial:
    """One config under evaluation. Only the experiment's fold changes it.

    It has summaries of its reports, and not the reports themselves, so its size does not grow with them.
    ``best_metrics`` and ``average`` ignore NaN and missing values of the experiment's metric. With several metrics,
    ``best_metrics`` and ``point`` come from the last report that has a number other than NaN for each metric.
    """

    id: TrialId
    config: Config
    status: TrialStatus = TrialStatus.CANDIDATE
    attempts: list[Attempt] = field(default_factory=list)
    #: All statuses of the trial, in order.
    history: list[Transition] = field(default_factory=list)
    #: The trial whose checkpoint or config its first attempt started with.
    parent: TrialId | None = None
    #: The longest duration of an attempt, in seconds; None for no limit.
    timeout_s: Number | None = None
    #: Its tags and notes.
    labels: Labels = NO_LABELS
    #: The user's own unique name for the trial, or empty.
    key: str = ""
    #: Whether a person evaluates it outside, and no worker runs it.
    outside: bool = False
    #: The decision to end the current attempt. Reports after it are late.
    decision: Decision | None = None
    #: If a user's loop has paused it on a report, the checkpoint that it had at that report.
    pause_point: CheckpointId | None = None
    #: How the trial restarts as soon as it is paused. None if it stays paused.
    restart: Restart | None = None
    #: The checkpoint from which it may continue: its newest one, or the one that its attempt started from.
    checkpoint: CheckpointId = CheckpointId("")
    #: Its own checkpoints that still exist, oldest first.
    checkpoints: dict[CheckpointId, SavedCheckpoint] = field(default_factory=dict)
    #: The total duration of its ended attempts, in seconds.
    run_s: Number = 0.0
    reason: str = ""
    reports: int = 0
    late_reports: int = 0
    #: The metrics of the current attempt's last late report.
    late_metrics: Metrics = field(default_factory=dict)
    failures: int = 0
    #: The last iteration at the end of its attempts, by which progress is noticed. A decision resets it to 0.
    reached: Number = 0.0
    #: How many attempts in a row ended without progress: failed, lost or requeued. ``lost`` leaves out failed ones.
    setbacks: int = 0
    lost: int = 0
    has_metric: bool = False
    last_metrics: Metrics = field(default_factory=dict)
    last_timestamp: Number = 0.0
    best_metrics: Metrics = field(default_factory=dict)
    best_value: Number = field(default=math.nan, compare=False)  # NaN does not equal itself.
    metric_sum: Number = 0.0
    metric_count: int = 0
    point: Point = ()

    @property
    def attempt(self) -> Attempt:
        """The current attempt, which is the last one. IndexError before the first is queued."""
        return self.attempts[-1]

    @property
    def precedence(self) -> tuple[bool, int, str]:
        """The sort key of trials that wait to run again: trials with progress first, then by number."""
        return not (self.checkpoints or self.reports), len(self.id), self.id

    @property
    def retry_pause_s(self) -> float:
        """The delay before the next retry, in seconds. It is 0 after a preemption."""
        if self.setbacks < _PAUSED_FROM or self.attempt.intent.hands_back:
            return 0.0
        doubled = min(self.setbacks - _PAUSED_FROM, _MOST_DOUBLINGS)
        return min(RETRY_PAUSE_S * RETRY_PAUSE_FACTOR**doubled, LONGEST_RETRY_PAUSE_S)

    @property
    def why_it_pauses(self) -> str:
        """Why the trial does not run again immediately, as text for people."""
        return (
            f"its last {self.setbacks} attempts ended before they got anywhere, so it runs again only "
            f"{self.retry_pause_s:.3g} s after the last one"
        )

    @property
    def is_busy(self) -> bool:
        """Whether the trial occupies a slot: from QUEUED until its attempt has ended."""
        return (self.status is TrialStatus.QUEUED or self.status is TrialStatus.RUNNING) and not self.outside

    @property
    def is_abandoned(self) -> bool:
        """Whether the trial is or will be abandoned. Its reports no longer count."""
        return self.status is TrialStatus.ABANDONED or (
            self.decision is not None and self.decision.action is Action.ABANDON
        )

    @property
    def time_created(self) -> datetime | None:
        """The time when the trial was created, in UTC."""
        return self._first(TrialStatus.CANDIDATE)

    @property
    def time_queued(self) -> datetime | None:
        """The time when the first attempt was queued, in UTC."""
        return self._first(TrialStatus.QUEUED)

    @property
    def time_run_started(self) -> datetime | None:
        """The time when the first attempt was claimed, in UTC."""
        return self._first(TrialStatus.RUNNING)

    @property
    def time_completed(self) -> datetime | None:
        """The time when the trial reached its final status, in UTC. None before that."""
        return _utc(self.history[-1].at) if self.status.is_terminal and self.history else None

    def _first(self, status: TrialStatus) -> datetime | None:
        return next((_utc(step.at) for step in self.history if step.status is status), None)

    @property
    def completed_successfully(self) -> bool:
        """Whether the trial is COMPLETED."""
        return self.status is TrialStatus.COMPLETED

    @property
    def did_not_complete(self) -> bool:
        """Whether the trial has ended with another status than COMPLETED."""
        return self.status.is_terminal and not self.completed_successfully

    @property
    def average(self) -> float:
        """The mean of the experiment's metric over all reports with a number for it, or NaN."""
        return self.metric_sum / self.metric_count if self.metric_count else math.nan

    def check(self, status: TrialStatus) -> None:
        """Check that *status* may follow the current status.

        Raises:
            InvalidTransition: ``ALLOWED`` has no such step.
        """
        allowed = ALLOWED[self.status]
        if status not in allowed:
            ways = ", ".join(sorted(s.name for s in allowed)) or "nothing else: the status is final"
            raise InvalidTransition(
                f"trial {self.id} is {self.status.name} and can't become {status.name}; it may become {ways}"
            )

    def advance(self, status: TrialStatus, *, reason: str = "", by: str = "", at: float = 0.0) -> None:
        """Set the status and add it to the history.

        Raises:
            InvalidTransition: ``ALLOWED`` has no such step. Nothing was changed.
        """
        self.check(status)
        self.history.append(Transition(status, at, reason, by))
        self.status = status
        self.reason = reason


def _set_status(trial: Trial, status: TrialStatus) -> None:
    # A new trial has no history yet.
    history = getattr(trial, "history", None)
    if history and history[-1].status is not status:
        raise InvalidTransition(
            f"trial {trial.id} is {trial.status.name} and can't be set to {status.name}: only events change a status; "
            f"use stop, pause, complete or abandon of tuner.trial({trial.id!r})"
        )
    _STATUS.__set__(trial, status)


_STATUS: Final = Trial.__dict__["status"]
# A status that differs from the trial's events would mislead all readers. Only this attribute is checked, because a
# check of all attributes would slow down each report.
Trial.status = property(_STATUS.__get__, _set_status)  # type: ignore[assignment, misc]


def _utc(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
