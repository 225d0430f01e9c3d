"""The driver's timers: renew the lock, find lost attempts, and publish lost tasks again."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from mqtune.backends.base import BackendSession
from mqtune.core.clock import Clock
from mqtune.core.experiment import Experiment
from mqtune.core.tasks import is_task, task_in
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

#: Interval of lock renewals in virtual time, in seconds. No lock expires there, and each renewal takes as much real
#: time as a report.
_VIRTUAL_S: Final = 3600.0
#: Pause after a refresh of the fleet, as a multiple of the refresh's duration. While a thousand workers join, each
#: refresh takes some 20 ms, and the driver has other work.
_FLEET_PAUSE: Final = 10
#: Number of unclaimed attempts to inspect for the reason why none runs. The reason names only a few.
_UNCLAIMED_COUNT: Final = 100
#: Number of trials to check in one call, if there are not very many. A check of 8,000 trials took 60 ms, during which
#: no report was processed.
_CHECKED_TRIALS: Final = 250
#: Duration of a lease that is restored after its deletion, in seconds. A living worker renews it long before.
_LEASE_S: Final = 15.0
_LOST: Final = (
    "Redis no longer has the key of this attempt: the key was deleted, or evicted for memory; a server for mqtune "
    "needs maxmemory-policy noeviction"
)


class DriverTimers:
    """Runs the driver's periodic tasks, and returns their actions to the loop."""

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
        #: Attempts that the server no longer has, with the id of the newest journal entry when that was found.
        self._gone: dict[_Key, str] = {}
        #: Trials that the current check of all attempts has not reached yet, in batches.
        self._unchecked: deque[Sequence[Trial]] = deque()
        #: The monotonic time of the next check of all attempts.
        self._check_from = clock.monotonic() + timing.look_at_attempts_s
        self._ledger = ledger
        self._journal = ledger.journal
        self._heartbeat = heartbeat
        self._backend = backend
        self._experiment = experiment
        self._clock = clock
        #: The fleet is not refreshed before this monotonic time.
        self._fleet_from = 0.0
        now = clock.monotonic()
        #: The monotonic time of the last check of leases.
        self._checked_leases_at = now
        #: Seconds for which expired leases are ignored.
        self._grace_left_s = timing.lease_grace_s
        is_live = self._journal.is_live
        self._timers = [_Timer(timing.keep_lock_s if is_live else _VIRTUAL_S, self._keep_driving, now)]
        if self._journal.loses_attempts:
            self._timers.append(_Timer(timing.look_at_leases_s, self._find_lost, now))
        self._room = RoomWatch()
        #: Whether the server has been full since ``publish_lost`` last looked for unclaimed attempts.
        self._was_full = False
        self._journal_room = RoomWatch("its journal", way_to_grow(self._journal.experiment), slack=0.0)
        #: The error type with which ``run_due`` will end all running attempts. None if it will not.
        self._lost_as: str | None = None
        #: When the next timer is due.
        self._next = min(timer.due for timer in self._timers)
        #: The services. Their tasks run after the driver's own timers.
        self._hooks = hooks

    @property
    def due(self) -> float:
        """The monotonic time at which the next timer or service is due."""
        return min(self._next, self._hooks.due)

    @property
    def is_server_full(self) -> bool:
        """Whether the server's memory is full, as of the last heartbeat."""
        return bool(self._room.why)

    def run_due(self) -> Iterable[DriverAction]:
        """Run the due tasks. Carry out each returned action before asking for the next one."""
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
        """Renew the lock if that is due. Call this during long work."""
        self._timers[0].run_if_due(self._clock.monotonic())

    @property
    def why_full(self) -> str:
        """Why no trial starts, in words, if the server or the journal is full. Otherwise empty."""
        return self._room.why or self._journal_room.why

    def why_held_up(self) -> str:
        """Ask the server why no attempt runs yet, in words. Empty if one runs or it is unknown."""
        counts = self._experiment.counts
        is_waiting = self._journal.loses_attempts and counts[TrialStatus.QUEUED] and not self._experiment.running
        if self.why_full or not is_waiting:
            return self.why_full
        return _in_words(self._journal.unclaimed(count=_UNCLAIMED_COUNT))

    def _keep_driving(self) -> None:
        """Renew the lock, complete the copy after a failed write, and have the fleet refreshed.

        The refresh finds dead workers: only workers that join or leave announce that.
        """
        self._keep_lock()
        self._reader.complete()
        self._journal.fleet_changed = True

    def _keep_lock(self) -> None:
        # Do this first: the heartbeat sends others the reason why no trial starts.
        self._room.look(self._journal.room())
        self._was_full |= bool(self._room.why)
        self._heartbeat.beat()
        self._journal_room.look(self._heartbeat.room)

    def lose_all(self, error_type: str) -> None:
        """Let the next ``run_due`` end all running attempts as lost: no worker can run them."""
        self._lost_as, self._next = error_type, -math.inf

    def _find_lost(self) -> Iterator[Lose]:
        """Find attempts that their worker or the server has lost, and publish lost messages again."""
        yield from self._find_expired_leases()
        yield from self._find_missing_keys()

    def _find_expired_leases(self) -> Iterable[Lose]:
        """Find attempts whose lease has expired.

        Return none for some seconds after an outage or a stall, because workers may have had no chance to renew.
        """
        # The list has every task of an attempt. The attempt is lost once, for its first task.
        by_trial = {_trial_of(name): name for name in reversed(self._journal.expired())}
        expired = list(reversed(by_trial.values()))
        if expired:
            # A server with a full disk answers reads, but takes no renewals. This write waits until it takes writes.
            self._keep_lock()
        now = self._clock.monotonic()
        # This time includes a wait for a server that was away or frozen.
        since_s, self._checked_leases_at = now - self._checked_leases_at, now
        # If this driver checks late, its machine was busy, and workers on it or the server may have stalled too.
        most_s = 2 * self._timing.look_at_leases_s
        if since_s > self._timing.stall_s:
            self._grace_left_s = self._timing.lease_grace_s
        else:
            self._grace_left_s = max(0.0, self._grace_left_s - min(since_s, most_s))
        return () if self._ledger.was_away or self._grace_left_s else self._plan_losses(expired, "expired")

    def recheck_attempts(self) -> None:
        """After an outage, give workers time to renew their leases, and check all attempts."""
        self._grace_left_s = self._timing.lease_grace_s
        self._check_from = self._clock.monotonic()
        # Restored entries may have other ids.
        self._gone.clear()

    def _plan_losses(self, tasks: Sequence[TrialId], guard: Guard, error_type: str = "") -> Iterator[Lose]:
        for name in tasks:
            trial = self._experiment.trials.get(_trial_of(name))
            # Other accounts may write to that list too, and add names that don't exist.
            if trial is not None and trial.attempt.end is None:
                worker = (trial.attempt.further_task(task_in(name)[1]) or trial.attempt).worker or "?"
                error = f"worker {worker} has not renewed its lease: it is gone, frozen or cut off"
                yield Lose(trial=trial, error=error, read=self._reader.last, guard=guard, error_type=error_type)

    def _find_missing_keys(self) -> Iterator[Lose]:
        """Find attempts whose key is missing on the server.

        Each call checks a batch of trials. After the last batch, attempts whose message is lost are published again.
        """
        now = self._clock.monotonic()
        if not self._unchecked and now >= self._check_from:
            self._check_from = now + self._timing.look_at_attempts_s
            trials = list(self._experiment.busy.values())
            calls = self._timing.look_at_attempts_s / self._timing.look_at_leases_s
            size = max(_CHECKED_TRIALS, math.ceil(len(trials) / calls))
            self._unchecked.extend(trials[begin : begin + size] for begin in range(0, len(trials), size))
        if self._unchecked:
            self._check_keys(self._unchecked.popleft())
            if not self._unchecked:
                self.publish_lost()
        # The attempt may have ended properly, and the driver may not have read the entry yet. Wait until it has.
        for id_, number in [key for key, newest in self._gone.items() if self._has_read(newest)]:
            del self._gone[id_, number]
            trial = self._experiment.trials[id_]
            if trial.attempt.number == number and trial.attempt.end is None:
                yield Lose(trial=trial, error=_LOST, read=self._reader.last, guard="gone", error_type=FORGOTTEN)

    def _check_keys(self, trials: Iterable[Trial]) -> None:
        live = [(trial.id, trial.attempt.number) for trial in trials if trial.is_busy and trial.attempt.end is None]
        if live:
            newest, under_way = self._ledger.surely(lambda: self._journal.look(live, _LEASE_S))
            for key in (key for key, exists in zip(live, under_way, strict=True) if not exists):
                # Keep the newest entry of the first check: a driver that lags may never reach that of the last one.
                self._gone.setdefault(key, newest)

    def _has_read(self, entry: str) -> bool:
        return not entry or entry_order(self._reader.last) >= entry_order(entry)

    def refresh_fleet_if_changed(self) -> None:
        """Refresh the slots if a worker has joined or left, or may have died."""
        begin = self._clock.monotonic()
        if not self._journal.fleet_changed or begin < self._fleet_from:
            return
        self._journal.fleet_changed = False
        none_fitted = not self._backend.slots
        self._backend.refresh()
        now = self._clock.monotonic()
        self._fleet_from = now + (now - begin) * _FLEET_PAUSE
        if none_fitted and self._backend.slots and self._experiment.live:
            # Attempts staged before the first worker joined may wait in a queue that this worker doesn't serve.
            self.publish_lost(older_than_s=0)

    def publish_lost(self, older_than_s: float | None = None) -> None:
        """Publish attempts again that neither a queue nor a worker has.

        The possible causes: the broker has lost a message that a worker had just taken, an earlier driver died before
        publishing, the attempt's queue belongs to slots that no longer exist, or the server was full.

        Args:
            older_than_s: only attempts that were staged this many seconds ago. By default ``Timing.unclaimed_s``.
        """
        if self._room.why or self._experiment.running >= self._backend.slots:
            return
        older_than_s = self._timing.unclaimed_s if older_than_s is None else older_than_s
        was_full, self._was_full = self._was_full, False
        unclaimed = [place.trial for place in self._journal.unclaimed(older_than_s=older_than_s) if not place.worker]
        queued = self._backend.queued() if unclaimed else None
        if queued is None:
            return
        # This publishes all tasks of an attempt. Queued ones are not duplicated, and each is claimed once.
        trials = [(id_, self._experiment.trials.get(_trial_of(id_))) for id_ in unclaimed]
        by_id = {trial.id: trial for id_, trial in trials if trial and (id_, trial.attempt.number) not in queued}
        lost = list(by_id.values())
        for trial in lost if older_than_s and not was_full else ():
            logger.warning(
                "trial %s attempt %d: no worker has taken it; publishing it again", trial.id, trial.attempt.number
            )
        publish_all(self._backend, lost)


def _trial_of(name: str) -> TrialId:
    """Return the trial of a task's name. For a malformed name, return an id that no trial has."""
    return task_in(name)[0] if is_task(name) else TrialId(name)


def _in_words(unclaimed: Sequence[Unclaimed]) -> str:
    """Return in words how many workers import code, and for how long. Empty if none does."""
    importing = {place.worker: place.importing_s for place in unclaimed if place.importing_s is not None}
    if not importing:
        return ""
    where = f" on {len(importing)} workers" if len(importing) > 1 else ""
    return f"importing your code{where} ({max(importing.values()):.0f} s)"


class _Timer:
    """Calls a function at an interval. The function may return actions."""

    def __init__(self, interval_s: float, call: Callable[[], Iterable[DriverAction] | None], now: float) -> None:
        self._interval_s = interval_s
        self._call = call
        self.due = now + interval_s

    def run_if_due(self, now: float) -> Iterable[DriverAction]:
        """Call the function if it is due, and return its actions."""
        if now < self.due:
            return ()
        actions = self._call() or ()
        self.due = now + self._interval_s
        return actions
