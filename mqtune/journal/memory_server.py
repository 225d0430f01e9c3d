"""The state that the in-memory journals of one process share, in place of a Redis server."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from mqtune.core.codec import REPORTS_PREFIX
from mqtune.core.seats import seat_in, seat_name, seat_names
from mqtune.core.trial import CheckpointId, TrialId
from mqtune.journal.base import Answer, Chapter, Entry, OnLoss, entry_order, revocation, seats_in

#: How many entries are looked at that a driver has not read, as in lose.lua.
_LOOK: Final = 100


@dataclass(slots=True)
class TrialState:
    """The state of a trial's last attempt."""

    attempt: int
    assignment: bytes
    state: str = "staged"
    #: Infinite for one that has lost its place among those that nobody has claimed.
    staged_at: float = 0.0
    token: str = ""
    sequence: int = 0
    timestamp: float = 0.0
    #: What the driver wants: an intent, or words by their kind.
    intent: str = ""
    orders: dict[str, str] = field(default_factory=dict)
    decided: str = ""
    ended_by: str = ""
    #: Infinite for one that has lost its place among the leases.
    lease_until: float = 0.0
    closed: bytes = b""
    saved: str = ""
    held_until: float = 0.0
    held_by: str = ""
    #: Since when its worker has been importing the trainable for it.
    imports_at: float | None = None
    #: Of a seat of a gang: its worker, until when its claim holds it, its start until all are taken, and where the
    #: others reach it.
    gang: str = ""
    worker: str = ""
    seated_until: float = -math.inf
    start: bytes = b""
    address: str = ""
    #: By what the seat has ended whose end counts, and that end.
    ended_as: str = ""
    end: bytes = b""

    def is_taken(self, now: float) -> bool:
        """Whether a claim holds it, while it is a seat of a gang that waits for others."""
        return self.state == "staged" and bool(self.token) and self.seated_until > now

    @property
    def answer(self) -> Answer:
        """The answer to the attempt's worker."""
        return self.intent or " ".join(self.orders.values())


@dataclass(slots=True)
class ExperimentState:
    """The state of an experiment."""

    entries: list[Entry] = field(default_factory=list)
    #: How many entries before these are forgotten, or in chapters.
    forgotten: int = 0
    chapters: list[Chapter] = field(default_factory=list)
    #: The first entry of all, once it is in a chapter.
    first: Entry | None = None
    #: The bytes of all entries, and how many there may be before trials are told to wait; 0 for any number.
    size: int = 0
    most_bytes: int = 0
    trials: dict[TrialId, TrialState] = field(default_factory=dict)
    checkpoints: dict[CheckpointId, bytes] = field(default_factory=dict)
    #: The ids of requests, each with that of its entry.
    requests: dict[str, str] = field(default_factory=dict)
    dropped: tuple[CheckpointId, ...] = ()
    definition: bytes | None = None
    holder: str = ""
    driver: str = ""
    driver_since: float = 0.0
    driver_until: float | None = None
    on_loss: OnLoss = field(default_factory=OnLoss)
    epoch: int = 0
    #: How attempts fare: when that was last noted, and the worker, or the worker and its device, that it was noted of.
    fared: dict[str, tuple[float, str]] = field(default_factory=dict)

    def index_after(self, entry: str) -> int:
        """Return the index of the first entry after this one, near which the number in its id points."""
        entries = self.entries
        if not self.forgotten and entries and entries[-1].id == entry:
            return len(entries)
        place = entry_order(entry)
        at = max(place[0] - self.forgotten, 0)
        while at < len(entries) and entry_order(entries[at].id) <= place:
            at += 1
        return at

    def has_reports(self, trial: TrialId, after: str) -> bool:
        """Whether reports of a trial are behind an entry, or more entries than are looked at."""
        entries = self.entries[self.index_after(after) if after else 0 :][:_LOOK]
        reports = (each.data for each in entries if each.data.startswith(REPORTS_PREFIX))
        return any(trial.encode() in data for data in reports) or len(entries) == _LOOK

    def seats(self, trial: TrialId, gang: str) -> list[TrialState]:
        """Return the seats that there are of the attempt of a gang, or the one of any other attempt."""
        return [self.trials[name] for name in seat_names(trial, seats_in(gang)) if name in self.trials]

    def standing(self, trial: TrialId, attempt: int) -> tuple[str, list[TrialState]]:
        """Return how an attempt stands, and its seats.

        It is "running" if one runs, "staged", "ended" if all have, or "" where one is missing.
        """
        first = self.trials.get(trial)
        if first is None:
            return "", []
        seats = self.seats(trial, first.gang)
        is_whole = len(seats) == seats_in(first.gang) and all(seat.attempt == attempt for seat in seats)
        states = {seat.state for seat in seats}
        return next(each for each in ("running", "staged", "ended") if each in states) if is_whole else "", seats

    def forget_seats(self, trial: TrialId, gang: str = "") -> None:
        """Forget the further seats of a trial, as many as there are, and those of this gang."""
        for name in seat_names(trial, seats_in(gang))[1:]:
            self.trials.pop(name, None)
        seat = 1
        while self.trials.pop(seat_name(trial, seat), None) is not None:
            seat += 1

    def is_revoked(self, trial: TrialId, attempt: int) -> bool:
        """Whether the revocation of an attempt was requested."""
        return revocation(trial, attempt) in self.requests

    def comes_after(self, trial: TrialId, gang: str, worker: str, now: float) -> bool:
        """Whether another such gang was staged before this trial's, and lacks a seat that this worker could take."""
        listed = (name for name, each in self.trials.items() if each.state == "staged" and each.staged_at < math.inf)
        for other in dict.fromkeys(seat_in(name)[0] for name in listed):
            if other == trial:
                return False
            its = self.trials.get(other)
            if its is not None and its.gang == gang and not self.is_revoked(other, its.attempt):
                seats = self.seats(other, gang)
                lacks = any(seat.state == "staged" and not seat.is_taken(now) for seat in seats)
                is_here = any(seat.is_taken(now) and seat.worker == worker for seat in seats)
                if lacks and not (is_apart(gang) and is_here):
                    return True
        return False


def is_apart(gang: str) -> bool:
    """Whether each seat of a gang is to be on another worker."""
    return ":apart:" in gang


class MemoryServer:
    """The state that the journals of one process share, in place of a Redis server.

    Args:
        clock: seconds, never going backwards; leases and locks run out by it.
        forgets: whether entries are deleted once a journal has been read past them, so that memory doesn't grow; for
            experiments with one reader.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, forgets: bool = False) -> None:
        self.clock = clock
        self.forgets = forgets
        self.changed = threading.Condition(threading.RLock())
        self.experiments: dict[str, ExperimentState] = {}
        #: The epochs of all drivers so far, which outlive what this server forgets.
        self.epochs = 0
        #: How often it has lost something; no entry gets the id of one that it has lost.
        self.losses = 0
