"""A trial's status, and the one table of what may follow what."""

from __future__ import annotations

from enum import Enum
from typing import Final

__all__ = ["ALLOWED", "TrialStatus"]


class TrialStatus(Enum):
    """The status of a trial.

    ::

                        ┌────────────── resume ───────────────┐
                        ▼                                     │
        CANDIDATE ──▶ STAGED ──▶ RUNNING ──▶ PAUSED ──────────┘
                        ▲          │ ├──▶ COMPLETED         │
                        └─ retry ──┘ ├──▶ EARLY_STOPPED ◀───┘ not resumed
                                     └──▶ FAILED          any that is not terminal ──▶ ABANDONED
    """

    CANDIDATE = "candidate"  #: has a config, nobody was asked to run it
    STAGED = "staged"  #: an attempt waits in a queue
    RUNNING = "running"  #: a worker holds the lease on an attempt
    PAUSED = "paused"  #: its process is gone; the scheduler may resume it
    COMPLETED = "completed"  #: ended by itself, or used the whole budget it was given
    EARLY_STOPPED = "early_stopped"  #: the scheduler stopped it
    FAILED = "failed"  #: its attempts ended in errors and no retry is left, or a person says so
    ABANDONED = "abandoned"  #: given up by a person, or with its experiment

    @property
    def is_terminal(self) -> bool:
        """Whether nothing can follow."""
        return not ALLOWED[self]

    @property
    def expecting_data(self) -> bool:
        """Whether its reports count: it runs, has a past that it may go on from, or ended with what it has."""
        return self in _EXPECTING_DATA

    @property
    def is_deployed(self) -> bool:
        """Whether an attempt waits in a queue, or runs."""
        return self is TrialStatus.STAGED or self is TrialStatus.RUNNING

    @property
    def is_candidate(self) -> bool:
        """Whether nobody was asked to run it yet."""
        return self is TrialStatus.CANDIDATE

    @property
    def is_staged(self) -> bool:
        """Whether an attempt waits in a queue."""
        return self is TrialStatus.STAGED

    @property
    def is_running(self) -> bool:
        """Whether a worker holds the lease on an attempt."""
        return self is TrialStatus.RUNNING

    @property
    def is_paused(self) -> bool:
        """Whether it may be resumed."""
        return self is TrialStatus.PAUSED

    @property
    def is_completed(self) -> bool:
        """Whether it ended with all that it was meant to do."""
        return self is TrialStatus.COMPLETED

    @property
    def is_early_stopped(self) -> bool:
        """Whether the scheduler stopped it."""
        return self is TrialStatus.EARLY_STOPPED

    @property
    def is_failed(self) -> bool:
        """Whether its attempts ended in errors; its config may be proposed again."""
        return self is TrialStatus.FAILED

    @property
    def is_abandoned(self) -> bool:
        """Whether it was given up; its config is never proposed again."""
        return self is TrialStatus.ABANDONED


#: What may follow each status.
ALLOWED: Final[dict[TrialStatus, frozenset[TrialStatus]]] = {
    TrialStatus.CANDIDATE: frozenset({TrialStatus.STAGED, TrialStatus.ABANDONED}),
    # A staged attempt that can never run (its trainable can't be imported, its worker died on the claim) fails; one that
    # waits in a queue while its trial is paused, stopped or completed is taken back.
    TrialStatus.STAGED: frozenset(
        {
            TrialStatus.RUNNING,
            TrialStatus.STAGED,
            TrialStatus.PAUSED,
            TrialStatus.FAILED,
            TrialStatus.COMPLETED,
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
    # A paused trial that its scheduler will never resume is stopped early, where it is; a person may have it fail.
    TrialStatus.PAUSED: frozenset(
        {TrialStatus.STAGED, TrialStatus.EARLY_STOPPED, TrialStatus.FAILED, TrialStatus.ABANDONED}
    ),
    TrialStatus.COMPLETED: frozenset(),
    TrialStatus.EARLY_STOPPED: frozenset(),
    TrialStatus.FAILED: frozenset(),
    TrialStatus.ABANDONED: frozenset(),
}

_EXPECTING_DATA: Final = frozenset(
    {TrialStatus.RUNNING, TrialStatus.PAUSED, TrialStatus.COMPLETED, TrialStatus.EARLY_STOPPED}
)
