"""One attempt on a simulated worker: where it is, and what it sends."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from mqtune.backends.simulated.reports import Item
from mqtune.core.codec import pack_metrics, segment_bytes
from mqtune.core.events import AttemptEnded
from mqtune.core.trial import AttemptEnd, CheckpointId, Intent, Metrics, TrialId, checkpoint_id
from mqtune.journal.base import Assignment, Claim, Segment

__all__ = ["ITERATION", "TIME_TOTAL", "Run", "Worker"]

#: What comes with every report, as it does with a real one.
ITERATION: Final = "training_iteration"
_TIME_THIS_ITER: Final = "time_this_iter_s"
TIME_TOTAL: Final = "time_total_s"

_ENDS: Final = {
    Intent.STOP: AttemptEnd.STOPPED,
    Intent.PAUSE: AttemptEnd.PAUSED,
    Intent.COMPLETE: AttemptEnd.COMPLETED,
    Intent.ABANDON: AttemptEnd.STOPPED,
    Intent.HAND_BACK: AttemptEnd.HANDED_BACK,
}


@dataclass(slots=True, eq=False)
class Run:
    """An attempt that was claimed."""

    claim: Claim
    worker: Worker
    assignment: Assignment
    #: Its items to come; none before it has begun, and once it does nothing more.
    items: Iterator[Item] = field(default_factory=lambda: iter(()))
    #: The metrics of the report that it works on, or the error that it is about to raise.
    next: Metrics | Exception = field(default_factory=dict)
    #: How long it works on that, and how long it and the attempts that it goes on from have worked on reports so far.
    seconds: float = 0.0
    total_s: float = 0.0
    #: How many reports lie before its first, from its checkpoint.
    begins_behind: int = 0
    sequence: int = 0
    checkpoints: int = 0
    #: What was sent to it: what it is to do, and up to which report it may go on; a driver may say so again.
    sent_intent: Intent = Intent.RUN
    sent_sequence: int = 0
    #: What it was told to do, once it has heard it.
    told: Intent = Intent.RUN
    #: Whether it reports no more: it was told, has returned or has failed.
    is_quiet: bool = False
    #: Whether its end is journaled, or its worker dead: what is still to happen to it doesn't.
    is_over: bool = False
    #: Reports that are on their way, and when the last of them arrives.
    under_way: deque[Segment] = field(default_factory=deque)
    arrives_at: float = 0.0
    #: In lockstep: whether it waits for the decision on its last report.
    waits: bool = False

    @property
    def trial(self) -> TrialId:
        """The trial's id."""
        return self.claim.trial

    @property
    def position(self) -> int:
        """How many reports of the trial's life lie behind it."""
        return self.begins_behind + self.sequence

    def new_checkpoint(self) -> CheckpointId:
        """Return the id of its next checkpoint."""
        self.checkpoints += 1
        return checkpoint_id(self.claim.trial, self.claim.attempt, self.checkpoints, in_memory=True)

    def segment(self, timestamp: float, checkpoint: str) -> Segment:
        """Return its latest report as it travels.

        Raises:
            TypeError: the metrics can't be sent.
        """
        metrics: Any = self.next
        self.total_s += self.seconds
        if isinstance(metrics, dict):
            counted = {ITERATION: self.position, _TIME_THIS_ITER: self.seconds, TIME_TOTAL: self.total_s}
            metrics = {**metrics, **{name: value for name, value in counted.items() if name not in metrics}}
        packed = pack_metrics(timestamp, metrics, checkpoint)
        claim, first = self.claim, self.sequence
        return Segment(claim, first, 1, timestamp, segment_bytes(claim.trial, claim.attempt, first, [packed]))

    def ended_as_told(self, at: float) -> AttemptEnded:
        """Return the end that it comes to when it does what it was told."""
        return self._ended(_ENDS[self.told], at)

    def completed(self, at: float) -> AttemptEnded:
        """Return the end of a trainable that has returned."""
        return self._ended(AttemptEnd.COMPLETED, at)

    def failed(self, at: float, error: Exception, *, outlived: bool = False) -> AttemptEnded:
        """Return the end of a trainable that has raised *error*, or has outlived its time; with a traceback if there is one."""
        text = "".join(traceback.format_exception(error)) if error.__traceback__ is not None else ""
        kind = type(error).__name__
        return self._ended(AttemptEnd.FAILED, at, kind, text or f"{kind}: {error}", outlived=outlived)

    def _ended(
        self, end: AttemptEnd, at: float, kind: str = "", error: str = "", *, outlived: bool = False
    ) -> AttemptEnded:
        return AttemptEnded(
            trial=self.claim.trial,
            attempt=self.claim.attempt,
            end=end,
            at=at,
            # Without one, no process would have been started.
            pid=self.worker.number,
            exit_code=int(end is AttemptEnd.FAILED),
            error_type=kind,
            error=error,
            outlived=outlived,
        )


@dataclass(slots=True, order=True)
class Worker:
    """A simulated worker, which has one slot; the free one with the lowest number takes the next attempt."""

    number: int
    is_alive: bool = field(default=True, compare=False)
    #: Whether it stands among those that wait for an attempt; a dead one may, and is passed over.
    is_waiting: bool = field(default=True, compare=False)
    run: Run | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """What the journal calls it."""
        return f"simulated-{self.number}"
