"""A trial, its attempts, and the one table of what may follow what."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple, NewType

from mqtune.errors import InvalidTransition

__all__ = [
    "ALLOWED",
    "CONTINUE",
    "Action",
    "Attempt",
    "AttemptEnd",
    "Config",
    "Decision",
    "Intent",
    "Report",
    "Trial",
    "TrialId",
    "TrialStatus",
]

TrialId = NewType("TrialId", str)
Config = dict[str, Any]
Metrics = dict[str, Any]


class TrialStatus(Enum):
    """The status of a trial.

    ::

                        ┌────────────── resume ───────────────┐
                        ▼                                     │
        CANDIDATE ──▶ STAGED ──▶ RUNNING ──▶ PAUSED ──────────┘
                        ▲          │ ├──▶ COMPLETED
                        └─ retry ──┘ ├──▶ EARLY_STOPPED
                                     └──▶ FAILED          any that is not terminal ──▶ ABANDONED
    """

    CANDIDATE = "candidate"  #: has a config, nobody was asked to run it
    STAGED = "staged"  #: an attempt waits in a queue
    RUNNING = "running"  #: a worker holds the lease on an attempt
    PAUSED = "paused"  #: its process is gone; the scheduler may resume it
    COMPLETED = "completed"  #: ended by itself, or used the whole budget it was given
    EARLY_STOPPED = "early_stopped"  #: the scheduler stopped it
    FAILED = "failed"  #: its attempts ended in errors, and no retry is left
    ABANDONED = "abandoned"  #: given up by a person, or with its experiment

    @property
    def is_terminal(self) -> bool:
        """Whether nothing can follow."""
        return not ALLOWED[self]


#: What may follow each status.
ALLOWED: Final[dict[TrialStatus, frozenset[TrialStatus]]] = {
    TrialStatus.CANDIDATE: frozenset({TrialStatus.STAGED, TrialStatus.ABANDONED}),
    # A staged attempt that can never run (its trainable can't be imported, its worker died on the claim) fails.
    TrialStatus.STAGED: frozenset(
        {
            TrialStatus.RUNNING,
            TrialStatus.STAGED,
            TrialStatus.FAILED,
            TrialStatus.EARLY_STOPPED,
            TrialStatus.ABANDONED,
        }
    ),
    TrialStatus.RUNNING: frozenset(
        {
            TrialStatus.STAGED,
            TrialStatus.PAUSED,
            TrialStatus.COMPLETED,
            TrialStatus.EARLY_STOPPED,
            TrialStatus.FAILED,
            TrialStatus.ABANDONED,
        }
    ),
    TrialStatus.PAUSED: frozenset({TrialStatus.STAGED, TrialStatus.ABANDONED}),
    TrialStatus.COMPLETED: frozenset(),
    TrialStatus.EARLY_STOPPED: frozenset(),
    TrialStatus.FAILED: frozenset(),
    TrialStatus.ABANDONED: frozenset(),
}


class AttemptEnd(Enum):
    """How an attempt ended."""

    COMPLETED = "completed"  #: the trainable returned
    STOPPED = "stopped"  #: it was told to stop, and did or was killed
    PAUSED = "paused"  #: it was told to pause, and did
    FAILED = "failed"  #: user code raised, exited or was killed
    LOST = "lost"  #: its worker's lease ran out
    HANDED_BACK = "handed_back"  #: its worker was preempted or drained, or its driver interrupted


class Intent(Enum):
    """What the driver wants of an attempt; durable in Redis until the attempt ends."""

    RUN = "run"
    STOP = "stop"
    PAUSE = "pause"
    #: Stop, as COMPLETED: the trial has used the whole budget it was given.
    COMPLETE = "complete"
    #: Give the attempt back: it ends as HANDED_BACK and the trial may run again.
    HAND_BACK = "hand_back"


class Action(Enum):
    """What a scheduler wants done with a trial after a report."""

    CONTINUE = "continue"
    STOP = "stop"
    PAUSE = "pause"
    #: Stop it as COMPLETED: it has used the whole budget it was given.
    COMPLETE = "complete"


class Decision(NamedTuple):
    """What a scheduler returns for a report, and why in a few words."""

    action: Action
    reason: str = ""


CONTINUE: Final = Decision(Action.CONTINUE)


class Report(NamedTuple):
    """One metrics dict from a trainable.

    ``sequence`` counts from 1 within the attempt, without gaps. ``timestamp`` is the worker's clock in
    seconds since the epoch (UTC) and never goes backwards within a trial.
    """

    trial: TrialId
    attempt: int
    sequence: int
    timestamp: float
    metrics: Metrics


@dataclass(slots=True)
class Attempt:
    """One run of a trial on one worker; times are seconds since the epoch (UTC)."""

    number: int
    staged_at: float
    worker: str = ""
    host: str = ""
    pid: int = 0
    devices: tuple[str, ...] = ()
    started_at: float | None = None
    ended_at: float | None = None
    end: AttemptEnd | None = None
    intent: Intent = Intent.RUN
    exit_code: int | None = None
    signal: int | None = None
    error_type: str = ""
    error: str = ""
    stdout_path: str = ""
    stderr_path: str = ""
    stdout_tail: str = ""
    stderr_tail: str = ""
    reports: int = 0


@dataclass(slots=True)
class Trial:
    """One config under evaluation; only the experiment's fold changes it, everybody may read it.

    Holds summaries of its reports, never the reports themselves, so that its size does not grow with them.
    ``best_metrics`` and ``average`` leave NaN and missing values of the experiment's metric out.
    """

    id: TrialId
    config: Config
    status: TrialStatus = TrialStatus.CANDIDATE
    attempts: list[Attempt] = field(default_factory=list)
    #: The decision that ends the current attempt, from when it is taken; its reports are late from then on.
    decision: Decision | None = None
    reason: str = ""
    reports: int = 0
    late_reports: int = 0
    failures: int = 0
    has_metric: bool = False
    last_metrics: Metrics = field(default_factory=dict)
    last_timestamp: float = 0.0
    best_metrics: Metrics = field(default_factory=dict)
    best_value: float = math.nan
    metric_sum: float = 0.0
    metric_count: int = 0

    @property
    def attempt(self) -> Attempt:
        """The current attempt, which is the last one; IndexError before the first is staged."""
        return self.attempts[-1]

    @property
    def is_busy(self) -> bool:
        """Whether it holds a place: from STAGED until its attempt's process group is gone."""
        return self.status is TrialStatus.STAGED or self.status is TrialStatus.RUNNING

    @property
    def average(self) -> float:
        """The mean of the experiment's metric over all reports that had a number for it, or NaN."""
        return self.metric_sum / self.metric_count if self.metric_count else math.nan

    def advance(self, status: TrialStatus, *, reason: str = "") -> None:
        """Go to *status*.

        Raises:
            InvalidTransition: the table ``ALLOWED`` has no such step; nothing was changed.
        """
        allowed = ALLOWED[self.status]
        if status not in allowed:
            ways = ", ".join(sorted(s.name for s in allowed)) or "nothing: the status is terminal"
            raise InvalidTransition(
                f"trial {self.id} is {self.status.name} and can't become {status.name}; what may follow: {ways}"
            )
        self.status = status
        self.reason = reason
