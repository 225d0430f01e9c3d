"""Shared state of the in-memory journals of a process, in place of a Redis server."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from mqtune.core.codec import REPORTS_PREFIX
from mqtune.core.tasks import task_in, task_name, task_names
from mqtune.core.trial import CheckpointId, TrialId
from mqtune.journal.base import Answer, Chapter, Entry, OnLoss, entry_order, revocation, tasks_in

#: Maximum number of checked unread entries, as in lose.lua.
_LOOK: Final = 100


@dataclass(slots=True)
class TrialState:
    """State of a trial's last attempt."""

    attempt: int
    assignment: bytes
    state: str = "staged"
    #: When it was staged. Infinite if its entry in the list of staged attempts was lost.
    staged_at: float = 0.0
    token: str = ""
    sequence: int = 0
    timestamp: float = 0.0
    #: Pending orders: an intent, or words by kind.
    intent: str = ""
    orders: dict[str, str] = field(default_factory=dict)
    decided: str = ""
    ended_by: str = ""
    #: When its lease expires. Infinite if its lease was lost.
    lease_until: float = 0.0
    closed: bytes = b""
    saved: str = ""
    held_until: float = 0.0
    held_by: str = ""
    #: When its worker began to import the trainable.
    imports_at: float | None = None
    #: For one of several tasks: their plan, its worker, the end of its reservation, its start event until all are
    #: taken, and its address.
    task_plan: str = ""
    worker: str = ""
    reserved_until: float = -math.inf
    start: bytes = b""
    address: str = ""
    #: For several tasks: the cause and the event of the task's end that ended the attempt.
    ended_as: str = ""
    end: bytes = b""

    def is_taken(self, now: float) -> bool:
        """Whether a worker has reserved this task while others of its attempt are unclaimed."""
        return self.state == "staged" and bool(self.token) and self.reserved_until > now

    @property
    def answer(self) -> Answer:
        """The orders of the attempt, as its worker gets them."""
        return self.intent or " ".join(self.orders.values())


@dataclass(slots=True)
class MemoryExperiment:
    """The state of an experiment."""

    entries: list[Entry] = field(default_factory=list)
    #: Number of earlier entries that are deleted or in chapters.
    forgotten: int = 0
    chapters: list[Chapter] = field(default_factory=list)
    #: The first entry of all, after it is in a chapter.
    first: Entry | None = None
    #: Bytes of all entries, and the limit at which reports have to wait; 0 for no limit.
    size: int = 0
    most_bytes: int = 0
    trials: dict[TrialId, TrialState] = field(default_factory=dict)
    checkpoints: dict[CheckpointId, bytes] = field(default_factory=dict)
    #: Ids of requests, with the ids of their entries.
    requests: dict[str, str] = field(default_factory=dict)
    dropped: tuple[CheckpointId, ...] = ()
    definition: bytes | None = None
    holder: str = ""
    driver: str = ""
    driver_since: float = 0.0
    driver_until: float | None = None
    on_loss: OnLoss = field(default_factory=OnLoss)
    epoch: int = 0
    #: The last note of each kind on how attempts do: its time, and the worker, or the worker and its device.
    fared: dict[str, tuple[float, str]] = field(default_factory=dict)

    def index_after(self, entry: str) -> int:
        """Return the index of the first entry after an id."""
        entries = self.entries
        if not self.forgotten and entries and entries[-1].id == entry:
            return len(entries)
        order = entry_order(entry)
        # The id's number is a close lower bound.
        at = max(order[0] - self.forgotten, 0)
        while at < len(entries) and entry_order(entries[at].id) <= order:
            at += 1
        return at

    def has_reports(self, trial: TrialId, after: str) -> bool:
        """Whether a trial has reports after an entry. True if there are too many entries to check."""
        entries = self.entries[self.index_after(after) if after else 0 :][:_LOOK]
        reports = (entry.data for entry in entries if entry.data.startswith(REPORTS_PREFIX))
        return any(trial.encode() in data for data in reports) or len(entries) == _LOOK

    def tasks(self, trial: TrialId, task_plan: str) -> list[TrialState]:
        """Return the existing tasks of a trial's attempt."""
        return [self.trials[name] for name in task_names(trial, tasks_in(task_plan)) if name in self.trials]

    def standing(self, trial: TrialId, attempt: int) -> tuple[str, list[TrialState]]:
        """Return the state and tasks of an attempt.

        The state is "running" if a task runs, "ended" if all have ended, and "staged" otherwise. It is empty if a task
        is missing or belongs to another attempt.
        """
        first = self.trials.get(trial)
        if first is None:
            return "", []
        tasks = self.tasks(trial, first.task_plan)
        is_whole = len(tasks) == tasks_in(first.task_plan) and all(task.attempt == attempt for task in tasks)
        states = {task.state for task in tasks}
        return next(state for state in ("running", "staged", "ended") if state in states) if is_whole else "", tasks

    def forget_tasks(self, trial: TrialId, task_plan: str = "") -> None:
        """Delete the further tasks of a trial. *task_plan* has their number, if some are missing."""
        for name in task_names(trial, tasks_in(task_plan))[1:]:
            self.trials.pop(name, None)
        number = 1
        while self.trials.pop(task_name(trial, number), None) is not None:
            number += 1

    def is_revoked(self, trial: TrialId, attempt: int) -> bool:
        """Whether the revocation of an attempt was requested."""
        return revocation(trial, attempt) in self.requests

    def comes_after(self, trial: TrialId, task_plan: str, worker: str, now: float) -> bool:
        """Whether this worker must first take a task of an attempt that was staged earlier.

        That attempt has an equal plan, and lacks a task that the worker could take.
        """
        listed = (name for name, state in self.trials.items() if state.state == "staged" and state.staged_at < math.inf)
        for other in dict.fromkeys(task_in(name)[0] for name in listed):
            if other == trial:
                return False
            its = self.trials.get(other)
            if its is not None and its.task_plan == task_plan and not self.is_revoked(other, its.attempt):
                tasks = self.tasks(other, task_plan)
                lacks = any(task.state == "staged" and not task.is_taken(now) for task in tasks)
                is_here = any(task.is_taken(now) and task.worker == worker for task in tasks)
                if lacks and not (is_apart(task_plan) and is_here):
                    return True
        return False


def is_apart(task_plan: str) -> bool:
    """Whether each task of an attempt needs its own worker."""
    return ":apart:" in task_plan


class MemoryServer:
    """Shared state of a process's journals, in place of a Redis server.

    Args:
        clock: monotonic seconds for leases and locks.
        forgets: whether to delete entries after they are read, so that memory doesn't grow. For experiments with one
            reader.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, forgets: bool = False) -> None:
        self.clock = clock
        self.forgets = forgets
        self.changed = threading.Condition(threading.RLock())
        self.experiments: dict[str, MemoryExperiment] = {}
        #: Number of driver epochs so far. It survives losses of this server.
        self.epochs = 0
        #: Number of losses. Lost entry ids are never reused.
        self.losses = 0
