"""The driver's part of shares: it publishes a demand, and keeps its experiment to its share."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, runtime_checkable

from mqtune.backends import Pool, SharedSession
from mqtune.core.clock import Clock
from mqtune.core.priorities import Priority
from mqtune.core.timing import Timing
from mqtune.core.trial import Intent, Trial, TrialStatus
from mqtune.core.worker_info import busy_as
from mqtune.driver import Requeue, RunOptions
from mqtune.driver.ports import DriverHost, DriverService
from mqtune.results.experiments import duration
from mqtune.services.shares.demands import Demands
from mqtune.services.shares.divider import SHARE_USED, Demand, Share

logger = logging.getLogger(__name__)

#: After this many seconds without a slot, the reason names the time. Shorter waits are normal when slots change hands.
WAITING_S: Final = 60.0
#: After this many seconds without a slot, a warning is logged: it is longer than a few turns of others.
STARVED_S: Final = 900.0


@runtime_checkable
class SharedFleet(Protocol):
    """A shared fleet, from the view of one of its experiments."""

    #: The experiment's name, and the token by which others know it.
    name: str
    token: str
    #: Measures how long the experiment has had how many slots.
    clock: Clock
    #: The priority of its attempts among all that wait in a queue.
    priority: Priority

    def pool(self) -> Pool:
        """Return the slots of all workers, as of the last refresh."""

    def exchange(self, demand: Demand) -> Share | None:
        """Publish a demand for some seconds, and return the experiment's share.

        It is None if it is unknown.
        """

    def leave(self) -> None:
        """Withdraw the demand."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Priority and weight of an experiment on a fleet; see ``RunOptions``."""

    priority: Priority = "normal"
    share: float = 1.0
    preemptible: bool = False

    @classmethod
    def of(cls, options: RunOptions) -> Standing:
        """Return the standing that a user asks for."""
        return cls(options.priority, float(options.share), options.preemptible)


class BrokerFleet:
    """The fleet of a broker, from the view of a driver's experiment.

    The backend gets the register of workers from here, because one driver reads it for all.
    """

    def __init__(self, host: DriverHost, backend: SharedSession) -> None:
        self.name = host.ledger.journal.experiment
        self.token = busy_as(self.name)
        self.clock = host.clock
        self._backend = backend
        self._journal = host.ledger.journal
        self._demands = Demands(backend.client, patience_s=host.timing.patience_s)
        backend.read_from(self._demands)

    @property
    def priority(self) -> Priority:
        """The priority of the experiment's attempts among all that wait in a queue."""
        return self._backend.priority

    @priority.setter
    def priority(self, priority: Priority) -> None:
        self._backend.priority = priority

    def pool(self) -> Pool:
        """Return the slots of all workers, as of the last refresh."""
        return self._backend.pool()

    def exchange(self, demand: Demand) -> Share | None:
        """Publish a demand for some seconds, and return the experiment's share.

        It is None if it is unknown.
        """
        share = self._demands.exchange(self.name, demand)
        if self._demands.register is not self._backend.register:
            self._journal.fleet_changed = True
        return share

    def leave(self) -> None:
        """End the demand."""
        self._demands.leave(self.token)


class Held(NamedTuple):
    """The slots of an experiment.

    ``running`` counts slots with running attempts, ``live`` also those of waiting attempts. ``is_hungry`` says that it
    could use more.
    """

    running: int
    live: int
    is_hungry: bool


class ShareKeeper:
    """Computes from an experiment's share how many of its attempts may be under way.

    Args:
        fleet: the fleet, which knows the share.
        slots_each: how many slots each attempt takes.
    """

    def __init__(self, fleet: SharedFleet, slots_each: int = 1, timing: Timing = Timing()) -> None:
        self._timing = timing
        self._fleet = fleet
        self._slots_each = slots_each
        self._clock = fleet.clock
        #: How many attempts may be under way; infinite as long as nobody else wants the slots.
        self.limit = math.inf
        #: Why there may be no more, for people.
        self.why = ""
        #: The queues of its slots in which others with less than their share wait.
        self.wanted_by_others: frozenset[str] = frozenset()
        #: Whether the experiment has to release the slots beyond its share, and how many of its trials it has to pause
        #: now.
        self.must_give = False
        self.to_pause = 0
        #: Since when it has run more than its share, and more than that rounded up.
        self._over_since = self._above_since = math.inf
        #: The size limit of its journal, in millions of bytes; and in words, the caps that give it less than it asks
        #: for.
        self.journal_mb = math.inf
        self.capped = ""
        self._used = 0.0
        self._counted_at = fleet.clock.monotonic()
        #: Since when it has had no slot although it wants one; and whether a warning was logged.
        self._waiting_since = math.inf
        self._is_told = False

    def look(self, held: Held, standing: Standing, most: int | None, journal_mb: float = math.inf) -> None:
        """Publish what the experiment wants, and apply the share that it gets.

        Args:
            held: its slots.
            standing: its priority and weight.
            most: the user's limit of attempts under way; None for no limit.
            journal_mb: the journal size that the user asks for, in millions of bytes.
        """
        self._count(held.running)
        pool = self._fleet.pool()
        slots = sum(pool.slots.get(queue, 0) for queue in pool.queues)
        usable = slots // self._slots_each * self._slots_each if pool.most is None else pool.most
        could_use = usable if most is None else min(usable, most * self._slots_each)
        demand = Demand(
            experiment=self._fleet.token,
            queues=pool.queues,
            wanted=max(held.live, could_use) if held.is_hungry else held.live,
            running=held.running,
            priority=standing.priority,
            weight=standing.share,
            used=round(self._used, 3),
            waiting_s=round(self._waiting_s, 1),
            journal_mb=journal_mb,
            unit=self._slots_each,
        )
        share = self._fleet.exchange(demand) or Share(priority=standing.priority)
        self._fleet.priority = share.priority
        self._heed_caps(share)
        is_shared = share.limit < math.inf
        self._note_wait(is_waiting=is_shared and not held.running and demand.wanted > 0)
        # A sated experiment gets one more than it has: without that it never finds out that it wants more.
        self.limit = self._attempts(share.limit) + (not held.is_hungry and held.live <= share.limit)
        self.wanted_by_others = frozenset(share.wanted)
        self.must_give = bool(share.full or share.wanted)
        self.why = self._in_words(share, slots) if share.limit < could_use else ""
        self._warn_if_starved()
        self._count_surplus(held.running, share)

    def _attempts(self, slots: float) -> float:
        """Return how many attempts fit in a number of slots."""
        return slots // self._slots_each if slots < math.inf else slots

    def _heed_caps(self, share: Share) -> None:
        if share.capped and share.capped != self.capped:
            logger.warning("experiment %s asks for more than it may have%s", self._fleet.name, share.capped)
        self.journal_mb, self.capped = share.journal_mb, share.capped

    def _count(self, running: int) -> None:
        """Update the average of its slots over the last minutes."""
        now = self._clock.monotonic()
        self._used += (running - self._used) * -math.expm1(-(now - self._counted_at) / self._timing.share_memory_s)
        self._counted_at = now

    @property
    def _waiting_s(self) -> float:
        return max(0.0, self._clock.monotonic() - self._waiting_since)

    def _note_wait(self, *, is_waiting: bool) -> None:
        if is_waiting:
            self._waiting_since = min(self._waiting_since, self._clock.monotonic())
        else:
            self._waiting_since, self._is_told = math.inf, False

    def _warn_if_starved(self) -> None:
        if self.why and self._waiting_s >= STARVED_S and not self._is_told:
            self._is_told = True
            text = "%s; it waits on, and mqtune why %s says what would help"
            logger.warning(text, self.why, self._fleet.name, extra={"action": "experiment_starves"})

    def _count_surplus(self, running: int, share: Share) -> None:
        """Count the trials to be paused.

        These are the trials beyond the share that have run for too long.
        """
        now = self._clock.monotonic()
        self._over_since = min(self._over_since, now) if running > share.limit else math.inf
        self._above_since = min(self._above_since, now) if running > share.at_most else math.inf
        self.to_pause = 0
        if self.must_give and now - self._over_since >= self._timing.share_turn_s:
            self.to_pause = running // self._slots_each - int(self._attempts(share.limit))
        elif self.must_give and now - self._above_since >= self._timing.share_grace_s:
            self.to_pause = running // self._slots_each - int(self._attempts(share.at_most))

    def _in_words(self, share: Share, slots: int) -> str:
        """Return the quota or share that limits the experiment, for people.

        It also says how long the experiment has waited for a slot, and when it gets one.
        """
        waits = f"; it has had no slot for {duration(self._waiting_s)}" if self._waiting_s >= WAITING_S else ""
        if waits and share.aging_s < math.inf and not share.full:
            waits += (
                f", and gets {'one' if self._slots_each == 1 else self._slots_each} after {duration(share.aging_s)}"
            )
        if share.full:
            return share.full + waits + share.capped
        beside = f"{share.rivals} other experiment{'s' * (share.rivals > 1)} want{'s' * (share.rivals == 1)} slots too"
        higher = f", {share.higher} of higher priority" if share.higher else ""
        takes = f", of which a trial takes {self._slots_each}" if self._slots_each > 1 else ""
        return f"{SHARE_USED}: {share.limit:.0f} of {slots} slots{takes}, as {beside}{higher}{waits}{share.capped}"

    def leave(self) -> None:
        """End the demand, so that others get the slots immediately."""
        self._fleet.leave()


class Sharing(DriverService):
    """Keeps a driver's experiment to its share.

    Args:
        host: the driver.
        fleet: the fleet, whose slots the driver's backend has.
    """

    def __init__(self, host: DriverHost, fleet: SharedFleet) -> None:
        self._host = host
        self._experiment = host.experiment
        self._slots_each = host.resources.slots
        self._keeper = ShareKeeper(fleet, self._slots_each, host.timing)
        self._is_new = True
        self.due = host.clock.monotonic() + host.timing.look_at_shares_s

    def capacity(self) -> float:
        """Return how many attempts may be under way. The first call publishes the demand."""
        if self._is_new:
            self._update_share(Standing.of(self._host.options()))
        return self._keeper.limit

    def reason(self) -> str:
        """Return why no more may be under way, for people; empty while they may."""
        return self._keeper.why if self._experiment.live >= self._keeper.limit else ""

    def tick(self) -> Iterator[Requeue]:
        """Publish the demand, and yield actions that release slots beyond the experiment's share."""
        self.due = self._host.clock.monotonic() + self._host.timing.look_at_shares_s
        standing = Standing.of(self._host.options())
        self._update_share(standing)
        yield from self._withdraw(self._keeper)
        if standing.preemptible:
            yield from self._pause(self._keeper)

    def _update_share(self, standing: Standing) -> None:
        self._is_new = False
        running, live = (count * self._slots_each for count in (self._experiment.running, self._experiment.live))
        most, has_more = self._host.appetite()
        heartbeat = self._host.heartbeat
        self._keeper.look(Held(running, live, has_more), standing, most, heartbeat.journal_mb)
        heartbeat.cap(self._keeper.journal_mb, self._keeper.capped)

    def _withdraw(self, keeper: ShareKeeper) -> Iterator[Requeue]:
        """Yield actions that withdraw waiting attempts beyond the share.

        The attempts that would be staged first are withdrawn last.
        """
        surplus = self._experiment.live - keeper.limit
        if surplus <= 0 or not keeper.must_give:
            return
        waiting = sorted(filter(_waits, self._experiment.busy.values()), key=lambda trial: trial.precedence)
        for trial in reversed(waiting[-math.ceil(surplus) :]):
            yield Requeue(trial, keeper.why)

    def _pause(self, keeper: ShareKeeper) -> Iterator[Requeue]:
        """Yield actions that pause trials with a checkpoint, the least promising first.

        These trials resume as soon as there is a slot again.
        """
        running = [trial for trial in self._experiment.busy.values() if trial.status is TrialStatus.RUNNING]
        leaving = sum(not trial.attempt.is_open for trial in running)
        where = keeper.wanted_by_others
        could = [
            trial
            for trial in running
            if trial.attempt.is_open and trial.checkpoint and (not where or trial.attempt.queue in where)
        ]
        for trial in sorted(could, key=self._promise)[: max(0, keeper.to_pause - leaving)]:
            yield Requeue(trial, f"paused, and goes on later: {keeper.why}", Intent.GIVE_WAY)

    def _promise(self, trial: Trial) -> tuple[bool, bool, float, str]:
        """Return a sort key by which the least promising trials come first.

        First come trials without a value, by their number of reports. Then come infeasible trials, and then the others,
        each from the worst value to the best.
        """
        value = trial.best_value
        is_known = value == value  # noqa: PLR0124 - NaN is not itself
        goodness = -value if self._experiment.mode == "min" else value
        is_feasible = is_known and self._experiment.is_feasible(trial)
        return is_known, is_feasible, goodness if is_known else trial.reports, trial.id

    def close(self) -> None:
        """Withdraw the demand, so that others get the slots."""
        if not self._is_new:
            self._keeper.leave()


def _waits(trial: Trial) -> bool:
    """Whether a trial's attempt waits for a slot, and no order to end it is given."""
    attempt = trial.attempt
    return trial.status is TrialStatus.QUEUED and attempt.intent is Intent.RUN


def for_driver(host: DriverHost) -> Sequence[DriverService]:
    """Return the keeper of the share, if other experiments may use the slots of the backend."""
    return (Sharing(host, BrokerFleet(host, host.backend)),) if isinstance(host.backend, SharedSession) else ()
