"""The worker's loop: claims, heartbeats, leases, hints of the control channel, and shutdown."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from signal import SIGTERM
from typing import Final, NamedTuple, cast

from mqtune.core.errors import BrokerUnavailable, MqtuneError, NameTaken
from mqtune.core.impairment import WHOLE_WORKER, Impairment
from mqtune.core.text import counted
from mqtune.core.worker_info import WorkerInfo, busy_as
from mqtune.journal.exchange.fleet import ControlChannel, Fleet
from mqtune.journal.redis import RedisJournal, renew_all
from mqtune.journal.server.connection import RedisClient
from mqtune.worker.attempts.attempt import AttemptRun, WorkerParts
from mqtune.worker.attempts.retries import ANOTHER_WORKER_S, PUT_BACK_S
from mqtune.worker.host.impairments import Impairments
from mqtune.worker.host.threads import Step, guarded
from mqtune.worker.loop.shutdown import KILL_GRACE_S
from mqtune.worker.ports import WorkerState
from mqtune.worker.programs.experiments import Experiments, claim_of
from mqtune.worker.reports.outcome import RunResult

logger = logging.getLogger(__name__)

#: How long a shutdown waits for the running heartbeat, which without a server ends once ``closing`` is set.
_HEARTBEAT_END_S: Final = 2.0
#: How long a check for other workers stays valid. To read a thousand workers takes 20 ms.
_OTHERS_S: Final = 5.0
_LEFT_TO_OTHERS: Final = RunResult(None, "not run: its trial has failed here, and may run elsewhere", goes_back=True)


class FirstExperiment(NamedTuple):
    """The experiment for which a driver starts a worker: its name, and its definition's digest."""

    experiment: str
    digest: str


class WorkerRuntime:
    """Runs attempts, renews their leases, and keeps the worker in the fleet.

    Celery or a local queue gives it the tasks. ``make_worker`` makes it.

    Args:
        client: a checked connection, shared by all threads.
        parts: the parts that attempts use.
        info: the constant part of the worker's description.
        fleet: the register of workers, where the worker holds its name.
        closing: an event that this object sets when the worker closes.
        chores: further steps of each round.
        show: called with each heartbeat, from one thread, for each attempt that is here.
    """

    def __init__(
        self,
        client: RedisClient,
        parts: WorkerParts,
        *,
        info: WorkerInfo,
        fleet: Fleet,
        impairments: Impairments,
        experiments: Experiments,
        closing: threading.Event,
        chores: Sequence[Step],
        show: Callable[[AttemptRun], None],
    ) -> None:
        self._client = client
        self.parts = parts
        self._info = info
        self.fleet = fleet
        self._impairments = impairments
        self._experiments = experiments
        self.closing = closing
        self._chores = chores
        self._show = show
        self._slots, self._hooks, self._timing = parts.slots, parts.hooks, parts.timing
        #: All attempts whose task is here, claimed or not.
        self.here: set[AttemptRun] = set()
        #: The reason for the shutdown, empty until it begins; and when a heartbeat published it first.
        self._reason, self._left_at = "", 0.0
        self._idle = threading.Event()
        self._has_others, self._others_until = False, 0.0
        #: Set to make the next heartbeat come immediately.
        self._beat_now = threading.Event()
        #: The impairments and the number of slots that the last heartbeat published.
        self._told: tuple[list[Impairment], int] = ([], 0)
        #: The last heartbeat that the server answered, by this machine's clock and by the monotonic clock.
        self._heartbeat_at, self._heard_at = 0.0, -math.inf
        self._heart = guarded("mqtune-heartbeat", self._heartbeat_steps)
        # A thread of its own: no report, end of an attempt or lease waits for a device's driver or a frozen importer.
        self._rounds = guarded("mqtune-rounds", self._round_steps)
        self._control = guarded("mqtune-control", self._hint_steps)

    @property
    def running(self) -> list[AttemptRun]:
        """The attempts that this worker has claimed and not ended yet."""
        return [run for run in tuple(self.here) if run.is_running]

    @property
    def draining(self) -> bool:
        """Whether the worker is shutting down, and starts nothing more."""
        return bool(self._reason)

    @property
    def capacity(self) -> int:
        """Limit of tasks here: one per usable slot and ending trial; 0 in a back-off or shutdown."""
        if self.draining or self._slots.back_off.allows == 0:
            return 0
        most = self._usable_slots + sum(run.is_ending for run in self.running)
        # Another worker may have room for the next attempts.
        return min(most, len(self.here)) if self._slots.waits_for_room else most

    @property
    def _usable_slots(self) -> int:
        """The number of slots that take a trial or run one."""
        slots, running = self._slots.usable, len(self.running)
        more = 0 if self.draining else self._slots.back_off.allows
        return slots if more is None else min(slots, running + more)

    def _list_impairments(self) -> list[Impairment]:
        """Return the worker's impairments; during a shutdown, only the shutdown itself."""
        if not self._reason:
            return self._impairments.all
        self._left_at = self._left_at or self.parts.clock.time()
        text = f"it is leaving: {self._reason}"
        return [Impairment(WHOLE_WORKER, "leaving", text, "it is started again", self._left_at)]

    def state(self) -> WorkerState:
        """Return the worker's state, for its services."""
        return WorkerState(
            slots=len(self._slots.all),
            usable=self._usable_slots,
            busy=len(self.running),
            free=self._slots.free,
            waiting=self._slots.waiting,
            heartbeat_at=self._heartbeat_at,
            is_heard=self._is_heard,
        )

    @property
    def _is_heard(self) -> bool:
        """Whether the server has answered a heartbeat recently, by the monotonic clock."""
        return time.monotonic() - self._heard_at <= self._timing.lease_s

    def _note_heartbeat(self) -> None:
        self._heartbeat_at, self._heard_at = time.time(), time.monotonic()

    def on_impairment(self) -> None:
        """Handle a new or lifted impairment: count the usable slots, and notify drivers."""
        self._slots.review()
        self._beat_now.set()
        self.parts.wake_consumer()

    def start(self, ahead: FirstExperiment | None = None) -> None:
        """Start the threads and join the fleet.

        Args:
            ahead: an experiment whose attempts will come. Its importer is started first.
        """
        if ahead is not None:
            with contextlib.suppress(MqtuneError, OSError):
                self.parts.zygotes.import_ahead(self._slots.all[0], self._experiments.of(*ahead))
        self.parts.uplink.start()
        self.parts.logs.start()
        self._hooks.start()
        info = self._describe()
        self.fleet.join(info, self._timing.lease_s)
        self._note_heartbeat()
        self._heart.start()
        self._control.start()
        self._rounds.start()
        slots = counted(len(self._slots.all), "slot")
        logger.info("%s of %s, code root %s", slots, self._slots.plan.offer, info.code_root)

    def _describe(self) -> WorkerInfo:
        """Return the worker's description as of now."""
        own = replace(
            self._info,
            slots=self._usable_slots,
            impairments=self._list_impairments(),
            busy=dict(Counter(busy_as(run.journal.experiment) for run in self.running)),
        )
        return self._hooks.describe(own)

    def run(self, run: AttemptRun) -> RunResult:
        """Wait for a slot, run an attempt there, and return how it ended.

        All its processes have exited then. If the result ``goes_back``, the caller must return the task to its queue
        after ``PUT_BACK_S``: its trial has just failed here, its devices are quarantined, or a service wants that.
        """
        self.here.add(run)
        try:
            result = self._run(run)
            if result.goes_back:
                # No queue has the task until then, and without this its driver would publish it again and warn.
                run.journal.hold([run.held], 2 * PUT_BACK_S)
            return result
        finally:
            self.here.discard(run)
            run.close()

    def _run(self, run: AttemptRun) -> RunResult:
        slot, offers_slot = None, True
        try:
            failure = self._slots.retries.failure(run.journal.experiment, run.claim)
            if failure is not None and not self.draining:
                others = self._has_other_workers()
                if not others or self._slots.retries.age_s(failure) >= ANOTHER_WORKER_S:
                    slot = self._slots.acquire_other(failure.devices, run)
                if slot is None and (others or self._slots.has_other(failure.devices)):
                    return _LEFT_TO_OTHERS
            if not self.draining:
                run.prepare()
            if slot is None:
                slot = self._slots.acquire(run, unless=lambda: self._stops_waiting(run))
                if self._hooks.dividers:
                    # The consumer takes no task while an attempt waits for room.
                    self.parts.wake_consumer()
            if self.draining:
                return RunResult(None, "not run: the worker is shutting down")
            if slot is None:
                why = (self._slots.usable and self._hooks.leaves(run)) or "all devices are quarantined"
                return RunResult(None, f"not run: {why}", goes_back=True)
            # From here on the run itself offers the slot, as soon as the next attempt may prepare.
            offers_slot = False
            return run.run(slot)
        finally:
            if slot is not None:
                if offers_slot:
                    self._slots.offer(slot)
                self._slots.leave(slot, run)
                self._impairments.leave(slot.index, slot.places)
                self._idle.set()

    def _stops_waiting(self, run: AttemptRun) -> bool:
        """Return whether a waiting attempt gives up its wait for a slot."""
        return self.draining or not self._slots.usable or bool(self._hooks.leaves(run))

    def _has_other_workers(self) -> bool:
        """Return whether another worker consumes the same queue, as of some seconds ago."""
        if (now := time.monotonic()) >= self._others_until:
            workers = self.fleet.workers()
            self._has_others = any(
                info.queue == self.parts.queue and info.slots > 0 for info in workers if info.name != self.parts.name
            )
            self._others_until = now + _OTHERS_S
        return self._has_others

    def attempt(
        self, experiment: str, trial: str, attempt: int, token: str, digest: str, shared_bytes: int | None = None
    ) -> AttemptRun:
        """Return a new run for the attempt of a task. It is not started.

        Args:
            token: a new token, by which the journal will know this claim.
            digest: the digest of the experiment's definition.
            shared_bytes: the GPU memory that it asks for, in bytes, if this depends on its config; None if all trials
                of the experiment ask for the same.

        Raises:
            MqtuneError: the task is malformed, there is no such experiment, or this worker can't read its definition.
        """
        claim = claim_of(experiment, trial, attempt, token, digest, shared_bytes)
        return AttemptRun(self.parts, self._experiments.of(experiment, digest), claim, shared_bytes)

    @property
    def remembered(self) -> int:
        """The number of cached experiments."""
        return len(self._experiments)

    def waiting(self) -> int:
        """Return the number of tasks in this worker's queue; 0 while Redis is away."""
        if self._is_heard:
            with contextlib.suppress(BrokerUnavailable):
                return Fleet(self._client, patience_s=0).waiting(self.parts.queue)
        return 0

    def requeue_all(self, reason: str) -> None:
        """Start nothing more, and end all attempts so that their trials run again elsewhere.

        After several calls, the first reason counts.
        """
        self._reason = self._reason or reason
        # An attempt that is not claimed yet won't be.
        for run in tuple(self.here):
            run.requeue(self._reason)
        self._slots.wake()
        # No trial will start that would need a device.
        self._impairments.close()
        self._hooks.drain()
        # The heartbeat tells drivers.
        self._beat_now.set()

    def close(self, *, grace_s: float) -> None:
        """Requeue all attempts, leave the fleet, and end all processes and threads.

        Trials that still run after *grace_s* seconds are killed. It returns some seconds after that, even if Redis is
        away.
        """
        self.requeue_all("its worker was shut down")
        if not self._wait_until_idle(grace_s):
            self._slots.end()
            self._wait_until_idle(KILL_GRACE_S)
        self.closing.set()
        self._beat_now.set()
        if self._heart.is_alive():
            # A heartbeat that is under way would put the worker back into the fleet, for as long as a lease lasts.
            self._heart.join(_HEARTBEAT_END_S)
        with contextlib.suppress(BrokerUnavailable):
            self.fleet.leave(self.parts.name)
        # First all importers are told to end, so that they do so at the same time.
        self._slots.end()
        self._slots.close()
        self._hooks.close()
        self.parts.uplink.close()
        self.parts.logs.close()
        self.parts.scratch.close()

    def join(self) -> None:
        """Wait until the threads of heartbeats and hints have ended, after ``close``."""
        self._heart.join()
        self._control.join()

    def _wait_until_idle(self, timeout_s: float) -> bool:
        """Wait at most *timeout_s* seconds until no attempt runs. Return whether none runs."""
        deadline = time.monotonic() + timeout_s
        while self.running and (left_s := deadline - time.monotonic()) > 0:
            self._idle.wait(left_s)
            self._idle.clear()
        return not self.running

    def _heartbeat_steps(self) -> Iterator[Step]:
        """Yield the steps of each heartbeat. Broken keys of one experiment affect no other's leases."""
        while not self.closing.is_set():
            self._beat_now.wait(self._timing.heartbeat_s)
            self._beat_now.clear()
            if self.closing.is_set():
                return
            yield self._keep_in_fleet
            yield self.parts.memory_kills.read_counter
            yield self.parts.scratch.keep
            yield from self._hooks.heartbeat()
            yield self._slots.wake
            for journal, runs in _group_by_journal(run for run in tuple(self.here) if not run.is_running).items():
                yield partial(self._hold_unclaimed, journal, runs)
            if by_journal := _group_by_journal(self.running):
                yield partial(self._renew, by_journal)

    def _round_steps(self) -> Iterator[Step]:
        """Yield the steps of each round: checks of impaired devices, chores, and services' steps."""
        while not self.closing.wait(self._timing.round_s):
            yield from self._impairments.checks()
            yield from self._chores
            yield from self._hooks.tick()

    def _hold_unclaimed(self, journal: RedisJournal, runs: list[AttemptRun]) -> None:
        journal.hold([run.held for run in runs], self._timing.lease_s)
        for run in runs:
            self._show(run)

    def _renew(self, by_journal: Mapping[RedisJournal, list[AttemptRun]]) -> None:
        renewals = [(journal, [run.claim for run in runs]) for journal, runs in by_journal.items()]
        for (journal, runs), answers in zip(by_journal.items(), renew_all(renewals, self._timing.lease_s), strict=True):
            if isinstance(answers, Exception):
                logger.error("the leases of experiment %s can't be renewed: %s", journal.experiment, answers)
                continue
            for run, answer in zip(runs, answers, strict=True):
                run.on_answer(answer)
                run.write_again_if_in_doubt()
                self._hooks.renewed(run)
                self._show(run)

    def _keep_in_fleet(self) -> None:
        """Stay in the fleet, announce changes, and shut down if an operator has asked for it."""
        info = self._describe()
        has_changed = (info.impairments, info.slots) != self._told
        self._told = (info.impairments, info.slots)
        try:
            if self.fleet.keep(info, self._timing.lease_s):
                self._shut_down("told to drain", "its worker was drained")
            self._impairments.disable(self.fleet.disabled)
            self._note_heartbeat()
        except NameTaken as error:
            # This worker was cut off or frozen for so long that its name expired, and another worker has it.
            self._shut_down(str(error), "another worker has its worker's name")
        if has_changed:
            self.fleet.announce(self.parts.name, "changed")

    def _shut_down(self, why: str, reason: str) -> None:
        if not self.draining:
            logger.warning("%s: the trials are requeued, and then this worker ends", why)
            self.requeue_all(reason)
            # From here on the shutdown is the same as an operator's.
            os.kill(os.getpid(), SIGTERM)

    def _hint_steps(self) -> Iterator[Step]:
        """Yield a step for each message of the control channel.

        A lost message does no harm: the answer to a heartbeat or a report repeats it.
        """
        hints = ControlChannel(self._client, self.parts.name)
        while not self.closing.is_set():
            try:
                hint = hints.next(self._timing.heartbeat_s)
            except Exception as error:  # noqa: BLE001 - nothing is lost, and the next connection may be sound
                logger.warning("the control channel failed (%s); intents come with heartbeats until it is back", error)
                self.closing.wait(self._timing.heartbeat_s)
                continue
            if hint is not None:
                yield partial(self._apply_hint, *hint)

    def _apply_hint(self, experiment: str, trial: str, attempt: int, answer: str) -> None:
        if not experiment:
            # The message is for the worker itself: the next heartbeat reads the order.
            self._beat_now.set()
        self._hooks.hinted(experiment, answer)
        for run in self.running:
            if run.claim[:2] == (trial, attempt) and run.journal.experiment == experiment:
                run.on_answer(answer)


def _group_by_journal(runs: Iterable[AttemptRun]) -> dict[RedisJournal, list[AttemptRun]]:
    by_journal: dict[RedisJournal, list[AttemptRun]] = defaultdict(list)
    for run in tuple(runs):
        # This worker has opened it.
        by_journal[cast("RedisJournal", run.journal)].append(run)
    return by_journal
