"""The driver's part in sharing a fleet.

It says what its experiment wants, hears its share of the slots, and keeps to it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, cast, runtime_checkable

from mqtune.core.checks import flag, one_of, positive
from mqtune.core.clock import Clock
from mqtune.core.experiment import Experiment
from mqtune.core.shares import PRIORITIES, SHARE_USED, Demand, Pool, Priority, Share
from mqtune.core.timing import Timing
from mqtune.core.trial import Intent, Trial, TrialStatus
from mqtune.driver.actions import Requeue
from mqtune.driver.heartbeat import Heartbeat
from mqtune.results.experiments import duration

logger = logging.getLogger(__name__)

#: From when on it is said for how long an experiment has had no slot, in seconds: less is how slots change hands.
WAITING_S: Final = 60.0
#: From when on that is a warning: longer than a few turns of others.
STARVED_S: Final = 900.0


@runtime_checkable
class SharedFleet(Protocol):
    """What a backend's session has beside, if several experiments may use its slots at once."""

    #: The experiment's name, and its token, as others hear of it.
    name: str
    token: str
    #: Tells how long it had how much.
    clock: Clock
    #: The order of its attempts among those that wait in a queue.
    priority: Priority

    def pool(self) -> Pool:
        """Return the slots of all workers, as of the last refresh."""

    def exchange(self, demand: Demand) -> Share | None:
        """Say for some seconds what the experiment wants, and return what it may have; None where that is not known."""

    def leave(self) -> None:
        """Want nothing any more."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What an experiment is to get of a fleet, against others: see ``Run``."""

    priority: Priority = "normal"
    share: float = 1.0
    preemptible: bool = False

    def changed(self, changes: Mapping[str, object]) -> Standing:
        """Return it with what of it is among *changes*.

        Raises:
            ConfigurationError: there is no such priority, the share is no number above 0, or *preemptible* no flag.
        """
        priority = cast("Priority", one_of("", "priority", changes.get("priority", self.priority), PRIORITIES))
        share = float(positive("", "share", changes.get("share", self.share)))
        return Standing(priority, share, flag("", "preemptible", changes.get("preemptible", self.preemptible)))


class Held(NamedTuple):
    """What an experiment holds.

    It has the slots in which it runs, those with waiting attempts, and whether it could use more.
    """

    running: int
    live: int
    is_hungry: bool


class ShareKeeper:
    """Keeps an experiment to its share of a fleet: how many attempts may be under way.

    Args:
        fleet: the fleet, and what of it the experiment may have.
        seats: how many slots each attempt takes.
    """

    def __init__(self, fleet: SharedFleet, seats: int = 1, timing: Timing = Timing()) -> None:
        self._timing = timing
        self._fleet = fleet
        self._seats = seats
        self._clock = fleet.clock
        #: How many attempts may be under way; infinite as long as nobody else wants the slots.
        self.limit = math.inf
        #: Why there may be no more, for people.
        self.why = ""
        #: Queues of its slots that others wait for, who are to have more than they have.
        self.wanted_by_others: frozenset[str] = frozenset()
        #: Whether the experiment is to give back what it has beyond its share, and how many of its trials are to be
        #: paused now.
        self.must_give = False
        self.to_pause = 0
        #: Since when it has run more than its share, and more than that rounded up.
        self._over_since = self._above_since = math.inf
        #: How large its journal may be, in millions of bytes, and by which caps it has less than it asks for.
        self.journal_mb = math.inf
        self.capped = ""
        self._used = 0.0
        self._counted_at = fleet.clock.monotonic()
        #: Since when it has had no slot, while others want them too, and whether a warning has told.
        self._waiting_since = math.inf
        self._is_told = False

    def look(self, held: Held, standing: Standing, most: int | None, journal_mb: float = math.inf) -> None:
        """Say what the experiment wants, and hear what it may have.

        Args:
            held: what it has, in slots.
            standing: what it is to get, against others.
            most: how many attempts may be under way in any case.
            journal_mb: how large its journal is to be.
        """
        self._count(held.running)
        pool = self._fleet.pool()
        slots = sum(pool.slots.get(queue, 0) for queue in pool.queues)
        usable = slots // self._seats * self._seats if pool.most is None else pool.most
        could_use = usable if most is None else min(usable, most * self._seats)
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
            unit=self._seats,
        )
        share = self._fleet.exchange(demand) or Share(priority=standing.priority)
        self._fleet.priority = cast("Priority", share.priority)
        self._heed_caps(share)
        is_shared = share.limit < math.inf
        self._note_wait(is_waiting=is_shared and not held.running and demand.wanted > 0)
        # Who has all that it wants finds out that it wants more only where it may have more.
        self.limit = self._attempts(share.limit) + (not held.is_hungry and held.live <= share.limit)
        self.wanted_by_others = frozenset(share.wanted)
        self.must_give = bool(share.full or share.wanted)
        self.why = self._in_words(share, slots) if share.limit < could_use else ""
        self._warn_if_starved()
        self._look_at_surplus(held.running, share)

    def _attempts(self, slots: float) -> float:
        """Return how many attempts have all of their seats in so many slots."""
        return slots // self._seats if slots < math.inf else slots

    def _heed_caps(self, share: Share) -> None:
        if share.capped and share.capped != self.capped:
            logger.warning("experiment %s asks for more than it may have%s", self._fleet.name, share.capped)
        self.journal_mb, self.capped = share.journal_mb, share.capped

    def _count(self, running: int) -> None:
        """Count how many slots it had of late, on average."""
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

    def _look_at_surplus(self, running: int, share: Share) -> None:
        """Find out how many trials are to be paused: those beyond the share that were there for too long."""
        now = self._clock.monotonic()
        self._over_since = min(self._over_since, now) if running > share.limit else math.inf
        self._above_since = min(self._above_since, now) if running > share.at_most else math.inf
        self.to_pause = 0
        if self.must_give and now - self._over_since >= self._timing.share_turn_s:
            self.to_pause = running // self._seats - int(self._attempts(share.limit))
        elif self.must_give and now - self._above_since >= self._timing.share_grace_s:
            self.to_pause = running // self._seats - int(self._attempts(share.at_most))

    def _in_words(self, share: Share, slots: int) -> str:
        """Return which quota or share limits its slots, how long it has had none, and when it gets one."""
        waits = f"; it has had no slot for {duration(self._waiting_s)}" if self._waiting_s >= WAITING_S else ""
        if waits and share.aging_s < math.inf and not share.full:
            waits += f", and gets {'one' if self._seats == 1 else self._seats} after {duration(share.aging_s)}"
        if share.full:
            return share.full + waits + share.capped
        beside = f"{share.rivals} other experiment{'s' * (share.rivals > 1)} want{'s' * (share.rivals == 1)} slots too"
        higher = f", {share.higher} of higher priority" if share.higher else ""
        takes = f", of which a trial takes {self._seats}" if self._seats > 1 else ""
        return f"{SHARE_USED}: {share.limit:.0f} of {slots} slots{takes}, as {beside}{higher}{waits}{share.capped}"

    def leave(self) -> None:
        """Want nothing any more, so that others have the slots at once."""
        self._fleet.leave()


class Sharing:
    """Keeps a driver's experiment to its share.

    Args:
        experiment: what has become of it.
        fleet: the fleet, or a backend that is nobody else's.
        heartbeat: has its journal be no larger than caps allow.
        standing: what the experiment is to get of the fleet.
        journal_mb: how large its journal is to be, in millions of bytes.
        seats: how many slots each attempt takes.
    """

    def __init__(
        self,
        experiment: Experiment,
        fleet: object,
        heartbeat: Heartbeat,
        standing: Standing,
        journal_mb: float,
        seats: int = 1,
        timing: Timing = Timing(),
    ) -> None:
        self.standing = standing
        #: Whether nothing more is to be started, as far as was asked.
        self.is_sated = False
        self._experiment = experiment
        self._seats = seats
        self._keeper = ShareKeeper(fleet, seats, timing) if isinstance(fleet, SharedFleet) else None
        self._is_new = True
        self._heartbeat = heartbeat
        self.limit_journal(journal_mb)

    def limit_journal(self, megabytes: float) -> None:
        """Limit the journal to so many millions of bytes, or to as many as caps allow.

        Once it has as many, trials wait with their reports, and no other trial begins.
        """
        self._journal_mb = megabytes
        capped = math.inf if self._keeper is None else self._keeper.journal_mb
        by_caps = self._keeper.capped if self._keeper is not None and capped < megabytes else ""
        self._heartbeat.limit(math.ceil(min(megabytes, capped) * 10**6), by_caps)

    def limit(self, most: int | None) -> float:
        """Return how many attempts may be under way; the first time it finds that out."""
        if self._keeper is None:
            return math.inf
        if self._is_new:
            self._look(self._keeper, most)
        return self._keeper.limit

    @property
    def why(self) -> str:
        """Why no more may be under way, for people; empty while they may."""
        keeper = self._keeper
        return keeper.why if keeper is not None and self._experiment.live >= keeper.limit else ""

    def look(self, most: int | None) -> Iterator[Requeue]:
        """Look at what others want, and yield what gives back slots that are not the experiment's any more.

        Args:
            most: how many attempts may be under way in any case.
        """
        if self._keeper is not None:
            self._look(self._keeper, most)
            yield from self._withdraw(self._keeper)
            if self.standing.preemptible:
                yield from self._pause(self._keeper)

    def _look(self, keeper: ShareKeeper, most: int | None) -> None:
        self._is_new = False
        running, live = (count * self._seats for count in (self._experiment.running, self._experiment.live))
        keeper.look(Held(running, live, not self.is_sated), self.standing, most, self._journal_mb)
        self.limit_journal(self._journal_mb)

    def _withdraw(self, keeper: ShareKeeper) -> Iterator[Requeue]:
        """Yield what takes back attempts that wait for a slot beyond the share.

        Those that would be staged again first go last.
        """
        surplus = self._experiment.live - keeper.limit
        if surplus <= 0 or not keeper.must_give:
            return
        waiting = sorted(filter(_waits, self._experiment.busy.values()), key=lambda trial: trial.precedence)
        for trial in reversed(waiting[-math.ceil(surplus) :]):
            yield self._taken_back(trial, keeper.why)

    def _pause(self, keeper: ShareKeeper) -> Iterator[Requeue]:
        """Yield what has trials save and give their slots back, the least promising first.

        They go on as soon as there is a slot again.
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
            yield self._taken_back(trial, f"paused, and goes on later: {keeper.why}", Intent.GIVE_WAY)

    def _taken_back(self, trial: Trial, reason: str, intent: Intent = Intent.HAND_BACK) -> Requeue:
        # It is to run again, and nobody asks what is to be started while there is no room.
        self.is_sated = False
        return Requeue(trial, reason, intent)

    def _promise(self, trial: Trial) -> tuple[bool, bool, float, str]:
        """Return a sort key by which the least promising trials come first.

        First come those without a value that have reported least, then the infeasible, then those with the worst value.
        """
        value = trial.best_value
        is_known = value == value  # noqa: PLR0124 - NaN is not itself
        goodness = -value if self._experiment.mode == "min" else value
        is_feasible = is_known and self._experiment.is_feasible(trial)
        return is_known, is_feasible, goodness if is_known else trial.reports, trial.id

    def close(self) -> None:
        """Give the share to others."""
        if self._keeper is not None and not self._is_new:
            self._keeper.leave()


def _waits(trial: Trial) -> bool:
    """Whether an attempt waits for a slot, and nothing else is decided on it."""
    attempt = trial.attempt
    return trial.status is TrialStatus.STAGED and attempt.intent is Intent.RUN
