"""What a server in memory holds of experiments and their trials."""

from __future__ import annotations

from dataclasses import dataclass, field

from mqtune.core.trial import UNDRIVEN, CheckpointId, TrialId
from mqtune.journal.base import Answer, Entry, OnLoss, entry_order

__all__ = ["ExperimentState", "TrialState"]


@dataclass(slots=True)
class TrialState:
    """What is kept of a trial's last attempt."""

    attempt: int
    assignment: bytes
    state: str = "staged"
    #: Infinite for one that has lost its place among those that nobody has claimed.
    staged_at: float = 0.0
    token: str = ""
    sequence: int = 0
    timestamp: float = 0.0
    intent: str = ""
    decided: str = ""
    ended_by: str = ""
    #: Infinite for one that has lost its place among the leases.
    lease_until: float = 0.0
    closed: bytes = b""
    saves: int = 0
    saved: str = ""
    cleared: int = 0
    held_until: float = 0.0
    held_by: str = ""
    #: Since when its worker has been importing the trainable for it.
    imports_at: float | None = None

    def told(self) -> Answer:
        """What the attempt's worker is told: its intent, or else the last wish that a checkpoint be saved."""
        return self.intent or (f"save:{self.saves}" if self.saves else "")

    def told_at_renewal(self, *, undriven: bool) -> Answer:
        """The same, how far a trial in lockstep is cleared, and whether it ends because nobody drives the experiment."""
        if undriven and not self.intent:
            return UNDRIVEN
        if self.intent or not self.cleared:
            return self.told()
        return f"{self.told()} go:{self.cleared}".lstrip()


@dataclass(slots=True)
class ExperimentState:
    """What is kept of an experiment."""

    entries: list[Entry] = field(default_factory=list)
    #: How many entries before these are forgotten.
    forgotten: int = 0
    trials: dict[TrialId, TrialState] = field(default_factory=dict)
    checkpoints: dict[CheckpointId, bytes] = field(default_factory=dict)
    #: The ids of requests, each with that of its entry.
    requests: dict[str, str] = field(default_factory=dict)
    dropped: tuple[CheckpointId, ...] = ()
    definition: bytes | None = None
    owner: str = ""
    driver: str = ""
    driver_since: float = 0.0
    driver_until: float | None = None
    on_loss: OnLoss = field(default_factory=OnLoss)
    epoch: int = 0

    def behind(self, entry: str) -> int:
        """Return where the entries begin that follow this one; the number in its id says where it stands, or near where."""
        place = entry_order(entry)
        at = max(place[0] - self.forgotten, 0)
        while at < len(self.entries) and entry_order(self.entries[at].id) <= place:
            at += 1
        return at
