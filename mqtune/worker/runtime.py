"""The worker behind its Celery app: its slots and attempts, leases and heartbeat, control channel, and shutdown."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import reprlib
import socket
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from signal import SIGTERM
from typing import Final, NamedTuple, cast

from mqtune.core.clock import Clock
from mqtune.core.errors import BrokerUnavailable, ConfigurationError, MqtuneError, NameTaken
from mqtune.core.events import WorkerInfo, busy_as
from mqtune.core.impairment import WHOLE_WORKER, Impairment
from mqtune.core.keys import is_name
from mqtune.core.owner import this_owner
from mqtune.core.resources import BYTES_PER_GB, EVERY, queue_name
from mqtune.core.seats import is_seat
from mqtune.core.timing import Timing
from mqtune.core.trial import TrialId
from mqtune.core.version import __version__
from mqtune.journal.base import Claim, Journal
from mqtune.journal.clock import ServerClock
from mqtune.journal.connection import RedisClient, account_of
from mqtune.journal.fleet import ControlChannel, Fleet
from mqtune.journal.redis import RedisJournal, renew_all
from mqtune.worker.attempt import AttemptRun, WorkerParts
from mqtune.worker.devices import DeviceMemory, GpuProbe, SlotPlan
from mqtune.worker.experiments import Experiments
from mqtune.worker.impairments import Impairments
from mqtune.worker.importers import OfferedImporter
from mqtune.worker.logs import Logs
from mqtune.worker.outcome import RunResult
from mqtune.worker.ports import MakeServices, WorkerHooks, WorkerHost, WorkerState, no_services
from mqtune.worker.processes import MemoryKills, end_leftovers, find_counter, memory_limit, reaper
from mqtune.worker.retries import ANOTHER_WORKER_S, PUT_BACK_S
from mqtune.worker.scratch import Scratch
from mqtune.worker.shutdown import KILL_GRACE_S, shutdown_s
from mqtune.worker.slots import Slots, ZygoteFinder
from mqtune.worker.threads import Step, guarded
from mqtune.worker.uplink import Uplink

logger = logging.getLogger(__name__)

#: An importer keeps its imports in memory between the trials of an experiment, and not much longer.
IMPORTER_IDLE_S: Final = 120.0
#: The share of the worker's memory that unused importers may have: trials need the rest.
UNUSED_IMPORTERS_SHARE: Final = 1 / 8
#: How long killed processes of earlier workers may take to disappear, before this worker joins anyway.
LEFTOVERS_S: Final = 5.0
#: How long a shutdown waits for a heartbeat to end; without a server it ends as soon as the worker is closing.
_HEARTBEAT_END_S: Final = 2.0
#: How long a thread computes while others wait for the interpreter: Python's default of 5 ms would be most of the time
#: that it takes to stop a trial.
SWITCH_INTERVAL_S: Final = 0.0005
#: For how long it counts whether there are other workers: to look up a thousand takes 20 ms.
_OTHERS_S: Final = 5.0
#: The result of an attempt that is to run elsewhere.
_LEFT_TO_OTHERS: Final = RunResult(None, "not run: its trial has failed here, and may run elsewhere", goes_back=True)


def take_process() -> None:
    """Make this process a worker's.

    The trial of a killed zygote becomes its child, and its threads take short turns.
    """
    reaper.adopt()
    sys.setswitchinterval(SWITCH_INTERVAL_S)


class Ahead(NamedTuple):
    """An experiment that a worker is started for."""

    experiment: str
    digest: str


class WorkerRuntime:
    """A worker, without Celery.

    Args:
        client: a checked connection, shared by all threads.
        name: the worker's name in the fleet; its Celery node name.
        plan: its slots.
        code_root: the folder below which trainables must be.
        log_root: the folder for the trials' output.
        experiments: the names of the experiments that it takes trials of.
        grace_s: how long trials have to save and leave when the worker shuts down.
        wake_consumer: called from any thread when a slot becomes free or is about to.
        show: called with each heartbeat, from one thread, for each attempt that is here.
        token: proves that the worker holds its name, if it holds that already.
        services: makes the worker's services.
    """

    def __init__(
        self,
        client: RedisClient,
        *,
        name: str,
        plan: SlotPlan,
        code_root: Path,
        log_root: Path,
        grace_s: float,
        wake_consumer: Callable[[], None],
        show: Callable[[AttemptRun], None],
        experiments: str = EVERY,
        token: str = "",
        timing: Timing = Timing(),
        own_clock: Clock = time,
        services: MakeServices = no_services,
    ) -> None:
        self.name = name
        self.plan = plan
        self._timing = timing
        self._own_clock = own_clock
        self.queue = queue_name(plan.offer, experiments)
        self.closing = threading.Event()
        self._client = client
        self._code_root = code_root
        self._experiments = experiments
        #: All attempts whose task is here, claimed or not.
        self.here: set[AttemptRun] = set()
        self.fleet = Fleet(client, patience_s=float("inf"), closing=self.closing, token=token)
        clock = ServerClock(client)
        self._impairments = Impairments(self._on_impairment, worker=name, clock=clock.time)
        self._memory = (
            DeviceMemory(GpuProbe(timing=timing), self._impairments, plan.device_bytes, timing)
            if any(plan.devices)
            else None
        )
        self._experiments_here = Experiments(lambda experiment: RedisJournal(client, experiment, closing=self.closing))
        scratch = Scratch(log_root)
        self._hooks = WorkerHooks(
            services(
                WorkerHost(
                    name=name,
                    plan=plan,
                    client=client,
                    clock=clock,
                    timing=timing,
                    impairments=self._impairments,
                    attempts=lambda: tuple(self.here),
                    journal=self._experiments_here.journal,
                    logs=lambda: self.parts.logs,
                    state=self._state,
                    figures=self._figures,
                    scratch=scratch,
                    code_roots=lambda: {importer.key.program.code_root for importer in self._slots.importers.all},
                    closing=self.closing,
                )
            )
        )
        most_bytes = memory_limit() * UNUSED_IMPORTERS_SHARE
        self._slots = Slots(
            plan,
            log_root,
            self._impairments,
            self._memory,
            self._hooks.guards,
            preloads=self._hooks.preloads(),
            most_bytes=most_bytes,
            timing=timing,
        )
        zygote_logs = [self._slots.importers.log, *(slot.log for slot in self._slots.all)]
        self.parts = WorkerParts(
            name=name,
            host=socket.gethostname(),
            queue=self.queue,
            timing=timing,
            grace_s=grace_s,
            clock=clock,
            uplink=Uplink(clock, timing),
            logs=Logs(log_root, zygote_logs, self._impairments, timing=timing),
            scratch=scratch,
            slots=self._slots,
            zygotes=ZygoteFinder(name, code_root, log_root, self._hooks),
            memory_kills=MemoryKills(find_counter()),
            wake_consumer=wake_consumer,
            hooks=self._hooks,
        )
        self._show = show
        #: The reason for the shutdown, and when the heartbeat has seen it; empty until it begins.
        self._reason, self._left_at = "", 0.0
        self._idle = threading.Event()
        self._has_others, self._others_until = False, 0.0
        #: How many bytes a GPU of another worker has for an attempt that waits for memory here.
        self._room_elsewhere = 0.0
        #: Ends the wait for the next heartbeat.
        self._look = threading.Event()
        self._told: tuple[list[Impairment], int] = ([], 0)
        #: The last heartbeat that the server answered, by this machine's clock and by the monotonic clock.
        self._heartbeat_at, self._heard_at = 0.0, -math.inf
        self._joined_at = clock.time()
        self._owner = this_owner(account_of(client))
        self._heart = guarded("mqtune-heartbeat", self._beats)
        # Of its own: no report, no end of an attempt and no lease waits for a device's driver, or for a frozen
        # importer.
        self._rounds = guarded("mqtune-rounds", self._looks)
        self._control = guarded("mqtune-control", self._hints)

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
        """The number of tasks that may be here: one for each usable slot, and for each trial that is about to end."""
        if self.draining or self._slots.back_off.allows == 0:
            return 0
        most = self._places + sum(run.is_ending for run in self.running)
        # Another worker may have the memory for the next attempts.
        return min(most, len(self.here)) if self._slots.waits_for_memory else most

    @property
    def _places(self) -> int:
        """The number of slots that take a trial or run one."""
        slots, running = self._slots.usable, len(self.running)
        more = 0 if self.draining else self._slots.back_off.allows
        return slots if more is None else min(slots, running + more)

    def _impaired(self) -> list[Impairment]:
        """Return its impairments; once it shuts down, that one alone."""
        if not self._reason:
            return self._impairments.all
        self._left_at = self._left_at or self.parts.clock.time()
        text = f"it is leaving: {self._reason}"
        return [Impairment(WHOLE_WORKER, "leaving", text, "it is started again", self._left_at)]

    def _figures(self) -> Mapping[str, Mapping[str, float]]:
        """Return the figures of the worker's services, for one of them that serves them all."""
        return self._hooks.figures()

    def _state(self) -> WorkerState:
        """Return the worker's state, for its services."""
        return WorkerState(
            slots=len(self._slots.all),
            usable=self._places,
            busy=len(self.running),
            heartbeat_at=self._heartbeat_at,
            is_heard=self._is_heard,
        )

    @property
    def _is_heard(self) -> bool:
        """Whether the server has answered a heartbeat recently. No step of this machine's clock changes that."""
        return self._own_clock.monotonic() - self._heard_at <= self._timing.lease_s

    def _note_heartbeat(self) -> None:
        self._heartbeat_at, self._heard_at = self._own_clock.time(), self._own_clock.monotonic()

    def _on_impairment(self) -> None:
        """Count the usable slots again, and tell drivers.

        Something keeps the worker or a device from its work, or does no more.
        """
        self._slots.review()
        self._look.set()
        self.parts.wake_consumer()

    def offer(self, importer: OfferedImporter) -> None:
        """Have a fork of the driver be the importer of its program."""
        self._slots.importers.offered = importer

    def start(self, ahead: Ahead | None = None) -> None:
        """Start the threads and join the fleet.

        Args:
            ahead: an experiment whose attempts will come; an importer for them is started before.
        """
        if left := end_leftovers(LEFTOVERS_S):
            logger.warning("killed %d processes that a killed worker has left here: %s", len(left), left)
        self.parts.scratch.sweep()
        if ahead is not None:
            with contextlib.suppress(MqtuneError, OSError):
                here = self._experiments_here.of(ahead.experiment, ahead.digest)
                self.parts.zygotes.import_ahead(self._slots.all[0], here)
        self.parts.uplink.start()
        self.parts.logs.start()
        if self._memory is not None:
            self._memory.look({device for slot in self.plan.devices for device in slot})
        self._hooks.start()
        self.fleet.join(self._info(), self._timing.lease_s)
        self._note_heartbeat()
        self._heart.start()
        self._control.start()
        self._rounds.start()
        logger.info("%d slots of %s, code root %s", len(self._slots.all), self.plan.offer, self._code_root)

    def _info(self) -> WorkerInfo:
        offer = self.plan.offer
        own = WorkerInfo(
            name=self.name,
            host=self.parts.host,
            pid=os.getpid(),
            version=__version__,
            queue=self.queue,
            gpus=offer.gpus,
            cpus=offer.cpus,
            slots=self._places,
            devices=[",".join(devices) for devices in self.plan.devices],
            code_root=str(self._code_root),
            joined_at=self._joined_at,
            gpu_memory_gb=offer.gpu_memory_gb,
            tags=sorted(offer.tags),
            impairments=self._impaired(),
            experiments=self._experiments,
            leaves_within_s=shutdown_s(self.parts.grace_s, self._timing),
            busy=dict(Counter(busy_as(run.journal.experiment) for run in self.running)),
            account=self._owner.account,
            user=self._owner.user,
            free_gpu_memory_gb=round(self._slots.most_room / BYTES_PER_GB, 1),
        )
        return self._hooks.describe(own)

    def run(self, run: AttemptRun) -> RunResult:
        """Run an attempt in the next free slot; return when all of its processes are gone.

        Its task goes back, ``PUT_BACK_S`` later, if its trial has failed here a moment ago and may run elsewhere, or if
        its slot's devices are quarantined.
        """
        self.here.add(run)
        try:
            result = self._run(run)
            if result.goes_back:
                # No queue has it meanwhile: its driver would publish it again, and warn that nobody takes it.
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
                    slot = self._slots.acquire_other(failure.devices, run.gpu_memory_bytes)
                if slot is None and (others or self._slots.has_other(failure.devices)):
                    return _LEFT_TO_OTHERS
            if not self.draining:
                run.prepare()
            if slot is None:
                slot = self._slots.acquire(run.gpu_memory_bytes, unless=lambda: self._is_to_leave(run))
                if self.plan.offer.is_shared_by_memory:
                    # It takes no task while one waits for memory.
                    self.parts.wake_consumer()
            if self.draining:
                return RunResult(None, "not run: the worker is shutting down")
            if slot is None:
                why = "another worker has the memory for it" if self._slots.usable else "all devices are quarantined"
                return RunResult(None, f"not run: {why}", goes_back=True)
            # From here on the attempt offers it, as soon as the next one may prepare.
            offers_slot = False
            result = run.run(slot)
            self._hooks.ended(run, result)
            return result
        finally:
            if slot is not None:
                if offers_slot:
                    self._slots.offer(slot)
                self._slots.leave(slot, run.gpu_memory_bytes)
                self._impairments.leave(slot.index, slot.places)
                self._idle.set()

    def _is_to_leave(self, run: AttemptRun) -> bool:
        """Whether an attempt that waits for a slot is to wait no longer."""
        return self.draining or not self._slots.usable or 0 < run.gpu_memory_bytes <= self._room_elsewhere

    def _look_elsewhere(self) -> None:
        """Where an attempt waits for memory, look whether another worker of its queue has that."""
        others = self.fleet.workers() if self._slots.waits_for_memory else ()
        there = (info.free_gpu_memory_gb for info in others if info.queue == self.queue and info.name != self.name)
        self._room_elsewhere = max(there, default=0.0) * BYTES_PER_GB
        if self._room_elsewhere:
            self._slots.wake()

    def _has_other_workers(self) -> bool:
        """Return whether another worker takes tasks from this one's queue, as of some seconds ago."""
        if (now := time.monotonic()) >= self._others_until:
            workers = self.fleet.workers()
            self._has_others = any(
                info.queue == self.queue and info.slots > 0 for info in workers if info.name != self.name
            )
            self._others_until = now + _OTHERS_S
        return self._has_others

    def attempt(
        self, experiment: str, trial: str, attempt: int, token: str, digest: str, gpu_memory_bytes: int | None = None
    ) -> AttemptRun:
        """Return the run of an attempt.

        Args:
            experiment: its experiment.
            trial: its trial.
            attempt: its number.
            token: the proof of its claim.
            digest: the digest of the experiment's definition.
            gpu_memory_bytes: how much of a GPU's memory it asks for, where trials share GPUs by that and ask by their
                configs.

        Raises:
            MqtuneError: there is no such experiment, its definition is malformed, or this worker may not read it.
        """
        are_names = is_name(experiment) and is_seat(trial)
        are_sound = type(attempt) is int and type(digest) is str and type(gpu_memory_bytes) in (int, type(None))
        if not (are_names and are_sound and (gpu_memory_bytes or 0) >= 0):
            # Names become paths.
            what = reprlib.repr([experiment, trial, attempt, digest, gpu_memory_bytes])
            raise ConfigurationError(f"{what} is malformed: no driver of mqtune sends that")
        claim = Claim(TrialId(trial), attempt, token)
        return AttemptRun(self.parts, self._experiments_here.of(experiment, digest), claim, gpu_memory_bytes)

    @property
    def remembered(self) -> int:
        """The number of experiments that it remembers."""
        return len(self._experiments_here)

    def waiting(self) -> int:
        """Return how many tasks wait in this worker's queue; 0 while Redis is away, as nobody can take them then."""
        if self._is_heard:
            with contextlib.suppress(BrokerUnavailable):
                return Fleet(self._client, patience_s=0).waiting(self.queue)
        return 0

    def requeue_all(self, reason: str) -> None:
        """Start nothing more, and end all attempts so that their trials run again elsewhere.

        The first reason counts.
        """
        self._reason = self._reason or reason
        # An attempt that is not claimed yet won't be.
        for run in tuple(self.here):
            run.requeue(self._reason)
        self._slots.wake()
        # No trial will start that would need a device.
        self._impairments.close()
        if self._memory is not None:
            self._memory.close()
        self._hooks.drain()
        # Drivers learn that with this heartbeat.
        self._look.set()

    def close(self, *, grace_s: float) -> None:
        """Leave the fleet, requeue everything and end; trials that still run after *grace_s* seconds are killed.

        It returns within some seconds after that, also while Redis is unreachable.
        """
        self.requeue_all("its worker was shut down")
        if not self._wait_until_idle(grace_s):
            self._slots.end()
            self._wait_until_idle(KILL_GRACE_S)
        self.closing.set()
        self._look.set()
        if self._heart.is_alive():
            # A heartbeat that is under way would put the worker back into the fleet, for as long as a lease lasts.
            self._heart.join(_HEARTBEAT_END_S)
        with contextlib.suppress(BrokerUnavailable):
            self.fleet.leave(self.name)
        # All end at the same time.
        self._slots.end()
        self._slots.close()
        self._hooks.close()
        self.parts.uplink.close()
        self.parts.logs.close()
        self.parts.scratch.close()

    def join(self) -> None:
        """Wait until its threads have ended, after ``close``. The one for messages ends with the next message."""
        self._heart.join()
        self._control.join()

    def _wait_until_idle(self, timeout_s: float) -> bool:
        """Wait at most *timeout_s* seconds until nothing runs; return whether that is so."""
        deadline = time.monotonic() + timeout_s
        while self.running and (left_s := deadline - time.monotonic()) > 0:
            self._idle.wait(left_s)
            self._idle.clear()
        return not self.running

    def _beats(self) -> Iterator[Step]:
        """Yield the steps of each heartbeat: stay in the fleet, announce the attempts that wait here, and renew leases.

        One experiment's broken keys cost no other one its leases.
        """
        while not self.closing.is_set():
            self._look.wait(self._timing.heartbeat_s)
            self._look.clear()
            if self.closing.is_set():
                return
            yield self._keep_in_fleet
            yield self._look_elsewhere
            yield self.parts.memory_kills.look
            yield self.parts.scratch.keep
            yield from self._hooks.heartbeat()
            for journal, runs in _by_journal(run for run in tuple(self.here) if not run.is_running).items():
                yield partial(self._hold, journal, runs)
            if by_journal := _by_journal(self.running):
                yield partial(self._renew, by_journal)

    def _looks(self) -> Iterator[Step]:
        """Yield the steps of each round.

        Look at impaired devices, close unused importers, reap orphans, and take the steps of services.
        """
        while not self.closing.wait(self._timing.round_s):
            yield from self._impairments.looks()
            yield partial(self._slots.trim, IMPORTER_IDLE_S)
            yield partial(reaper.clear, 0)
            yield from self._hooks.tick()

    def _hold(self, journal: Journal, runs: list[AttemptRun]) -> None:
        journal.hold([run.held for run in runs], self._timing.lease_s)
        for run in runs:
            self._show(run)

    def _renew(self, by_journal: Mapping[RedisJournal, list[AttemptRun]]) -> None:
        renewals = [(journal, [run.claim for run in runs]) for journal, runs in by_journal.items()]
        for (journal, runs), found in zip(by_journal.items(), renew_all(renewals, self._timing.lease_s), strict=True):
            if isinstance(found, Exception):
                logger.error("the leases of experiment %s can't be renewed: %s", journal.experiment, found)
                continue
            for run, answer in zip(runs, found, strict=True):
                run.on_answer(answer)
                run.write_again_if_in_doubt()
                self._hooks.renewed(run)
                self._show(run)

    def _keep_in_fleet(self) -> None:
        """Stay in the fleet, announce changes, and shut down if an operator has asked for it."""
        info = self._info()
        has_changed = (info.impairments, info.slots) != self._told
        self._told = (info.impairments, info.slots)
        try:
            if self.fleet.keep(info, self._timing.lease_s):
                self._shut_down("told to drain", "its worker was drained")
            self._impairments.disable(self.fleet.disabled)
            self._note_heartbeat()
        except NameTaken as error:
            # This worker was cut off or frozen for so long that another took it for dead.
            self._shut_down(str(error), "another worker has its worker's name")
        if has_changed:
            self.fleet.announce(self.name, "changed")

    def _shut_down(self, why: str, reason: str) -> None:
        if not self.draining:
            logger.warning("%s: the trials are requeued, and then this worker ends", why)
            self.requeue_all(reason)
            # From here on the shutdown is the same as an operator's.
            os.kill(os.getpid(), SIGTERM)

    def _hints(self) -> Iterator[Step]:
        """Yield what applies each message of the control channel.

        A lost one comes again with a heartbeat or a report's answer.
        """
        hints = ControlChannel(self._client, self.name)
        while not self.closing.is_set():
            try:
                hint = hints.next(self._timing.heartbeat_s)
            except Exception as error:  # noqa: BLE001 - nothing is lost, and the next connection may be sound
                logger.warning("%s; intents come with the heartbeat until then", error)
                self.closing.wait(self._timing.heartbeat_s)
                continue
            if hint is not None:
                yield partial(self._apply, *hint)

    def _apply(self, experiment: str, trial: str, attempt: int, answer: str) -> None:
        if not experiment:
            # It is for the worker itself; the heartbeat reads what.
            self._look.set()
        self._hooks.hinted(experiment, answer)
        for run in self.running:
            if run.claim[:2] == (trial, attempt) and run.journal.experiment == experiment:
                run.on_answer(answer)


def _by_journal(runs: Iterable[AttemptRun]) -> dict[RedisJournal, list[AttemptRun]]:
    found: dict[RedisJournal, list[AttemptRun]] = defaultdict(list)
    for run in tuple(runs):
        # This worker has opened it.
        found[cast("RedisJournal", run.journal)].append(run)
    return found
