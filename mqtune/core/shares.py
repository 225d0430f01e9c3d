"""Fair shares: how many slots of one fleet each of several experiments may have, worked out by each driver for itself.

Classes of priority come one after the other. Within one, slots go by weighted max-min fairness: nobody gets more than it wants, what it
leaves goes to the others by their weights, and nobody can get more without taking from one that has less for its weight. Slots of
several queues need not fit all; slots are given one by one, each to whom has least for its weight, and others move to queues that
suit them too. What can be given so is a polymatroid, on which such a greedy choice is best (Federgruen and Groenevelt, The greedy
procedure for resource allocation problems, Operations Research 34, 1986). Slots are whole: who had less than its share of late is
rounded up, so that in the long run also shares below one slot come true.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, get_args

Priority = Literal["high", "normal", "low"]
#: From the first to be served to the last.
PRIORITIES: Final[tuple[Priority, ...]] = get_args(Priority)
#: The priority of a Celery message, by that of its experiment. kombu keeps a list for each, and "normal" has the one that is named as
#: the queue, where messages without a priority are.
MESSAGE_PRIORITIES: Final[Mapping[Priority, int]] = {"high": 3, "normal": 0, "low": 6}
#: The order in which workers take from those lists; 9 is the last that kombu knows.
MESSAGE_ORDER: Final = (*(MESSAGE_PRIORITIES[each] for each in PRIORITIES), 9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What an experiment has of a fleet and wants of it.

    Args:
        experiment: a token for it; see ``busy_as``.
        queues: those of the slots that suit it, the smallest slots first.
        wanted: how many slots it could use, with those that it has.
        running: how many it has.
        priority: its class.
        weight: how much it gets against others of its class, above 0.
        used: how many slots it had of late, on average.
        quotas: the quotas that it falls under.
        waiting_s: for how many seconds it has wanted slots that others have, and had none.
    """

    experiment: str
    queues: Sequence[str]
    wanted: int
    running: int = 0
    priority: Priority = "normal"
    weight: float = 1.0
    used: float = 0.0
    quotas: Sequence[str] = ()
    waiting_s: float = 0.0


#: What begins the sentence that says why an experiment starts nothing more, where that is because of others.
SHARE_USED: Final = "its share is used up"
QUOTA_USED: Final = "its quota is used up"
_FITTING: Final = " for all experiments whose names fit "


def quota_in(sentence: str) -> str:
    """Return the pattern of the quota that a sentence of ``quota_used`` names."""
    return sentence.partition(_FITTING)[2].partition(";")[0]


def quota_used(pattern: str, slots: int) -> str:
    """Return the sentence that says that a quota leaves an experiment no more slots."""
    return f"{QUOTA_USED}: {slots} slots{_FITTING}{pattern}"


#: How strongly what an experiment had of late turns its rounding: so much that who is a hundredth of a slot behind is well on the other
#: side. With less, who has much of a slot to get stays ahead of its share, and who has little stays behind.
_PULL: Final = 100.0


#: After how many seconds without a slot an experiment gets one, whatever its priority, unless the fleet's operator has said otherwise: so
#: long that who comes first is served first all day, and nobody waits for ever.
AGING_S: Final = 86_400.0


class Cap(NamedTuple):
    """The highest priority and the largest share of the experiments whose names fit a pattern, and who has set that."""

    priority: Priority = PRIORITIES[0]
    share: float = math.inf
    by: str = ""


class Table(NamedTuple):
    """What all experiments want of a fleet, and what its operator has set.

    ``quotas`` says how many slots all those may have together whose names fit a pattern, ``aging_s`` after how many seconds without a slot
    an experiment gets one, infinite for never, and ``caps`` how much those may ask for whose names fit a pattern.
    """

    demands: Sequence[Demand]
    quotas: Mapping[str, int]
    aging_s: float = AGING_S
    caps: Mapping[str, Cap] = MappingProxyType({})


class Pool(NamedTuple):
    """The slots of a fleet.

    ``slots`` has their number by queue, of all queues; ``queues`` are those that suit the experiment, the smallest slots first;
    ``busy`` has by experiment, as ``busy_as`` names it, in how many slots of each queue it runs.
    """

    slots: Mapping[str, int]
    queues: Sequence[str]
    busy: Mapping[str, Mapping[str, int]]


def to_share(pool: Pool, known: Container[str]) -> dict[str, int]:
    """Return the slots of each queue without those of trials that run on without a driver, which nobody gives back.

    Args:
        pool: the slots of a fleet.
        known: the experiments that have a driver, by their tokens.
    """
    slots = dict(pool.slots)
    for experiment, queues in pool.busy.items():
        if experiment not in known:
            for queue, count in queues.items():
                slots[queue] = max(0, slots.get(queue, 0) - count)
    return slots


def entitlements(
    demands: Iterable[Demand],
    slots: Mapping[str, int],
    quotas: Mapping[str, int] | None = None,
    *,
    aging_s: float = AGING_S,
) -> dict[str, int]:
    """Return how many slots each experiment may have; the same for the same arguments, with the demands in any order.

    An experiment that has waited for ``aging_s`` has one before all priorities, the one that has waited longest first. Once it
    has that it counts as any other; so it gets a slot for one trial, or for a turn, in each such time.

    Args:
        demands: one for each experiment.
        slots: the slots of each queue.
        quotas: how many slots all experiments under a quota may have together.
        aging_s: after how many seconds without a slot an experiment gets one; infinite for never.
    """
    filling = _Filling(dict(slots), dict(quotas or {}))
    ordered = sorted(demands, key=lambda each: (PRIORITIES.index(each.priority), each.experiment))
    found = {each.experiment: 0 for each in ordered}
    waiting = [each for each in ordered if each.waiting_s >= aging_s and each.wanted > 0 and not each.running]
    for each in sorted(waiting, key=lambda each: -each.waiting_s):
        found[each.experiment] = int(filling.give(each))
    for _, some in groupby(ordered, key=lambda each: each.priority):
        _share(list(some), filling, found)
    return found


def _share(demands: list[Demand], filling: _Filling, found: dict[str, int]) -> None:
    """Give slots to the experiments of one class, each time to whom has least for its weight."""
    wanting = [each for each in demands if each.wanted > 0]
    behind = _roundings(wanting)
    # That reckons from nothing.
    if not any(found[each.experiment] for each in wanting):
        found.update(filling.give_at_once(wanting))
    turns = [
        ((found[each.experiment] + behind[each.experiment]) / each.weight, each.experiment, each)
        for each in wanting
        if found[each.experiment] < each.wanted
    ]
    heapq.heapify(turns)
    while turns:
        _, name, demand = heapq.heappop(turns)
        # Who can't get another one now never can: slots only become fewer.
        if filling.give(demand):
            found[name] += 1
            if found[name] < demand.wanted:
                heapq.heappush(turns, ((found[name] + behind[name]) / demand.weight, name, demand))


def _at_least(demands: Sequence[Demand], free: int) -> dict[str, int]:
    """Return how many of so many slots each gets in any case, however shares are rounded."""
    left, weights, level = float(free), sum(each.weight for each in demands), math.inf
    for each in sorted(demands, key=lambda each: each.wanted / each.weight):
        level = left / weights
        if each.wanted > level * each.weight:
            break
        left, weights, level = left - each.wanted, weights - each.weight, math.inf
    # Rounding moves the level by a slot of the smallest weight at most, and a share by another one.
    level -= 1 / min(each.weight for each in demands)
    return {
        each.experiment: each.wanted if level == math.inf else max(0, min(each.wanted, int(level * each.weight) - 1))
        for each in demands
    }


def _roundings(demands: Sequence[Demand]) -> dict[str, float]:
    """Return for each experiment a number between 0, which rounds its share up, and 1, which rounds it down."""
    weights = sum(each.weight for each in demands)
    usual = sum(each.used for each in demands) / weights if weights else 0.0
    ahead = {each.experiment: _PULL * (each.used - usual * each.weight) for each in demands}
    return {name: 0.5 + 0.5 * slots / (1 + abs(slots)) for name, slots in ahead.items()}


@dataclass(slots=True)
class _Filling:
    """Slots, by queue, as they are given away; who has one may be moved to another queue that suits it."""

    free: dict[str, int]
    #: What is left of each quota.
    left: dict[str, int]
    holders: dict[str, Counter[str]] = field(default_factory=dict)
    queues_of: dict[str, Sequence[str]] = field(default_factory=dict)

    def give_at_once(self, demands: Sequence[Demand]) -> dict[str, int]:
        """Give experiments what they get in any case, where that is easily known; return how many slots each has."""
        if len({tuple(each.queues) for each in demands}) != 1 or any(
            self.left.keys() & each.quotas for each in demands
        ):
            return {}
        queues = demands[0].queues
        given = _at_least(demands, sum(self.free.get(queue, 0) for queue in queues))
        for each in demands:
            self.queues_of[each.experiment] = queues
            count = given[each.experiment]
            for queue in queues:
                taken = min(count, self.free.get(queue, 0))
                if taken:
                    self.free[queue] -= taken
                    self.holders.setdefault(queue, Counter())[each.experiment] += taken
                    count -= taken
        return given

    def give(self, demand: Demand) -> bool:
        """Give an experiment another slot; return False when there is none for it, and never will be."""
        if any(self.left.get(quota, 1) <= 0 for quota in demand.quotas):
            return False
        self.queues_of[demand.experiment] = demand.queues
        if not self._place(demand):
            return False
        for quota in demand.quotas:
            if quota in self.left:
                self.left[quota] -= 1
        return True

    def _place(self, demand: Demand) -> bool:
        #: By each queue that was come to, the one before it, and who would move from there.
        came: dict[str, tuple[str, str]] = dict.fromkeys(demand.queues, ("", demand.experiment))
        ahead = deque(came)
        while ahead:
            queue = ahead.popleft()
            if self.free.get(queue, 0) > 0:
                self.free[queue] -= 1
                self._move(queue, came)
                return True
            for holder in self._holders(queue):
                for other in self.queues_of[holder]:
                    if other not in came:
                        came[other] = queue, holder
                        ahead.append(other)
        return False

    def _holders(self, queue: str) -> list[str]:
        return [name for name, count in self.holders.get(queue, Counter()).items() if count]

    def _move(self, queue: str, came: Mapping[str, tuple[str, str]]) -> None:
        """Move everybody on the way to a free slot by one queue."""
        while queue:
            before, holder = came[queue]
            self.holders.setdefault(queue, Counter())[holder] += 1
            if before:
                self.holders[before][holder] -= 1
            queue = before
