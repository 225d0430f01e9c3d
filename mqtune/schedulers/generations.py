"""A population in generations: all members come to a milestone, and only then the worst of them copy the best."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from fractions import Fraction
from typing import Final, NamedTuple

from mqtune.core.trial import Action, Decision, Report, TrialId
from mqtune.schedulers.base import START, Choice, Wait
from mqtune.schedulers.milestones import Milestones
from mqtune.schedulers.population import Copy, Copying, Member, Pace, Ranking, may_be_copied, resume_of
from mqtune.schedulers.rungs import Rank, Waiting

__all__ = ["Generations"]

_WAIT: Final = Wait("no new trial can start, and the generation waits for members that are under way")


class _Place(Enum):
    """Where a member stands in its generation."""

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
    """Pauses every member at the milestone of its generation, and has all go on when the last one has come there.

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
        """Give a new member to the population that is not full."""
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
        """Count a member in that has scored, and go on without one that a person has paused."""
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
        return _WAIT

    def ended(self, member: Member) -> None:
        """Go on without a member."""
        trial = member.trial.id
        cohort, place = self._cohorts.pop(trial), self._places.pop(trial)
        cohort.ranking.drop(member)
        self._ready.discard(trial)
        self._parts.pop(trial, None)
        self._aside.discard(trial)
        if place in (_Place.UNDER_WAY, _Place.READY):
            self._count_off(cohort)

    def _may_complete(self, cohort: _Cohort) -> bool:
        """Whether a population that is not full could go on if nothing new started."""
        return cohort.is_filling and cohort.missing == 0 and len(cohort.ranking) > 0

    def _count_off(self, cohort: _Cohort) -> None:
        cohort.missing -= 1
        if cohort.missing == 0 and not cohort.is_filling:
            self._complete(cohort)

    def _complete(self, cohort: _Cohort) -> None:
        """Have all go on that have scored, in the next generation."""
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
        """Return what each member goes on with that has scored.

        Who copies comes first: when those that are copied go on, they leave the checkpoint that is meant behind.
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
