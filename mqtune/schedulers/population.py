"""The population of PBT: members, their ranking, and their copies."""

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

#: Random candidates for a copy, so that a report's cost does not grow with the population.
_LOOKED_AT: Final = 32


class Copy(NamedTuple):
    """A copy for a trial to continue with: the source, its checkpoint, and the config."""

    source: Member
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
        #: The number of first trials that it may copy, from its first milestone on.
        self.peers: int | None = None
        #: Its rank in a ranking, and its next rank there once it has paused.
        self.rank: Rank | None = None
        self.score: Rank | None = None
        #: The time at which it, or its source, reached the last milestone.
        self.reached: float = 0
        #: Its copy, from the decision until it is resumed.
        self.copy: Copy | None = None
        #: Whether the ranked state was given up for a copy.
        self.is_replaced = False
        #: Whether it was resumed from a checkpoint of unknown time, and has not reported since.
        self.is_new = False


class Ranking:
    """The members of a population by rank. A share is the best, and as many are the worst.

    Args:
        fraction: the share. Above 0, at most one half.
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
        """The number of the best, and of the worst: at least one, and at most half of all."""
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
        share = self.share
        return bool(share) and member.rank is not None and member.rank >= self._ranks[-share]

    def drawn(self, rng: random.Random, may_be: Callable[[Member], bool]) -> Member | None:
        """Return a random one of the best for which *may_be* is true, or None if none is found."""
        share = self.share
        for index in rng.sample(range(share), min(share, _LOOKED_AT)):
            *_, order = self._ranks[index]
            if may_be(member := self._members[order]):
                return member
        return None


@dataclass(eq=False)
class PopulationPace(ABC):
    """Decides when members are judged, and which of them get the free slots.

    Draws depend on the seed and their purpose alone.

    Args:
        members: the trials that have begun and not ended.
        milestones: the times of judgement.
        fraction: the share that copies, and that is copied.
        exploration: makes the configs of the copies.
        seed: the same seed gives the same copies.
        size: the maximum of members, or None for the number of slots.
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
        self._aside: set[TrialId] = set()

    @property
    def _has_room(self) -> bool:
        return self.size is None or len(self.members) - len(self._aside) < self.size

    def _copy(self, ranking: Ranking, what_for: str, may_be: Callable[[Member], bool]) -> Copy | None:
        """Return a copy of one of the best for which *may_be* is true, or None if none is found."""
        rng = random.Random(f"{self.seed} {what_for}")
        source = ranking.drawn(rng, may_be)
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
        """Process a queued attempt of a member, with its copy if any, and set its next level."""

    @abstractmethod
    def reached(self, member: Member, rank: Rank, report: Report) -> Decision:
        """Decide on a member that has reached a milestone."""

    @abstractmethod
    def paused(self, member: Member, *, by_hand: bool) -> None:
        """Process the pause of a member, by a user or by decision."""

    @abstractmethod
    def choose(self, *, can_start: bool) -> Choice:
        """Return the use of a free slot, without changing any state."""

    @abstractmethod
    def ended(self, member: Member) -> None:
        """Remove a member."""


def may_be_copied(member: Member) -> bool:
    """Return whether a member's ranked state has a checkpoint, and violates no constraint."""
    is_good = member.rank is not None and keeps_to_constraints(member.rank)
    return is_good and bool(member.trial.checkpoints) and not member.is_replaced


def resume_of(member: Member, copy: Copy | None, reason: str) -> Resume:
    """Return the resume of a member with its copy, or unchanged, for this reason."""
    if copy is None:
        return Resume(member.trial.id, reason)
    source = copy.source.trial
    if not source.checkpoints or source.is_abandoned:
        return Resume(member.trial.id, "what it was to copy is gone")
    return Resume(member.trial.id, copy.reason, copy.config, source.id, copy.checkpoint)


_WAIT_FOR_TURN: Final = Wait("no new trial can start, and no member of the population is paused that would go on")


class Turns(PopulationPace):
    """Judges a member at its milestone, and pauses it there if others wait for a slot."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._ranking = Ranking(self.fraction)
        #: Paused members that are to continue, the one with the least time first.
        self._waiting = Waiting()
        self._enrolled = 0
        #: The member that was queued last. While it is queued, no slot is free.
        self._newest: Member | None = None
        #: Whether a member continued although the population had room, as no config was left to start.
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
            self._go_on(member, member.copy)

    def reached(self, member: Member, rank: Rank, report: Report) -> Decision:
        """Replace a member that is among the worst, or pause it if its turn is over."""
        member.next_level = self.milestones.after(member.time)
        member.reached = member.time
        member.is_replaced = False
        self._ranking.put(member, rank)
        if member.peers is None:
            member.peers = max(self._enrolled, self.size or 0)
        decision = self._replaced(member, member.peers, report)
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
        # Without a size there is always room, and a replaced member must not wait for ever.
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
        """Whether members take turns and one of them is paused, queued, or has not begun."""
        if self.size is None:
            return False
        is_queued = self._newest is not None and self._newest.trial.status is TrialStatus.QUEUED
        return is_queued or len(self._waiting) > 0 or (self._has_room and not self._has_no_more)

    def _replaced(self, member: Member, peers: int, report: Report) -> Decision:
        if not self._ranking.is_among_worst(member):
            return CONTINUE
        what_for = f"{report.trial} {report.attempt} {report.sequence}"
        copy = self._copy(self._ranking, what_for, lambda other: may_be_copied(other) and other.order < peers)
        if copy is None:
            return CONTINUE
        member.copy = copy
        member.is_replaced = True
        place = f"among the worst {self._ranking.share} of {len(self._ranking)} at {member.time}"
        member.reached = copy.source.reached
        return Decision(Action.PAUSE, f"{place}: {copy.reason}", copy.source.trial.id)

    def _go_on(self, member: Member, copy: Copy) -> None:
        """Set the progress of a resumed member, which a user may have resumed without its copy."""
        attempt = member.trial.attempt
        if attempt.source != copy.source.trial.id:
            member.is_replaced = False
            return
        time = self._time_of(attempt.checkpoint, copy.source.trial)
        member.is_new = time is None
        member.next_level = -math.inf if time is None else self.milestones.after(time)

    def _time_of(self, checkpoint: CheckpointId, source: Trial) -> float | None:
        """Return the time of a checkpoint's report, or None if it is not known."""
        owner = self.members.get(trial_of(checkpoint))
        saved = (owner.trial if owner is not None else source).checkpoints.get(checkpoint)
        time = None if saved is None else saved.metrics.get(self.time_attr)
        is_time = isinstance(time, int | float) and not isinstance(time, bool) and math.isfinite(time)
        return time if is_time else None


_WAIT_FOR_GENERATION: Final = Wait("no new trial can start, and the generation waits for members that are under way")


class _Part(NamedTuple):
    """A member's part in the next generation: its copy if any, and the reason."""

    member: Member
    copy: Copy | None
    reason: str


class _Cohort:
    __slots__ = ("begun", "generation", "is_filling", "level", "missing", "number", "ranking", "reached")

    def __init__(self, number: int, level: float, fraction: Fraction) -> None:
        self.number = number
        self.generation = 1
        #: The time at which this generation pauses, and the time of its furthest member.
        self.level = level
        self.reached: float = 0
        self.begun = 0
        self.is_filling = True
        #: Members that have neither paused with a score nor ended.
        self.missing = 0
        self.ranking = Ranking(fraction)


class Generations(PopulationPace):
    """Pauses each member at its generation's milestone, and resumes all after the last one.

    A population has *size* members, or fewer if no more can start. Trials that begin when it is full form the next
    population. When a member ends, the others continue without it.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._opened = 0
        self._open: _Cohort | None = None
        self._cohorts: dict[TrialId, _Cohort] = {}
        #: The parts of paused members in the next generation, and their order.
        self._parts: dict[TrialId, _Part] = {}
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
            # No new trial could start when this member was chosen.
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
        """Count a member that has scored, and continue without one that a user has paused."""
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
        """Return a ready member, else a start, else a member of a population that can't be filled."""
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
                what_for = f"{member.trial.id} {member.attempt} {cohort.generation}"
                copy = self._copy(ranking, what_for, may_be_copied)
            if copy is None:
                others.append(_Part(member, None, f"{where} all have come to {cohort.level}"))
            else:
                place = f"{where} among the worst {ranking.share} of {len(ranking)} at {cohort.level}"
                copies.append(_Part(member, copy._replace(reason=f"{place}, {copy.reason}"), ""))
        return copies + others
