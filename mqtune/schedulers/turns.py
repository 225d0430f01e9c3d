"""A population without generations: each member is judged when it comes to a milestone, and may have to take turns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from mqtune.core.status import TrialStatus
from mqtune.core.trial import CONTINUE, Action, CheckpointId, Decision, Report, Trial, TrialId, trial_of
from mqtune.schedulers.base import START, Choice, Wait
from mqtune.schedulers.milestones import Milestones
from mqtune.schedulers.population import Copy, Copying, Member, Pace, Ranking, may_be_copied, resume_of
from mqtune.schedulers.rungs import Rank, Waiting

__all__ = ["Turns"]

_WAIT: Final = Wait("no new trial can start, and no member of the population is paused that would go on")


class Turns(Pace):
    """Judges a member when it comes to a milestone, and where others wait for a slot pauses it there.

    Args:
        time_attr: the key of the time in the reports.
    """

    def __init__(
        self,
        members: Mapping[TrialId, Member],
        milestones: Milestones,
        fraction: Fraction,
        copying: Copying,
        size: int | None,
        *,
        time_attr: str,
    ) -> None:
        super().__init__(members, milestones, fraction, copying, size)
        self._time_attr = time_attr
        self._ranking = Ranking(fraction)
        #: Paused members that are to go on: who has come least far is first.
        self._waiting = Waiting()
        self._enrolled = 0
        #: The member that was staged last: while that waits in a queue, no slot is free.
        self._newest: Member | None = None
        #: Whether a member went on although the population had room: then there was no config to start with.
        self._has_no_more = False

    def enrolled(self, member: Member) -> None:
        """Take a new member in."""
        self._enrolled += 1
        self._has_no_more = False

    def staged(self, member: Member) -> None:
        """Take note that a member runs, or waits in a queue."""
        self._newest = member
        self._aside.discard(member.trial.id)
        if member.trial.id in self._waiting:
            self._waiting.discard(member.trial.id)
            self._has_no_more = self._has_room
        if member.copy is not None:
            self._go_on(member, member.copy)

    def reached(self, member: Member, rank: Rank, report: Report) -> Decision:
        """Replace a member that is among the worst, or pause it if its turn is over."""
        member.next_level = self._milestones.after(member.time)
        member.reached = member.time
        member.is_replaced = False
        self._ranking.put(member, rank)
        if member.peers is None:
            member.peers = max(self._enrolled, self._size or 0)
        decision = self._replaced(member, member.peers, report)
        if decision is CONTINUE and self._others_wait:
            return Decision(Action.PAUSE, f"its turn is over at {member.time}: others wait for a slot")
        return decision

    def paused(self, member: Member, *, by_hand: bool) -> None:
        """Have a member resumed in its turn, unless a person has paused it."""
        if by_hand:
            self._aside.add(member.trial.id)
            self._ranking.drop(member)
            return
        self._waiting.discard(member.trial.id)
        self._waiting.add(member.trial.id, (member.reached, member.order))

    def choose(self, *, can_start: bool) -> Choice:
        """Return the member that has come least far; a new one has come nowhere."""
        first = self._waiting.first
        # Without a size there is always room, and who was replaced must not wait for ever.
        if can_start and (first is None if self._size is None else self._has_room):
            return START
        if first is None:
            return _WAIT
        member = self._members[first]
        return resume_of(member, member.copy, f"its turn, from {member.reached} on")

    def ended(self, member: Member) -> None:
        """Take a member out."""
        self._ranking.drop(member)
        self._waiting.discard(member.trial.id)
        self._aside.discard(member.trial.id)

    @property
    def _others_wait(self) -> bool:
        """Whether members take turns, and somebody could use a slot: paused, in a queue, or not begun."""
        if self._size is None:
            return False
        is_queued = self._newest is not None and self._newest.trial.status is TrialStatus.STAGED
        return is_queued or len(self._waiting) > 0 or (self._has_room and not self._has_no_more)

    def _replaced(self, member: Member, peers: int, report: Report) -> Decision:
        if not self._ranking.is_among_worst(member):
            return CONTINUE
        what_for = f"{report.trial} {report.attempt} {report.sequence}"
        found = self._copying.drawn(self._ranking, what_for, lambda other: may_be_copied(other) and other.order < peers)
        if found is None:
            return CONTINUE
        source, member.copy = found
        member.is_replaced = True
        place = f"among the worst {self._ranking.share} of {len(self._ranking)} at {member.time}"
        member.reached = source.reached
        return Decision(Action.PAUSE, f"{place}: {member.copy.reason}", source.trial.id)

    def _go_on(self, member: Member, copy: Copy) -> None:
        """Say how far a member is that was to copy another; a person may have resumed it without that."""
        attempt = member.trial.attempt
        if attempt.source != copy.source.id:
            member.is_replaced = False
            return
        time = self._time_of(attempt.checkpoint, copy.source)
        member.is_new = time is None
        member.next_level = -math.inf if time is None else self._milestones.after(time)

    def _time_of(self, checkpoint: CheckpointId, source: Trial) -> float | None:
        """Return the time of the report that a checkpoint was saved with, or None where that is not known."""
        owner = self._members.get(trial_of(checkpoint))
        saved = (owner.trial if owner is not None else source).checkpoints.get(checkpoint)
        time = None if saved is None else saved.metrics.get(self._time_attr)
        is_time = isinstance(time, int | float) and not isinstance(time, bool) and math.isfinite(time)
        return time if is_time else None
