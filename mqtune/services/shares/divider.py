"""Computes fair shares: how many slots of a fleet each experiment may have.

One process computes them for all. Classes of priority are served one after the other. Within a class, slots are divided
by weighted max-min fairness: no experiment gets more than it wants, its surplus goes to the others by their weights,
and none can get more without a loss for another that has less for its weight. An experiment may be able to use the
slots of some queues only. Slots are given one by one, each to the experiment with the fewest slots for its weight. If
necessary, other experiments move to other queues that suit them. The possible results are a polymatroid, on which such
a greedy choice is optimal (Federgruen and Groenevelt, The greedy procedure for resource allocation problems, Operations
Research 34, 1986).

Slots are whole. An experiment that recently had less than its share is rounded up, so in the long run even shares below
one slot come true. An experiment whose trials need several slots gets multiples of that number. A remainder that is too
small for a trial goes to others.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from types import MappingProxyType
from typing import Final, NamedTuple

from mqtune.core.codec import Number
from mqtune.core.priorities import PRIORITIES, Priority
from mqtune.core.resources import MOST_TASKS


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The slots of an experiment, and the slots that it wants.

    Args:
        experiment: a token for it; see ``busy_as``.
        queues: the queues of the slots that suit it, the smallest slots first.
        wanted: the number of slots that it could use, including its own.
        unit: the number of slots of each of its trials; it gets multiples of that.
        running: the number of slots in which it runs.
        priority: its class of priority.
        weight: how much it gets against others of its class, above 0.
        used: the average number of its slots over the last minutes.
        quotas: the patterns of the quotas and caps that it falls under.
        waiting_s: for how many seconds it has had no slot while others have slots that it wants.
        journal_mb: the limit of its journal, in millions of bytes; infinite for no limit.
        capped: the caps that give it less than it asks for, in words; empty if none does.

    Raises:
        ValueError: the unit is not a number from 1 to ``MOST_TASKS``.
    """

    experiment: str
    queues: Sequence[str]
    wanted: int
    running: int = 0
    priority: Priority = "normal"
    weight: Number = 1.0
    used: Number = 0.0
    quotas: Sequence[str] = ()
    waiting_s: Number = 0.0
    journal_mb: Number = math.inf
    capped: str = ""
    unit: int = 1

    def __post_init__(self) -> None:
        # Another driver's demand may be anything.
        if type(self.unit) is not int or not 1 <= self.unit <= MOST_TASKS:
            raise ValueError(f"unit={self.unit!r:.100}")

    @property
    def most(self) -> int:
        """The largest number of slots that it may get: the wanted number, in whole units."""
        return self.wanted // self.unit * self.unit


#: First words of the reason why an experiment starts no more trials.
SHARE_USED: Final = "its share is used up"
QUOTA_USED: Final = "its quota is used up"
_FITTING: Final = " for all experiments whose names fit "


def quota_in(sentence: str) -> str:
    """Return the pattern of the quota that a sentence of ``quota_used`` names."""
    return sentence.partition(_FITTING)[2].partition(";")[0]


def quota_used(pattern: str, slots: int) -> str:
    """Return the sentence that says that a quota leaves an experiment no more slots."""
    return f"{QUOTA_USED}: {slots} slots{_FITTING}{pattern}"


#: How strongly the recent use of an experiment influences its rounding: an experiment that is a hundredth of a slot
#: behind is rounded the other way. With a smaller factor, experiments stay ahead of their share, or behind it.
_PULL: Final = 100.0
#: Less than any part of a slot that makes a difference.
_LITTLE: Final = 1e-9


#: Default for the seconds without a slot after which an experiment gets one, of any priority. Within a day, priorities
#: decide, and no experiment waits for ever.
AGING_S: Final = 86_400.0


class Cap(NamedTuple):
    """Limits for each experiment whose name fits a pattern, and the person who has set them."""

    priority: Priority = PRIORITIES[0]
    share: float = math.inf
    journal_mb: float = math.inf
    by: str = ""


class Table(NamedTuple):
    """The demands of all experiments of a fleet, and the limits that its operator has set.

    ``quotas`` has by pattern the number of slots that all experiments with fitting names may have together. ``caps``
    has by pattern the limits for each of them. ``aging_s`` is the number of seconds without a slot after which an
    experiment gets one, infinite for never.
    """

    demands: Sequence[Demand]
    quotas: Mapping[str, int]
    aging_s: float = AGING_S
    caps: Mapping[str, Cap] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The part of a fleet that one experiment may have.

    Args:
        limit: how many slots it may have; infinite while nobody else wants its slots and no quota holds it.
        at_most: the limit rounded up, as if it had used no slots recently.
        priority: its class, as far as caps let it.
        rivals: how many others want slots too, of any queue.
        higher: how many of these have a higher priority.
        wanted: those of its queues in which others with less than their share wait for slots.
        full: the quota that leaves it no more, in words; empty for none.
        journal_mb: the limit of its journal under its caps; see ``Demand``.
        capped: see ``Demand``.
        aging_s: the number of seconds without a slot after which it gets one; infinite for never.
    """

    limit: Number = math.inf
    at_most: Number = math.inf
    priority: Priority = "normal"
    rivals: int = 0
    higher: int = 0
    wanted: list[str] = field(default_factory=list)
    full: str = ""
    journal_mb: Number = math.inf
    capped: str = ""
    aging_s: Number = AGING_S


def held_to(demand: Demand, patterns: Iterable[str], caps: Mapping[str, Cap]) -> Demand:
    """Return a demand with its quotas and caps, reduced as far as the caps demand.

    Args:
        demand: the demand of an experiment.
        patterns: the patterns of quotas and caps that its name fits.
        caps: all caps, by their patterns.
    """
    under = tuple(sorted(patterns))
    priority, weight, journal_mb, said = demand.priority, demand.weight, demand.journal_mb, ""
    for pattern in under:
        cap = caps.get(pattern, Cap())
        least, whose = [], f"the most for experiments whose names fit {pattern}, as set by {cap.by}"
        capped = max(priority, cap.priority, key=PRIORITIES.index), min(weight, cap.share)
        if capped != (priority, weight):
            priority, weight = capped
            least += [f"priority {priority}", f"share {weight:g}"]
        if cap.journal_mb < journal_mb:
            journal_mb = cap.journal_mb
            least.append(f"a journal of {journal_mb:,g} MB")
        if least:
            are = "are" if least[1:] else "is"
            said += f"; {' and '.join(least)} {are} {whose}"
    return replace(demand, priority=priority, weight=weight, journal_mb=journal_mb, quotas=under, capped=said)


def divide(table: Table, slots: Mapping[str, int], busy: Mapping[str, Mapping[str, int]]) -> dict[str, Share]:
    """Return the share of each experiment, by its token. Equal arguments give equal shares.

    Args:
        table: the demands of all, under their caps.
        slots: the slots of each queue.
        busy: the number of busy slots by experiment token and queue.
    """
    demands, quotas, aging_s = table.demands, table.quotas, table.aging_s
    shared = to_share(slots, busy, {demand.experiment for demand in demands})
    limits = entitlements(demands, shared, quotas, aging_s=aging_s)
    highest = _rounded_up(table, shared, limits)
    under = Counter(dict.fromkeys(quotas, 0))
    wanting: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    ranks: Counter[str] = Counter()
    for demand in demands:
        queues = set(demand.queues)
        under.update(dict.fromkeys(set(demand.quotas) & quotas.keys(), limits[demand.experiment]))
        ranks[demand.priority] += demand.wanted > 0
        wanting.update(queues if demand.wanted else ())
        waiting.update(queues if demand.running < limits[demand.experiment] else ())
    all_slots = sum(slots.values())
    shares = {}
    for demand in demands:
        limit, wants = limits[demand.experiment], demand.wanted > 0
        # A quota that is larger than the fleet limits no experiment; it only counts.
        is_held = any(quotas.get(pattern, all_slots) < all_slots for pattern in demand.quotas)
        alone = shares[demand.experiment] = Share(
            priority=demand.priority, journal_mb=demand.journal_mb, capped=demand.capped, aging_s=aging_s
        )
        if not is_held and all(wanting[queue] <= wants for queue in demand.queues):
            continue
        full = [pattern for pattern in demand.quotas if under[pattern] + demand.unit > quotas.get(pattern, math.inf)]
        waits = demand.running < limit
        shares[demand.experiment] = replace(
            alone,
            limit=limit,
            at_most=highest[demand.experiment],
            rivals=ranks.total() - wants,
            higher=sum(ranks[priority] for priority in PRIORITIES[: PRIORITIES.index(demand.priority)]),
            wanted=[queue for queue in dict.fromkeys(demand.queues) if waiting[queue] > waits],
            full=quota_used(full[0], quotas[full[0]]) if full else "",
        )
    return shares


def _rounded_up(table: Table, slots: Mapping[str, int], limits: Mapping[str, int]) -> Mapping[str, int]:
    """Return the most slots that rounding could give each experiment, for any recent use.

    They are needed only if an experiment runs more than its share. Otherwise the result is *limits*.
    """
    if all(demand.running <= limits[demand.experiment] for demand in table.demands):
        return limits
    filling = _Filling(dict(slots), dict(table.quotas), rounds_down=True)
    _fill(table.demands, filling, table.aging_s)
    # Rounded up, it would get each slot whose turn comes before the last turn that another experiment got.
    last = {demand.experiment: filling.ended_at.get(demand.experiment, 0.0) * demand.weight for demand in table.demands}
    return {
        demand.experiment: max(
            limits[demand.experiment],
            min(demand.most, math.ceil(last[demand.experiment] / demand.unit - _LITTLE) * demand.unit),
        )
        for demand in table.demands
    }


def to_share(slots: Mapping[str, int], busy: Mapping[str, Mapping[str, int]], known: Container[str]) -> dict[str, int]:
    """Return the number of slots to divide in each queue.

    The slots of experiments without a driver are left out, because nobody would release them.

    Args:
        slots: the number of slots by queue.
        busy: the number of busy slots by experiment token and queue.
        known: the experiments that have a driver, by their tokens.
    """
    left = dict(slots)
    for experiment, queues in busy.items():
        if experiment not in known:
            for queue, count in queues.items():
                left[queue] = max(0, left.get(queue, 0) - count)
    return left


def entitlements(
    demands: Iterable[Demand],
    slots: Mapping[str, int],
    quotas: Mapping[str, int] | None = None,
    *,
    aging_s: float = AGING_S,
) -> dict[str, int]:
    """Return how many slots each experiment may have.

    The order of the demands makes no difference.

    An experiment that has had no slot for ``aging_s`` gets the slots of one trial before all priorities. The one that
    has waited longest comes first. While it has them it counts as any other, so it gets the slots of one trial, or of
    one turn, in each such time.

    Args:
        demands: one for each experiment.
        slots: the slots of each queue.
        quotas: how many slots all experiments under a quota may have together.
        aging_s: the number of seconds without a slot after which an experiment gets one; infinite for never.
    """
    return _fill(demands, _Filling(dict(slots), dict(quotas or {})), aging_s)


def _fill(demands: Iterable[Demand], filling: _Filling, aging_s: float) -> dict[str, int]:
    """Give all experiments their slots, and return the number of slots of each."""
    ordered = sorted(demands, key=lambda demand: (PRIORITIES.index(demand.priority), demand.experiment))
    slots = {demand.experiment: 0 for demand in ordered}
    waiting = [demand for demand in ordered if demand.waiting_s >= aging_s and demand.most > 0 and not demand.running]
    for demand in sorted(waiting, key=lambda demand: -demand.waiting_s):
        slots[demand.experiment] = filling.give(demand, 0.0)
    for _, some in groupby(ordered, key=lambda demand: demand.priority):
        _fill_class(list(some), filling, slots)
    return slots


def _fill_class(demands: list[Demand], filling: _Filling, slots: dict[str, int]) -> None:
    """Give slots to the experiments of one class, and count them in *slots*.

    Each slot goes to the experiment with the fewest slots for its weight.
    """
    filling.newest.clear()
    wanting = [demand for demand in demands if demand.most > 0]
    behind = dict.fromkeys(slots, 1.0) if filling.rounds_down else _roundings(wanting)
    # ``give_certain`` needs experiments without slots.
    if not any(slots[demand.experiment] for demand in wanting):
        slots.update(filling.give_certain(wanting))
    turns = [
        (
            (slots[demand.experiment] + behind[demand.experiment] * demand.unit) / demand.weight,
            demand.experiment,
            demand,
        )
        for demand in wanting
        if slots[demand.experiment] < demand.most
    ]
    heapq.heapify(turns)
    while turns:
        turn, name, demand = heapq.heappop(turns)
        # An experiment that gets no slot now never gets one: slots only become fewer.
        if given := filling.give(demand, turn):
            slots[name] += given
            if slots[name] < demand.most:
                heapq.heappush(turns, ((slots[name] + behind[name] * demand.unit) / demand.weight, name, demand))


def _at_least(demands: Sequence[Demand], free: int) -> dict[str, int]:
    """Return for each experiment a number of slots that it gets, however shares are rounded."""
    left, weights, level = float(free), sum(demand.weight for demand in demands), math.inf
    for demand in sorted(demands, key=lambda demand: demand.wanted / demand.weight):
        level = left / weights
        if demand.wanted > level * demand.weight:
            break
        left, weights, level = left - demand.wanted, weights - demand.weight, math.inf
    # Rounding moves the level by a slot of the smallest weight at most, and a share by another one.
    level -= 1 / min(demand.weight for demand in demands)
    return {
        demand.experiment: demand.wanted
        if level == math.inf
        else max(0, min(demand.wanted, int(level * demand.weight) - 1))
        for demand in demands
    }


def _roundings(demands: Sequence[Demand]) -> dict[str, float]:
    """Return for each experiment a number between 0 and 1 by which its share is rounded.

    0 rounds it up, and 1 down.
    """
    weights = sum(demand.weight for demand in demands)
    usual = sum(demand.used for demand in demands) / weights if weights else 0.0
    ahead = {demand.experiment: _PULL * (demand.used - usual * demand.weight) for demand in demands}
    return {name: 0.5 + 0.5 * slots / (1 + abs(slots)) for name, slots in ahead.items()}


@dataclass(slots=True)
class _Filling:
    """Assigns slots of queues to experiments.

    A later step may move an experiment to another queue that suits it.
    """

    free: dict[str, int]
    #: The remaining slots of each quota.
    left: dict[str, int]
    #: Whether all shares are rounded down, for any recent use.
    rounds_down: bool = False
    #: By queue, the number of slots of each experiment; and by experiment, the queues that suit it.
    holders: dict[str, Counter[str]] = field(default_factory=dict)
    queues_of: dict[str, Sequence[str]] = field(default_factory=dict)
    #: By queue or quota, the turn in which its last slot was given; and by experiment, the turn of the last slot that
    #: it could have had.
    newest: dict[str, float] = field(default_factory=dict)
    ended_at: dict[str, float] = field(default_factory=dict)

    def give_certain(self, demands: Sequence[Demand]) -> dict[str, int]:
        """Give experiments the slots that they get in any case, and return their numbers.

        This saves most turns. It gives none if the experiments have different queues, quotas, or trials with several
        slots.
        """
        if len({tuple(demand.queues) for demand in demands}) != 1 or any(
            self.left.keys() & demand.quotas or demand.unit > 1 for demand in demands
        ):
            return {}
        queues = demands[0].queues
        given = _at_least(demands, sum(self.free.get(queue, 0) for queue in queues))
        for demand in demands:
            self.queues_of[demand.experiment] = queues
            count = given[demand.experiment]
            for queue in queues:
                taken = min(count, self.free.get(queue, 0))
                if taken:
                    self.free[queue] -= taken
                    self.holders.setdefault(queue, Counter())[demand.experiment] += taken
                    count -= taken
        return given

    def give(self, demand: Demand, turn: float) -> int:
        """Give an experiment the slots of another trial, and return their number.

        It is 0 if there are too few. Then later calls give it none either.
        """
        unit = demand.unit
        used_up = [quota for quota in demand.quotas if self.left.get(quota, unit) < unit]
        self.queues_of[demand.experiment] = demand.queues
        if not used_up and not (used_up := self._place_all(demand, turn)):
            for quota in demand.quotas:
                if quota in self.left:
                    self.left[quota] -= unit
                    self.newest[quota] = turn
            return unit
        self.ended_at[demand.experiment] = max((self.newest.get(name, 0.0) for name in used_up), default=0.0)
        return 0

    def _place_all(self, demand: Demand, turn: float) -> list[str]:
        """Give an experiment the slots of one trial, and return an empty list.

        If there are too few, give none and return the queues that are used up.
        """
        if demand.unit == 1:
            return self._place(demand, turn)
        before = dict(self.newest)
        for placed in range(demand.unit):
            if used_up := self._place(demand, turn):
                self._take_back(demand.experiment, placed)
                self.newest = before
                return used_up
        return []

    def _take_back(self, experiment: str, count: int) -> None:
        """Take *count* slots back from an experiment.

        Other experiments that ``_place`` has moved to other queues, to free these slots, are not moved back.
        """
        for queue, holders in self.holders.items():
            taken = min(count, holders[experiment])
            holders[experiment] -= taken
            self.free[queue] = self.free.get(queue, 0) + taken
            count -= taken

    def _place(self, demand: Demand, turn: float) -> list[str]:
        """Give an experiment one slot, and return an empty list.

        Other experiments may move to other queues for it. If no move helps, return the queues that are used up.
        """
        #: By each queue that the search has reached, the queue before it and the experiment that would move.
        came: dict[str, tuple[str, str]] = dict.fromkeys(demand.queues, ("", demand.experiment))
        ahead = deque(came)
        while ahead:
            queue = ahead.popleft()
            if self.free.get(queue, 0) > 0:
                self.free[queue] -= 1
                self.newest[queue] = turn
                self._move(queue, came)
                return []
            for holder in self._holders(queue):
                for other in self.queues_of[holder]:
                    if other not in came:
                        came[other] = queue, holder
                        ahead.append(other)
        return list(came)

    def _holders(self, queue: str) -> list[str]:
        return [name for name, count in self.holders.get(queue, Counter()).items() if count]

    def _move(self, queue: str, came: Mapping[str, tuple[str, str]]) -> None:
        """Move each experiment on the path to a free slot by one queue."""
        while queue:
            before, holder = came[queue]
            self.holders.setdefault(queue, Counter())[holder] += 1
            if before:
                self.holders[before][holder] -= 1
            queue = before
