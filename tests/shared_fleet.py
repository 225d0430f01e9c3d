"""A fleet that many experiments share, in virtual time: each with the keeper that a driver has, and nothing else of it."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from mqtune.backends import Pool
from mqtune.core.priorities import Priority
from mqtune.core.timing import Timing
from mqtune.services.shares.divider import Demand, Share, Table, divide
from mqtune.services.shares.driver import Held, ShareKeeper, Standing

__all__ = ["SharedFleetInTime", "Sharer", "Wish", "alike", "fairness", "many"]

_QUEUE: Final = "q"


@dataclass(frozen=True)
class Wish:
    """What an experiment is to get, when it comes, and how many trials it may run at once; None for as many as there are slots."""

    standing: Standing
    most: int | None = None
    comes_at_s: float = 0.0


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


@dataclass(eq=False)
class Sharer:
    """An experiment: its keeper, what it runs, and what came of it."""

    fleet: SharedFleetInTime
    token: str
    wish: Wish
    priority: Priority = "normal"
    #: The trials that run: when each ends.
    running: dict[int, float] = field(default_factory=dict)
    #: What is left of trials that were paused, in seconds.
    paused: deque[float] = field(default_factory=deque)
    #: How many attempts wait for a slot.
    staged: int = 0
    slot_s: float = 0.0
    pauses: int = 0
    trials: int = 0
    #: For how long it has had no slot, and the longest such time.
    without_s: float = 0.0
    longest_without_s: float = 0.0

    def __post_init__(self) -> None:
        self.name, self.clock = self.token, self.fleet.clock
        self.keeper = ShareKeeper(self)

    @property
    def live(self) -> int:
        """The number of attempts that run or wait."""
        return len(self.running) + self.staged

    @property
    def room(self) -> float:
        """How many more attempts it may stage."""
        return min(self.keeper.limit, self.wish.most or self.fleet.slots, self.fleet.slots) - self.live

    def pool(self) -> Pool:
        return Pool({_QUEUE: self.fleet.slots}, (_QUEUE,))

    def exchange(self, demand: Demand) -> Share:
        """Say what it wants; who has no share yet divides from then on, and with each look publishes the shares of all."""
        fleet = self.fleet
        fleet.demands[self.token] = demand
        if self.token not in fleet.shares:
            fleet.divider = self.token
        if fleet.divider == self.token:
            fleet.shares = divide(Table(list(fleet.demands.values()), {}), {_QUEUE: fleet.slots}, {})
        return fleet.shares[self.token]

    def leave(self) -> None:
        """Want nothing any more."""
        self.fleet.demands.pop(self.token, None)

    def look(self) -> None:
        """Do what a driver does once a second."""
        now, standing = self.clock.now, self.wish.standing
        self.keeper.look(Held(len(self.running), self.live, is_hungry=True), standing, self.wish.most)
        if self.keeper.must_give and self.live > self.keeper.limit:
            self.staged = max(0, int(self.keeper.limit) - len(self.running))
        if standing.preemptible:
            for trial in sorted(self.running)[: self.keeper.to_pause]:
                self.paused.append(max(0.0, self.running.pop(trial) - now))
                self.pauses += 1
                self.fleet.free += 1
        self.staged += max(0, int(self.room))

    def count(self, seconds: float) -> None:
        """Count what it had for some seconds."""
        self.slot_s += len(self.running) * seconds
        self.without_s = 0.0 if self.running else self.without_s + seconds
        self.longest_without_s = max(self.longest_without_s, self.without_s)


class SharedFleetInTime:
    """So many slots, and the experiments that use them.

    Args:
        slots: how many.
        wishes: what each experiment is to get.
        shortest_s: the shortest trial; how long one takes is drawn, all magnitudes alike.
        longest_s: the longest one.
        seed: of what is drawn.
    """

    def __init__(
        self, slots: int, wishes: Sequence[Wish], *, shortest_s: float = 1.0, longest_s: float = 28_800.0, seed: int = 0
    ) -> None:
        self.slots = self.free = slots
        self.clock = _Clock()
        self.demands: dict[str, Demand] = {}
        self.shares: dict[str, Share] = {}
        #: Who divides the slots for all.
        self.divider = ""
        self.sharers = [Sharer(self, f"{number:04d}", wish) for number, wish in enumerate(wishes)]
        self._span = shortest_s, longest_s
        self._random = random.Random(seed)
        self._ends: list[tuple[float, int, Sharer]] = []
        self._number = 0

    def run(self, seconds: float) -> None:
        """Let so much time pass."""
        until = self.clock.now + seconds
        while self.clock.now < until:
            here = [each for each in self.sharers if each.wish.comes_at_s <= self.clock.now]
            self._random.shuffle(here)
            for each in here:
                each.look()
            self._start(here)
            self._pass(self.clock.now + Timing().look_at_shares_s, here)

    def _start(self, here: Sequence[Sharer]) -> None:
        """Have what waits take free slots: those of higher priority first, else one of each in turn."""
        for priority in ("high", "normal", "low"):
            waiting = deque(each for each in here if each.wish.standing.priority == priority and each.staged)
            while waiting and self.free:
                each = waiting.popleft()
                self._begin(each)
                if each.staged:
                    waiting.append(each)

    def _begin(self, each: Sharer) -> None:
        low, high = self._span
        left_s = each.paused.popleft() if each.paused else low * (high / low) ** self._random.random()
        self._number += 1
        each.staged -= 1
        each.running[self._number] = self.clock.now + left_s
        self.free -= 1
        heapq.heappush(self._ends, (self.clock.now + left_s, self._number, each))

    def _pass(self, until: float, here: Sequence[Sharer]) -> None:
        """Let time pass; who may goes on in the slot of a trial that has ended."""
        begin = self.clock.now
        while self._ends and self._ends[0][0] <= until:
            at, number, each = heapq.heappop(self._ends)
            if each.running.get(number) != at:
                continue  # it was paused
            self.clock.now = max(begin, at)
            del each.running[number]
            each.trials += 1
            self.free += 1
            each.staged += each.room >= 1
            self._start(here)
        self.clock.now = until
        for each in here:
            each.count(until - begin)


def fairness(sharers: Sequence[Sharer]) -> float:
    """Return Jain's index of what experiments had for their shares: 1 if all had the same, 1/n if one had all."""
    had = [each.slot_s / each.wish.standing.share for each in sharers]
    return sum(had) ** 2 / (len(had) * sum(value**2 for value in had))


def many(experiments: int, slots: int, *, preemptible: bool = True) -> list[Wish]:
    """Return the wishes of many experiments of all priorities: first those of low priority, which have all slots; after a minute the others.

    Those of high and of normal priority want a fifth and some 70 % of the slots, each so many. Those of low priority, three in ten, want all and have
    what is left, by shares of 1 to 3.
    """
    wishes = []
    for number in range(experiments):
        kind = number % 10
        if kind < 3:
            wishes.append(Wish(Standing("low", 1.0 + number // 10 % 3, preemptible)))
            continue
        priority: Priority = "high" if kind < 5 else "normal"
        most = max(1, int((1.0 if priority == "high" else 1.4) * slots / experiments))
        wishes.append(Wish(Standing(priority, 1.0, preemptible), most=most, comes_at_s=60.0))
    return wishes


def alike(experiments: int, *, preemptible: bool = True) -> list[Wish]:
    """Return the wishes of experiments of one priority that want all slots, by shares of 1 to 3; every other one comes a minute later."""
    return [
        Wish(Standing("normal", 1.0 + number % 3, preemptible), comes_at_s=60.0 * (number % 2))
        for number in range(experiments)
    ]
