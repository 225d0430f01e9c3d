"""A population: who is in it, who does how well there, and who may be copied."""

from __future__ import annotations

import math
import random
from bisect import bisect_left, insort
from collections.abc import Callable
from fractions import Fraction
from typing import Final, NamedTuple

from mqtune.schedulers.rungs import Rank
from mqtune.schedulers.timed import Progress
from mqtune.trial import Config, Trial

__all__ = ["Copy", "Member", "Ranking"]

#: Of more than so many of the best, so many are looked at for one that may be copied: work for a report must not grow with
#: the population, also where nobody has a checkpoint. The best quarter of 128 is looked at as a whole.
_LOOKED_AT: Final = 32


class Copy(NamedTuple):
    """What a trial goes on with when it is resumed: the trial that it copies, and the config."""

    source: Trial
    config: Config
    reason: str


class Member(Progress):
    """A trial's progress, and its part in the population."""

    __slots__ = ("copy", "is_new", "is_replaced", "order", "peers", "rank", "trial")

    def __init__(self, trial: Trial, order: int, next_level: float) -> None:
        super().__init__(next_level)
        self.trial = trial
        self.order = order
        #: How many trials had begun when it came to its first milestone.
        self.peers: int | None = None
        #: Its rank at its last milestone, while it is in the population.
        self.rank: Rank | None = None
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
