"""The population of PBT: its members, their ranking, and the rules for slots and copies."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
from mqtune.schedulers.timed import Milestones, Progress, Rank, Waiting, keeps_to_constraints

#: Number of random candidates for a source. With this limit, a report's cost does not grow with the population.
_CANDIDATES: Final = 32


class Copy(NamedTuple):
    """The decision that a trial continues from another one: source, checkpoint and new config."""

    source: Member
    checkpoint: CheckpointId
    config: Config
    reason: str


class Member(Progress):
    """A trial of the population, with its progress and score."""

    __slots__ = ("copy", "is_new", "is_replaced", "order", "peers", "rank", "reached", "score", "trial")

    def __init__(self, trial: Trial, order: int, next_level: float) -> None:
        super().__init__(next_level)
        self.trial = trial
        self.order = order
        #: It may copy only the first trials of the experiment, as many as this. None before its first milestone.
        self.peers: int | None = None
        #: Its rank in the ranking. None while it is not there.
        self.rank: Rank | None = None
        #: The rank that it gets when it has paused, in a population with generations.
        self.score: Rank | None = None
        #: The time of the last milestone that it has reached, or its source if it is replaced.
        self.reached: float = 0
        #: The copy that it will continue with, from the decision until it is resumed.
        self.copy: Copy | None = None
        #: Whether it was replaced by a copy since it scored.
        self.is_replaced = False
        #: Whether it was resumed from a checkpoint of unknown time, and has not reported since.
        self.is_new = False


class Ranking:
    """The members of a population in the order of their ranks.

    Args:
        fraction: the share of members that are the best, and the share that are the worst. Above 0, at most one half.
    """

    def __init__(self, fraction: Fraction) -> None:
        self._fraction = fraction
        #: The ranks, best first. Each ends with its member's order.
        self._ranks: list[Rank] = []
        self._members: dict[int, Member] = {}

    def __len__(self) -> int:
        return len(self._ranks)

    @property
    def members(self) -> list[Member]:
        return [self._members[order] for *_, order in self._ranks]

    @property
    def share(self) -> int:
        """Number of members that are the best. As many are the worst.

        At least 1, and at most half of all.
        """
        size = len(self._ranks)
        return min(max(1, math.floor(size * self._fraction)), size // 2)

    def put(self, member: Member, rank: Rank) -> None:
        """Set the rank of a member, and add it to the ranking if it is missing."""
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
        share = self.share
        return bool(share) and member.rank is not None and member.rank >= self._ranks[-share]

    def draw(self, rng: random.Random, is_allowed: Callable[[Member], bool]) -> Member | None:
        """Return a random member of the best for which *is_allowed* is true, or None.

        At most 32 random members are checked.
        """
        share = self.share
        for index in rng.sample(range(share), min(share, _CANDIDATES)):
            *_, order = self._ranks[index]
            if is_allowed(member := self._members[order]):
                return member
        return None


@dataclass(eq=False)
class PopulationPace(ABC):
    """Decides when members are judged and copied, and which members get free slots.

    Each draw depends only on the seed, the trial, and the report or generation.

    Args:
        members: the trials that have begun and not ended.
        milestones: the times at which members are judged.
        fraction: the share of members that copies, and the share that is copied.
        exploration: makes the configs of copies.
        seed: the same seed gives the same copies.
        size: largest number of members. None: as many as there are slots.
        time_attr: the reports' key of the time.
    """

    members: Mapping[TrialId, Member]
    milestones: Milestones
    fraction: Fraction
    exploration: Exploration
    seed: int
    size: int | None
    time_attr: str

    def __post_init__(self) -> None:
        #: Members that a person has paused.
        self._aside: set[TrialId] = set()

    @property
    def _has_room(self) -> bool:
        return self.size is None or len(self.members) - len(self._aside) < self.size

    def _draw_copy(self, ranking: Ranking, purpose: str, is_allowed: Callable[[Member], bool]) -> Copy | None:
        """Return a copy of a random member of the best for which *is_allowed* is true, or None.

        *purpose* seeds the draw, together with the seed.
        """
        rng = random.Random(f"{self.seed} {purpose}")
        source = ranking.draw(rng, is_allowed)
        if source is None:
            return None
        trial = source.trial
        config = self.exploration(trial.attempt.config, rng)
        return Copy(source, trial.checkpoint, config, f"goes on from trial {trial.id}")

    @abstractmethod
    def enrolled(self, member: Member) -> None:
        """Add a new member."""

    @abstractmethod
    def queued(self, member: Member) -> None:
        """Process a queued attempt of a member, which may begin its copy, and set its next level."""

    @abstractmethod
    def reached(self, member: Member, rank: Rank, report: Report) -> Decision:
        """Decide on a member that has reached a milestone."""

    @abstractmethod
    def paused(self, member: Member, *, by_hand: bool) -> None:
        """Process the pause of a member.

        *by_hand* says that a person, and not this scheduler, has paused it.
        """

    @abstractmethod
    def choose(self, *, can_start: bool) -> Choice:
        """Return what to do with a free slot, without changing any state."""

    @abstractmethod
    def ended(self, member: Member) -> None:
        """Remove a member."""


def may_be_copied(member: Member) -> bool:
    """Return whether a member has a checkpoint, was not replaced, and satisfies the constraints."""
    is_good = member.rank is not None and keeps_to_constraints(member.rank)
    return is_good and bool(member.trial.checkpoints) and not member.is_replaced


def resume_of(member: Member, copy: Copy | None, reason: str) -> Resume:
    """Return the resume of a member with its copy.

    If *copy* is None, resume it as it is, with *reason*.
    """
    if copy is None:
        return Resume(member.trial.id, reason)
    source = copy.source.trial
    if not source.checkpoints or source.is_abandoned:
        return Resume(member.trial.id, "the trial that it was to copy is gone")
    return Resume(member.trial.id, copy.reason, copy.config, source.id, copy.checkpoint)


_WAIT_FOR_TURN: Final = Wait("no new trial can start, and no member of the population waits to be resumed")


class Turns(PopulationPace):
    """Judges each member at each milestone, and pauses it there if others wait for a slot."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._ranking = Ranking(self.fraction)
        #: Paused members that wait for a slot, the one with the lowest time first.
        self._waiting = Waiting()
        #: Number of members so far.
        self._enrolled = 0
        #: The member that was queued last. While it is still queued, no slot is free.
        self._newest: Member | None = None
        #: Whether no further trial can start: a member was resumed although the population was not full.
        self._has_no_more = False

    def enrolled(self, member: Member) -> None:
        self._enrolled += 1
        self._has_no_more = False

    def queued(self, member: Member) -> None:
        self._newest = member
        self._aside.discard(member.trial.id)
        if member.trial.id in self._waiting:
            self._waiting.discard(member.trial.id)
            self._has_no_more = self._has_room
        if member.copy is not None:
            self._begin_copy(member, member.copy)

    def reached(self, member: Member, rank: Rank, report: Report) -> Decision:
        """Let a member copy another one if it is among the worst. Pause it if its turn is over."""
        member.next_level = self.milestones.after(member.time)
        member.reached = member.time
        member.is_replaced = False
        self._ranking.put(member, rank)
        if member.peers is None:
            member.peers = max(self._enrolled, self.size or 0)
        decision = self._decide_copy(member, member.peers, report)
        if decision is CONTINUE and self._others_wait:
            return Decision(Action.PAUSE, f"its turn is over at {member.time}: others wait for a slot")
        return decision

    def paused(self, member: Member, *, by_hand: bool) -> None:
        if by_hand:
            self._aside.add(member.trial.id)
            self._ranking.drop(member)
            return
        self._waiting.discard(member.trial.id)
        self._waiting.add(member.trial.id, (member.reached, member.order))

    def choose(self, *, can_start: bool) -> Choice:
        first = self._waiting.first
        # Without a size the population is never full, and a replaced member must not wait for ever.
        if can_start and (first is None if self.size is None else self._has_room):
            return START
        if first is None:
            return _WAIT_FOR_TURN
        member = self.members[first]
        return resume_of(member, member.copy, f"its turn, from {member.reached} on")

    def ended(self, member: Member) -> None:
        self._ranking.drop(member)
        self._waiting.discard(member.trial.id)
        self._aside.discard(member.trial.id)

    @property
    def _others_wait(self) -> bool:
        """Whether members take turns, and another one is paused, is queued or has not begun."""
        if self.size is None:
            return False
        is_queued = self._newest is not None and self._newest.trial.status is TrialStatus.QUEUED
        return is_queued or len(self._waiting) > 0 or (self._has_room and not self._has_no_more)

    def _decide_copy(self, member: Member, peers: int, report: Report) -> Decision:
        if not self._ranking.is_among_worst(member):
            return CONTINUE
        purpose = f"{report.trial} {report.attempt} {report.sequence}"
        copy = self._draw_copy(self._ranking, purpose, lambda other: may_be_copied(other) and other.order < peers)
        if copy is None:
            return CONTINUE
        member.copy = copy
        member.is_replaced = True
        place = f"among the worst {self._ranking.share} of {len(self._ranking)} at {member.time}"
        member.reached = copy.source.reached
        return Decision(Action.PAUSE, f"{place}: {copy.reason}", copy.source.trial.id)

    def _begin_copy(self, member: Member, copy: Copy) -> None:
        """Set the next level of a resumed member to the first milestone after its copy's time.

        If a person has resumed it without its copy, nothing changes.
        """
        attempt = member.trial.attempt
        if attempt.source != copy.source.trial.id:
            member.is_replaced = False
            return
        time = self._time_of(attempt.checkpoint, copy.source.trial)
        member.is_new = time is None
        member.next_level = -math.inf if time is None else self.milestones.after(time)

    def _time_of(self, checkpoint: CheckpointId, source: Trial) -> float | None:
        """Return the time of a checkpoint's report, or None if it is unknown."""
        owner = self.members.get(trial_of(checkpoint))
        saved = (owner.trial if owner is not None else source).checkpoints.get(checkpoint)
        time = None if saved is None else saved.metrics.get(self.time_attr)
        is_time = isinstance(time, int | float) and not isinstance(time, bool) and math.isfinite(time)
        return time if is_time else None


_WAIT_FOR_GENERATION: Final = Wait("no new trial can start, and the generation waits for members that are under way")


class _Part(NamedTuple):
    """How a member continues in the next generation."""

    member: Member
    #: Its copy. None: it continues as it is.
    copy: Copy | None
    reason: str


class _Cohort:
    """A population that proceeds in generations."""

    __slots__ = ("begun", "generation", "is_filling", "level", "missing", "number", "ranking", "reached")

    def __init__(self, number: int, level: float, fraction: Fraction) -> None:
        self.number = number
        self.generation = 1
        #: The time at which members of this generation are paused.
        self.level = level
        #: The time of the member that has run furthest.
        self.reached: float = 0
        #: Number of members that have begun.
        self.begun = 0
        #: Whether further trials may join.
        self.is_filling = True
        #: Members that have neither paused with a score nor ended.
        self.missing = 0
        self.ranking = Ranking(fraction)


class Generations(PopulationPace):
    """Pauses each member at its generation's milestone, and resumes all of them together.

    A population has *size* members, or fewer if no more can start. When it is full, later trials form the next
    population. When a member ends, the others continue without it.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        #: Number of populations so far.
        self._opened = 0
        #: The population that new trials join, or None.
        self._open: _Cohort | None = None
        self._cohorts: dict[TrialId, _Cohort] = {}
        #: How paused members continue, after the end of their generation.
        self._parts: dict[TrialId, _Part] = {}
        #: These members, in the order in which they get slots.
        self._ready = Waiting()

    def enrolled(self, member: Member) -> None:
        cohort = self._open
        if cohort is None:
            self._opened += 1
            cohort = self._open = _Cohort(self._opened, self.milestones.lowest, self.fraction)
        cohort.begun += 1
        cohort.missing += 1
        if cohort.begun == self.size:
            cohort.is_filling = False
            self._open = None
        self._cohorts[member.trial.id] = cohort

    def queued(self, member: Member) -> None:
        trial, cohort = member.trial.id, self._cohorts[member.trial.id]
        has_scored = member.rank is not None
        if has_scored and self._may_complete(cohort) and member is self._parts_of(cohort)[0].member:
            # This member was chosen because no new trial could start, so the population stays as it is.
            self._complete(cohort)
        elif has_scored or trial in self._aside:
            cohort.ranking.drop(member)
            cohort.missing += 1
        self._drop_part(trial)
        self._aside.discard(trial)
        member.next_level = cohort.level

    def reached(self, member: Member, rank: Rank, report: Report) -> Decision:
        cohort = self._cohorts[report.trial]
        member.next_level = math.inf
        member.reached = member.time
        member.score = rank
        return Decision(Action.PAUSE, f"generation {cohort.generation}: waits for the others at {cohort.level}")

    def paused(self, member: Member, *, by_hand: bool) -> None:
        """Rank a member that has scored.

        The generation continues without a member that a person has paused.
        """
        trial, cohort = member.trial.id, self._cohorts[member.trial.id]
        if member.rank is not None or trial in self._parts or trial in self._aside:
            return
        if by_hand or member.score is None:
            self._aside.add(trial)
        else:
            cohort.ranking.put(member, member.score)
            cohort.reached = max(cohort.reached, member.reached)
        self._count_off(cohort)

    def choose(self, *, can_start: bool) -> Choice:
        """Return the resume of a ready member, else a start.

        If neither is possible, return the first member of a population that is not full and can't be filled.
        """
        first = self._ready.first
        if first is not None:
            part = self._parts[first]
            return resume_of(part.member, part.copy, part.reason)
        if can_start and self._has_room:
            return START
        if not can_start and self._open is not None and self._may_complete(self._open):
            part = self._parts_of(self._open)[0]
            return resume_of(part.member, part.copy, part.reason)
        return _WAIT_FOR_GENERATION

    def ended(self, member: Member) -> None:
        trial = member.trial.id
        cohort = self._cohorts.pop(trial)
        is_missing = member.rank is None and trial not in self._aside
        cohort.ranking.drop(member)
        self._drop_part(trial)
        self._aside.discard(trial)
        if is_missing:
            self._count_off(cohort)

    def _drop_part(self, trial: TrialId) -> None:
        self._parts.pop(trial, None)
        self._ready.discard(trial)

    def _may_complete(self, cohort: _Cohort) -> bool:
        """Return whether a population that is not full can end its generation without new trials."""
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
        cohort.level = self.milestones.after(max(cohort.level, cohort.reached))
        cohort.missing = len(parts)
        for position, part in enumerate(parts):
            trial = part.member.trial.id
            cohort.ranking.drop(part.member)
            part.member.score = None
            part.member.copy = part.copy
            self._parts[trial] = part
            self._ready.add(trial, (cohort.number, cohort.generation, position))

    def _parts_of(self, cohort: _Cohort) -> list[_Part]:
        ranking = cohort.ranking
        where = f"generation {cohort.generation}:"
        copies, others = [], []
        for member in ranking.members:
            copy = None
            if ranking.is_among_worst(member):
                purpose = f"{member.trial.id} {member.attempt} {cohort.generation}"
                copy = self._draw_copy(ranking, purpose, may_be_copied)
            if copy is None:
                others.append(_Part(member, None, f"{where} all have come to {cohort.level}"))
            else:
                place = f"{where} among the worst {ranking.share} of {len(ranking)} at {cohort.level}"
                copies.append(_Part(member, copy._replace(reason=f"{place}, {copy.reason}"), ""))
        return copies + others
