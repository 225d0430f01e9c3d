"""A population: who is in it, who does how well there, and who copies whom."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Final, NamedTuple

from mqtune.core.trial import CheckpointId, Config, Decision, Report, Trial, TrialId
from mqtune.schedulers.base import Choice, Resume
from mqtune.schedulers.milestones import Milestones
from mqtune.schedulers.mutations import Exploration
from mqtune.schedulers.rungs import Rank
from mqtune.schedulers.timed import Progress

__all__ = ["Copy", "Copying", "Member", "Pace", "Ranking", "may_be_copied", "resume_of"]

#: Of more than so many of the best, so many are looked at for one that may be copied: work for a report must not grow with
#: the population, also where nobody has a checkpoint. The best quarter of 128 is looked at as a whole.
_LOOKED_AT: Final = 32


class Copy(NamedTuple):
    """What a trial goes on with when it is resumed: the trial that it copies, that one's checkpoint, and the config."""

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
        """Give a member this rank, in place of the one that it had."""
        self.drop(member)
        member.rank = rank
        self._members[member.order] = member
        insort(self._ranks, rank)

    def drop(self, member: Member) -> None:
        """Take a member out, if it is in."""
        if member.rank is not None:
            del self._ranks[bisect_left(self._ranks, member.rank)]
            del self._members[member.order]
            member.rank = None

    def is_among_worst(self, member: Member) -> bool:
        """Whether a member, which is in, is among the worst."""
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
    """When the members of a population are judged, and who of them has the free slots.

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
        """Whether the population may have another member."""
        return self._size is None or len(self._members) - len(self._aside) < self._size

    @abstractmethod
    def enrolled(self, member: Member) -> None:
        """Take a new member in."""

    @abstractmethod
    def staged(self, member: Member) -> None:
        """Take note that an attempt of a member was staged, and say when it is judged; its copy, if it had one, is made."""

    @abstractmethod
    def reached(self, member: Member, rank: Rank, report: Report) -> Decision:
        """Decide on a member that has come to a milestone."""

    @abstractmethod
    def paused(self, member: Member, *, by_hand: bool) -> None:
        """Take note that a member is paused, by a person or as was decided."""

    @abstractmethod
    def choose(self, *, can_start: bool) -> Choice:
        """Return what a free slot is to be used for; it changes nothing."""

    @abstractmethod
    def ended(self, member: Member) -> None:
        """Take a member out."""


def may_be_copied(member: Member) -> bool:
    """Whether there is a checkpoint of what a member's rank was of."""
    return bool(member.trial.checkpoints) and not member.is_replaced


def resume_of(member: Member, copy: Copy | None, reason: str) -> Resume:
    """Return the choice to resume a member with what it is to copy, or else as it is and for this reason."""
    if copy is None:
        return Resume(member.trial.id, reason)
    if not copy.source.checkpoints or copy.source.is_abandoned:
        return Resume(member.trial.id, "what it was to copy is gone")
    return Resume(member.trial.id, copy.reason, copy.config, copy.source.id, copy.checkpoint)
