"""The driver's timers.

They renew its lock, find lost attempts, inspect the fleet, and republish lost tasks.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from mqtune.backends.base import BackendSession
from mqtune.core.clock import Clock
from mqtune.core.experiment import Experiment
from mqtune.core.seats import is_seat, seat_in
from mqtune.core.timing import Timing
from mqtune.core.trial import FORGOTTEN, Trial, TrialId, TrialStatus
from mqtune.driver.hooks import DriverHooks
from mqtune.driver.rules.outside import expired
from mqtune.driver.rules.room import RoomWatch
from mqtune.driver.writing.actions import DriverAction, Lose
from mqtune.driver.writing.heartbeat import Heartbeat
from mqtune.driver.writing.ledger import Ledger
from mqtune.driver.writing.publishing import publish_all
from mqtune.journal.base import Guard, Unclaimed, entry_order
from mqtune.journal.files.copy import JournalReader
from mqtune.journal.server.room import way_to_grow

logger = logging.getLogger(__name__)
#: An attempt, by its trial and its number.
_Key = tuple[TrialId, int]

#: How often the lock is kept in virtual time, in which no lock expires and a fleet always says that it has changed:
#: each time costs as much real time as a report.
_VIRTUAL_S: Final = 3600.0
#: How many times as long as a look at the fleet the pause after it is at least: while a thousand workers come, each
#: look takes some 20 ms, and a driver has other work.
_FLEET_PAUSE: Final = 10
#: The number of staged attempts that are looked at for a reason, which names a few.
_HELD_COUNT: Final = 100
#: How many trials each look takes of that, if there aren't very many: all of 8,000 took 60 ms, in which no report was
#: decided.
_LOOK_TRIALS: Final = 250
#: The time of a lease that is restored after its deletion: a living worker renews it long before.
_LEASE_S: Final = 15.0
_LOST: Final = (
    "Redis no longer has what it had of this attempt: its key was deleted, or evicted for memory; a server for mqtune "
    "needs maxmemory-policy noeviction"
)


class DriverTimers:
    """Runs what is due from time to time.

    It returns the actions that it wants to the driver's loop.
    """

    def __init__(
        self,
        ledger: Ledger,
        backend: BackendSession,
        experiment: Experiment,
        *,
        heartbeat: Heartbeat,
        hooks: DriverHooks,
        clock: Clock,
        reader: JournalReader,
        timing: Timing = Timing(),
    ) -> None:
        self._timing = timing
        self._reader = reader
        #: Attempts that are not under way any more on the server, each with the newest entry when that was seen.
        self._gone: dict[_Key, str] = {}
        #: The rest of this check, and the time of the next one.
        self._unchecked: deque[Sequence[Trial]] = deque()
        self._check_from = clock.monotonic() + timing.look_at_attempts_s
        self._ledger = ledger
        self._journal = ledger.journal
        self._heartbeat = heartbeat
        self._backend = backend
        self._experiment = experiment
        self._clock = clock
        #: Before then workers that come and go are not looked at again.
        self._fleet_from = 0.0
        now = clock.monotonic()
        #: When leases were looked at last.
        self._looked_at = now
        #: For how long no attempt is lost yet.
        self._grace_left_s = timing.lease_grace_s
        is_live = self._journal.is_live
        self._timers = [_Timer(timing.keep_lock_s if is_live else _VIRTUAL_S, self._stay, now)]
        if self._journal.loses_attempts:
            self._timers.append(_Timer(timing.look_at_leases_s, self._look_at_attempts, now))
        self._room = RoomWatch()
        #: Whether the server has been full since attempts were looked for that nobody has.
        self._was_full = False
        self._journal_room = RoomWatch("its journal", way_to_grow(self._journal.experiment), slack=0.0)
        #: The error type with which all attempts that run are lost next.
        self._lost_as: str | None = None
        #: When the next timer is due.
        self._next = min(timer.due for timer in self._timers)
        #: The services, which are called when they are due, behind the driver's own timers.
        self._hooks = hooks

    @property
    def due(self) -> float:
        """When the next timer or service is due, by the monotonic clock."""
        return min(self._next, self._hooks.due)

    @property
    def is_server_full(self) -> bool:
        """Whether the server's memory is full, as of the last heartbeat."""
        return bool(self._room.why)

    def run_due(self) -> Iterable[DriverAction]:
        """Run what is due, and return the actions that it wants.

        Each is to be carried out before the next is asked for.
        """
        if self._heartbeat.is_due:
            self._keep_lock()
        now = self._clock.monotonic()
        return self._run(now) if now >= self.due else ()

    def _run(self, now: float) -> Iterator[DriverAction]:
        if self._lost_as is not None:
            trials = self._experiment.busy.values()
            running = [trial.id for trial in trials if trial.status is TrialStatus.RUNNING]
            error_type, self._lost_as = self._lost_as, None
            yield from self._plan_losses(running, "any", error_type)
        for timer in self._timers:
            yield from timer.run_if_due(now)
        yield from expired(self._experiment, self._clock.time())
        yield from self._hooks.tick()
        self._next = min(timer.due for timer in self._timers)

    def keep_lock_if_due(self) -> None:
        """Keep the lock if it is time, and do nothing else: for long work outside of a round."""
        self._timers[0].run_if_due(self._clock.monotonic())

    @property
    def why_full(self) -> str:
        """Why nothing begins, for people, if the server is full, or the journal."""
        return self._room.why or self._journal_room.why

    def why_held_up(self) -> str:
        """Return why no attempt runs yet, for people, as the server has it now.

        It is empty when one does, or nothing is known.
        """
        counts = self._experiment.counts
        is_waiting = self._journal.loses_attempts and counts[TrialStatus.QUEUED] and not self._experiment.running
        if self.why_full or not is_waiting:
            return self.why_full
        return _in_words(self._journal.unclaimed(count=_HELD_COUNT))

    def _stay(self) -> None:
        """Keep the lock, complete the copy if that could not be written, and have the fleet looked at.

        Workers announce that they join or leave, but not that they die.
        """
        self._keep_lock()
        self._reader.complete()
        self._journal.fleet_changed = True

    def _keep_lock(self) -> None:
        # Before the lock, which tells others why nothing starts.
        self._room.look(self._journal.room())
        self._was_full |= bool(self._room.why)
        self._heartbeat.beat()
        self._journal_room.look(self._heartbeat.room)

    def lose_all(self, error_type: str) -> None:
        """Have all attempts lost that run when this is run next: no worker can be left."""
        self._lost_as, self._next = error_type, -math.inf

    def _look_at_attempts(self) -> Iterator[Lose]:
        """Find attempts that their worker, the server or a queue has lost."""
        yield from self._look_at_leases()
        yield from self._look_at_keys()

    def _look_at_leases(self) -> Iterable[Lose]:
        """Find attempts whose lease has run out, unless their workers may have had no chance to renew it."""
        # Of a gang each seat is listed, and the attempt is lost once, for the first of them.
        by_trial = {_trial_of(name): name for name in reversed(self._journal.expired())}
        expired = list(reversed(by_trial.values()))
        if expired:
            # A server whose disk is full answers, and takes no renewal of a lease: a write waits until it does.
            self._keep_lock()
        now = self._clock.monotonic()
        # The look itself may have waited for a server that was away, or frozen.
        since_s, self._looked_at = now - self._looked_at, now
        # A driver that checks late got no processor, and workers on its machine, or the server, may have been without
        # one, too.
        most_s = 2 * self._timing.look_at_leases_s
        if since_s > self._timing.stall_s:
            self._grace_left_s = self._timing.lease_grace_s
        else:
            self._grace_left_s = max(0.0, self._grace_left_s - min(since_s, most_s))
        return () if self._ledger.was_away or self._grace_left_s else self._plan_losses(expired, "expired")

    def look_anew(self) -> None:
        """After an outage leave workers time to renew their leases, and begin to look at all attempts."""
        self._grace_left_s = self._timing.lease_grace_s
        self._check_from = self._clock.monotonic()
        # Entries of before may have other ids now.
        self._gone.clear()

    def _plan_losses(self, seats: Sequence[TrialId], guard: Guard, error_type: str = "") -> Iterator[Lose]:
        for name in seats:
            trial = self._experiment.trials.get(_trial_of(name))
            # Other accounts may write there, too, and list anything.
            if trial is not None and trial.attempt.end is None:
                worker = (trial.attempt.further_seat(seat_in(name)[1]) or trial.attempt).worker or "?"
                error = f"worker {worker} has not renewed its lease: it is gone, frozen or cut off"
                yield Lose(trial=trial, error=error, read=self._reader.last, guard=guard, error_type=error_type)

    def _look_at_keys(self) -> Iterator[Lose]:
        """Find attempts that Redis no longer has: nothing else would find them.

        It checks a part of many trials at a time. After all of them, lost messages are published again.
        """
        now = self._clock.monotonic()
        if not self._unchecked and now >= self._check_from:
            self._check_from = now + self._timing.look_at_attempts_s
            trials = list(self._experiment.busy.values())
            looks = self._timing.look_at_attempts_s / self._timing.look_at_leases_s
            size = max(_LOOK_TRIALS, math.ceil(len(trials) / looks))
            self._unchecked.extend(trials[begin : begin + size] for begin in range(0, len(trials), size))
        if self._unchecked:
            self._check(self._unchecked.popleft())
            if not self._unchecked:
                self.publish_lost()
        # An attempt that has ended by itself has an entry about it, which may not be read yet.
        for id_, number in [key for key, newest in self._gone.items() if self._has_read(newest)]:
            del self._gone[id_, number]
            trial = self._experiment.trials[id_]
            if trial.attempt.number == number and trial.attempt.end is None:
                yield Lose(trial=trial, error=_LOST, read=self._reader.last, guard="gone", error_type=FORGOTTEN)

    def _check(self, trials: Iterable[Trial]) -> None:
        live = [(trial.id, trial.attempt.number) for trial in trials if trial.is_busy and trial.attempt.end is None]
        if live:
            newest, under_way = self._ledger.surely(lambda: self._journal.look(live, _LEASE_S))
            for key in (key for key, is_there in zip(live, under_way, strict=True) if not is_there):
                # The first look counts: a driver that lags may never come to the entry of the last one.
                self._gone.setdefault(key, newest)

    def _has_read(self, entry: str) -> bool:
        return not entry or entry_order(self._reader.last) >= entry_order(entry)

    def look_at_fleet_if_changed(self) -> None:
        """Look at the slots again if a worker has come or gone, or may have died."""
        begin = self._clock.monotonic()
        if not self._journal.fleet_changed or begin < self._fleet_from:
            return
        self._journal.fleet_changed = False
        none_fitted = not self._backend.slots
        self._backend.refresh()
        now = self._clock.monotonic()
        self._fleet_from = now + (now - begin) * _FLEET_PAUSE
        if none_fitted and self._backend.slots and self._experiment.live:
            # An attempt that was staged before the first worker came may wait in a queue that this one doesn't serve.
            self.publish_lost(older_than_s=0)

    def publish_lost(self, older_than_s: float | None = None) -> None:
        """Publish attempts again that neither a queue nor a worker holds.

        A broker may lose a message that a worker has just taken. An earlier driver may also have died before it
        published them, a queue may be that of slots that nobody offers, and a full server takes none.
        """
        if self._room.why or self._experiment.running >= self._backend.slots:
            return
        older_than_s = self._timing.unclaimed_s if older_than_s is None else older_than_s
        was_full, self._was_full = self._was_full, False
        unclaimed = [place.trial for place in self._journal.unclaimed(older_than_s=older_than_s) if not place.worker]
        queued = self._backend.queued() if unclaimed else None
        if queued is None:
            return
        # All seats of a gang are published again: queued ones stay where they are, and each is claimed once.
        trials = [(id_, self._experiment.trials.get(_trial_of(id_))) for id_ in unclaimed]
        by_id = {trial.id: trial for id_, trial in trials if trial and (id_, trial.attempt.number) not in queued}
        lost = list(by_id.values())
        for trial in lost if older_than_s and not was_full else ():
            logger.warning(
                "trial %s attempt %d: nobody has taken it; publishing it again", trial.id, trial.attempt.number
            )
        publish_all(self._backend, lost)


def _trial_of(name: str) -> TrialId:
    """Return the trial of a seat's name.

    A malformed name, which any writer may list, gives a name that no trial has.
    """
    return seat_in(name)[0] if is_seat(name) else TrialId(name)


def _in_words(unclaimed: Sequence[Unclaimed]) -> str:
    """Return that code is imported, where, and for how long; empty when none is."""
    importing = {place.worker: place.importing_s for place in unclaimed if place.importing_s is not None}
    if not importing:
        return ""
    where = f" on {len(importing)} workers" if len(importing) > 1 else ""
    return f"importing your code{where} ({max(importing.values()):.0f} s)"


class _Timer:
    """A callable that is called again and again, and may return actions."""

    def __init__(self, interval_s: float, call: Callable[[], Iterable[DriverAction] | None], now: float) -> None:
        self._interval_s = interval_s
        self._call = call
        self.due = now + interval_s

    def run_if_due(self, now: float) -> Iterable[DriverAction]:
        """Call it if it is time, and return the actions that it wants."""
        if now < self.due:
            return ()
        actions = self._call() or ()
        self.due = now + self._interval_s
        return actions
