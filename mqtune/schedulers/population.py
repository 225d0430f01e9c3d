"""The population of PBT: its members and their ranking, who copies whom, and when members are judged."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from enum import Enum
from fractions import Fraction
from typing import Final, NamedTuple

from mqtune.core.trial import (
    CONTINUE,
    Action,
    CheckpointId,
    Config,
    Decision,
    Report,
    Trial,
    TrialId,
    TrialStatus,
    trial_of,
)
from mqtune.schedulers.base import START, Choice, Resume, Wait
from mqtune.schedulers.exploration import Exploration
from mqtune.schedulers.timed import Milestones, Progress, Rank, Waiting

__all__ = ["Copy", "Copying", "Generations", "Member", "Pace", "Ranking", "Turns", "may_be_copied", "resume_of"]


#: Of more than so many of the best, so many are looked at for one that may be copied: work for a report must not grow with
#: the population, also where nobody has a checkpoint. The best quarter of 128 is looked at as a whole.
_LOOKED_AT: Final = 32


class Copy(NamedTuple):
    """A copy that a trial continues with when it is resumed: the source trial, its checkpoint, and the config."""

    source: Trial
    checkpoint: CheckpointId
    config: Config
    reason: str


class Member(Progress):
    """A trial's progress, and its part in the population."""

    __slots__ = ("copy", "is_new", "is_replaced", "order", "peers", "rank", "reached", "score", "trial")

    def __init__(self, trial: Trial, order: int, next_level: float) -> None:
        super().__init__(next_level)
        self.trial = trial
        self.order = order
        #: How many of the trials that began first it may copy, from its first milestone on.
        self.peers: int | None = None
        #: Its rank at its last milestone, while it is in a ranking, and one that is to be in it once it has paused.
        self.rank: Rank | None = None
        self.score: Rank | None = None
        #: The time at which it came to its last milestone, or whoever it copies came to that one's.
        self.reached: float = 0
        #: What it is to copy, from the decision until it is resumed.
        self.copy: Copy | None = None
        #: Whether what its rank was of has been given up for a copy of another's.
        self.is_replaced = False
        #: Whether it was resumed, has not reported since, and nobody knows how far its checkpoint is.
        self.is_new = False


class Ranking:
    """The members of a population in the order of their ranks, of which a share is the best, and as many are the worst.

    Args:
        fraction: the share; above 0, at most one half.
    """

    def __init__(self, fraction: Fraction) -> None:
        self._fraction = fraction
        #: The ranks, best first; the order of staging, which each holds, finds the member.
        self._ranks: list[Rank] = []
        self._members: dict[int, Member] = {}

    def __len__(self) -> int:
        return len(self._ranks)

    @property
    def members(self) -> list[Member]:
        """All members, the best first."""
        return [self._members[order] for *_, order in self._ranks]

    @property
    def share(self) -> int:
        """How many are the best, and how many the worst: at least one, and at most half of all."""
        size = len(self._ranks)
        return min(max(1, math.floor(size * self._fraction)), size // 2)

    def put(self, member: Member, rank: Rank) -> None:
        """Set the rank of a member, in place of its earlier one."""
        self.drop(member)
        member.rank = rank
        self._members[member.order] = member
        insort(self._ranks, rank)

    def drop(self, member: Member) -> None:
        """Remove a member, if it is in the ranking."""
        if member.rank is not None:
            del self._ranks[bisect_left(self._ranks, member.rank)]
            del self._members[member.order]
            member.rank = None

    def is_among_worst(self, member: Member) -> bool:
        """Return whether a member of the ranking is among the worst."""
        share = self.share
        return bool(share) and member.rank is not None and member.rank >= self._ranks[-share]

    def drawn(self, rng: random.Random, may_be: Callable[[Member], bool]) -> Member | None:
        """Return one of the best for which *may_be* is true, each as likely, or None if none is found."""
        share = self.share
        for index in rng.sample(range(share), min(share, _LOOKED_AT)):
            *_, order = self._ranks[index]
            if may_be(member := self._members[order]):
                return member
        return None


class Copying:
    """Makes copies: what is drawn depends on the seed and what it is drawn for, and on nothing that came before.

    Args:
        exploration: makes the config of the copy.
        seed: the same seed gives the same copies.
    """

    def __init__(self, exploration: Exploration, seed: int) -> None:
        self._exploration = exploration
        self._seed = seed

    def drawn(self, ranking: Ranking, what_for: str, may_be: Callable[[Member], bool]) -> tuple[Member, Copy] | None:
        """Return one of the best of *ranking*, for which *may_be* is true, and a copy of it; None if there is none."""
        rng = random.Random(f"{self._seed} {what_for}")
        drawn = ranking.drawn(rng, may_be)
        if drawn is None:
            return None
        source = drawn.trial
        config = self._exploration(source.attempt.config, rng)
        return drawn, Copy(source, source.checkpoint, config, f"goes on from trial {source.id}")


class Pace(ABC):
    """Decides when the members of a population are judged, and which of them get the free slots.

    Args:
        members: the trials that have begun and not ended.
        milestones: where they are judged.
        fraction: the share that copies, and that is copied.
        copying: makes the copies.
        size: how many members there may be at once; None for as many as there are slots.
    """

    def __init__(
        self,
        members: Mapping[TrialId, Member],
        milestones: Milestones,
        fraction: Fraction,
        copying: Copying,
        size: int | None,
    ) -> None:
        self._members = members
        self._milestones = milestones
        self._fraction = fraction
        self._copying = copying
        self._size = size
        #: Members that a person has paused.
        self._aside: set[TrialId] = set()

    @property
    def _has_room(self) -> bool:
        """Tells whether the population may have another member."""
        return self._size is None or len(self._members) - len(self._aside) < self._size

    @abstractmethod
    def enrolled(self, member: Member) -> None:
        """Add a new member."""

    @abstractmethod
    def staged(self, member: Member) -> None:
        """Hear that an attempt of a member was staged, with its copy if it had one, and set when it is judged."""

    @abstractmethod
    def reached(self, member: Member, rank: Rank, report: Report) -> Decision:
        """Decide on a member that has come to a milestone."""

    @abstractmethod
    def paused(self, member: Member, *, by_hand: bool) -> None:
        """Hear that a member is paused, by a user or by decision."""

    @abstractmethod
    def choose(self, *, can_start: bool) -> Choice:
        """Return what a free slot is to be used for; it changes nothing."""

    @abstractmethod
    def ended(self, member: Member) -> None:
        """Remove a member."""


def may_be_copied(member: Member) -> bool:
    """Return whether there is a checkpoint of the state that a member was ranked for."""
    return bool(member.trial.checkpoints) and not member.is_replaced


def resume_of(member: Member, copy: Copy | None, reason: str) -> Resume:
    """Return the choice to resume a member with what it is to copy, or else as it is and for this reason."""
    if copy is None:
        return Resume(member.trial.id, reason)
    if not copy.source.checkpoints or copy.source.is_abandoned:
        return Resume(member.trial.id, "what it was to copy is gone")
    return Resume(member.trial.id, copy.reason, copy.config, copy.source.id, copy.checkpoint)


_WAIT_FOR_TURN: Final = Wait("no new trial can start, and no member of the population is paused that would go on")


class Turns(Pace):
    """Judges a member when it reaches a milestone, and pauses it there if others wait for a slot.

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
        """Add a new member."""
        self._enrolled += 1
        self._has_no_more = False

    def staged(self, member: Member) -> None:
        """Hear that a member runs, or waits in a queue."""
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
        """Queue a member to be resumed, unless a user has paused it."""
        if by_hand:
            self._aside.add(member.trial.id)
            self._ranking.drop(member)
            return
        self._waiting.discard(member.trial.id)
        self._waiting.add(member.trial.id, (member.reached, member.order))

    def choose(self, *, can_start: bool) -> Choice:
        """Return the member with the least progress; a new one has none."""
        first = self._waiting.first
        # Without a size there is always room, and who was replaced must not wait for ever.
        if can_start and (first is None if self._size is None else self._has_room):
            return START
        if first is None:
            return _WAIT_FOR_TURN
        member = self._members[first]
        return resume_of(member, member.copy, f"its turn, from {member.reached} on")

    def ended(self, member: Member) -> None:
        """Remove a member."""
        self._ranking.drop(member)
        self._waiting.discard(member.trial.id)
        self._aside.discard(member.trial.id)

    @property
    def _others_wait(self) -> bool:
        """Tells whether members take turns and one needs a slot: it is paused, queued, or has not begun."""
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
        """Set the progress of a member that was to copy another; a user may have resumed it without the copy."""
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


_WAIT_FOR_GENERATION: Final = Wait("no new trial can start, and the generation waits for members that are under way")


class _Place(Enum):
    """A member's state in its generation."""

    UNDER_WAY = "under way"  #: it waits in a queue, runs, or is to be retried
    SCORED = "scored"  #: it is paused with its score until the generation is complete
    READY = "ready"  #: it is paused, and goes on in the next generation when a slot is free
    LEFT_ALONE = "left alone"  #: a person has paused it, and the generation goes on without it


class _Part(NamedTuple):
    """A member's part in the next generation: what it copies, or None to go on as it is, and why."""

    member: Member
    copy: Copy | None
    reason: str


class _Cohort:
    """The trials that are one population, and the generation that they are in."""

    __slots__ = ("begun", "generation", "is_filling", "level", "missing", "number", "ranking", "reached")

    def __init__(self, number: int, level: float, fraction: Fraction) -> None:
        self.number = number
        self.generation = 1
        #: The time at which the members of this generation pause, and how far the furthest has come.
        self.level = level
        self.reached: float = 0
        #: How many trials have begun in it, and whether it takes more.
        self.begun = 0
        self.is_filling = True
        #: How many members have neither paused with a score nor ended.
        self.missing = 0
        #: Those that have paused with a score.
        self.ranking = Ranking(fraction)


class Generations(Pace):
    """Pauses every member at the milestone of its generation, and resumes all when the last one has reached it.

    A population has as many members as it may have at once, or fewer where no more can start; those that begin when it
    is full are the next population. When a member ends, the others go on without it.
    """

    def __init__(
        self,
        members: Mapping[TrialId, Member],
        milestones: Milestones,
        fraction: Fraction,
        copying: Copying,
        size: int,
    ) -> None:
        super().__init__(members, milestones, fraction, copying, size)
        self._capacity = size
        self._opened = 0
        self._open: _Cohort | None = None
        self._cohorts: dict[TrialId, _Cohort] = {}
        self._places: dict[TrialId, _Place] = {}
        #: What members that are ready go on with, and their order.
        self._parts: dict[TrialId, _Part] = {}
        self._ready = Waiting()

    def enrolled(self, member: Member) -> None:
        """Add a new member to the population that is not full."""
        cohort = self._open
        if cohort is None:
            self._opened += 1
            cohort = self._open = _Cohort(self._opened, self._milestones.lowest, self._fraction)
        cohort.begun += 1
        cohort.missing += 1
        if cohort.begun == self._capacity:
            cohort.is_filling = False
            self._open = None
        self._cohorts[member.trial.id] = cohort
        self._places[member.trial.id] = _Place.UNDER_WAY

    def staged(self, member: Member) -> None:
        """Let a member run to the milestone of its generation."""
        trial, cohort = member.trial.id, self._cohorts[member.trial.id]
        place = self._places[trial]
        if place is _Place.SCORED and self._may_complete(cohort) and trial == self._first_of(cohort).member.trial.id:
            # Nothing new could start when this member was chosen.
            self._complete(cohort)
        elif place is _Place.SCORED:
            cohort.ranking.drop(member)
            cohort.missing += 1
        elif place is _Place.LEFT_ALONE:
            cohort.missing += 1
        self._ready.discard(trial)
        self._parts.pop(trial, None)
        self._aside.discard(trial)
        self._places[trial] = _Place.UNDER_WAY
        member.next_level = cohort.level

    def reached(self, member: Member, rank: Rank, report: Report) -> Decision:
        """Pause a member."""
        cohort = self._cohorts[report.trial]
        member.next_level = math.inf
        member.reached = member.time
        member.score = rank
        return Decision(Action.PAUSE, f"generation {cohort.generation}: waits for the others at {cohort.level}")

    def paused(self, member: Member, *, by_hand: bool) -> None:
        """Count a member that has scored, and continue without one that a user has paused."""
        trial, cohort = member.trial.id, self._cohorts[member.trial.id]
        if self._places[trial] is not _Place.UNDER_WAY:
            return
        if by_hand or member.score is None:
            self._places[trial] = _Place.LEFT_ALONE
            self._aside.add(trial)
        else:
            self._places[trial] = _Place.SCORED
            cohort.ranking.put(member, member.score)
            cohort.reached = max(cohort.reached, member.reached)
        self._count_off(cohort)

    def choose(self, *, can_start: bool) -> Choice:
        """Return a member that is ready, else a start, else one of a population that nothing can be added to."""
        first = self._ready.first
        if first is not None:
            part = self._parts[first]
            return resume_of(part.member, part.copy, part.reason)
        if can_start and self._has_room:
            return START
        if not can_start and self._open is not None and self._may_complete(self._open):
            part = self._first_of(self._open)
            return resume_of(part.member, part.copy, part.reason)
        return _WAIT_FOR_GENERATION

    def ended(self, member: Member) -> None:
        """Continue without a member."""
        trial = member.trial.id
        cohort, place = self._cohorts.pop(trial), self._places.pop(trial)
        cohort.ranking.drop(member)
        self._ready.discard(trial)
        self._parts.pop(trial, None)
        self._aside.discard(trial)
        if place in (_Place.UNDER_WAY, _Place.READY):
            self._count_off(cohort)

    def _may_complete(self, cohort: _Cohort) -> bool:
        """Return whether a population that is not full could continue if no new trial started."""
        return cohort.is_filling and cohort.missing == 0 and len(cohort.ranking) > 0

    def _count_off(self, cohort: _Cohort) -> None:
        cohort.missing -= 1
        if cohort.missing == 0 and not cohort.is_filling:
            self._complete(cohort)

    def _complete(self, cohort: _Cohort) -> None:
        """Start the next generation with all members that have scored."""
        cohort.is_filling = False
        if self._open is cohort:
            self._open = None
        parts = self._parts_of(cohort)
        cohort.generation += 1
        cohort.level = self._milestones.after(max(cohort.level, cohort.reached))
        cohort.missing = len(parts)
        for position, part in enumerate(parts):
            trial = part.member.trial.id
            cohort.ranking.drop(part.member)
            part.member.score = None
            part.member.copy = part.copy
            self._places[trial] = _Place.READY
            self._parts[trial] = part
            self._ready.add(trial, (cohort.number, cohort.generation, position))

    def _first_of(self, cohort: _Cohort) -> _Part:
        return self._parts_of(cohort)[0]

    def _parts_of(self, cohort: _Cohort) -> list[_Part]:
        """Return the part in the next generation of each member that has scored.

        Members that copy come first: those that are copied replace the checkpoint when they continue.
        """
        ranking = cohort.ranking
        where = f"generation {cohort.generation}:"
        copies, others = [], []
        for member in ranking.members:
            found = None
            if ranking.is_among_worst(member):
                what_for = f"{member.trial.id} {member.attempt} {cohort.generation}"
                found = self._copying.drawn(ranking, what_for, may_be_copied)
            if found is None:
                others.append(_Part(member, None, f"{where} all have come to {cohort.level}"))
            else:
                place = f"{where} among the worst {ranking.share} of {len(ranking)} at {cohort.level}"
                copy = found[1]
                copies.append(_Part(member, copy._replace(reason=f"{place}, {copy.reason}"), ""))
        return copies + others
