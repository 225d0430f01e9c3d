"""Assembles a worker from its parts and services."""

from __future__ import annotations

import logging
import math
import os
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from mqtune.core.owner import this_owner
from mqtune.core.resources import queue_name
from mqtune.core.version import __version__
from mqtune.core.worker_info import WorkerInfo
from mqtune.journal.exchange.fleet import Fleet
from mqtune.journal.redis import RedisJournal
from mqtune.journal.server.clock import ServerClock
from mqtune.journal.server.connection import RedisClient, account_of
from mqtune.worker.attempts.attempt import AttemptRun, WorkerParts
from mqtune.worker.attempts.slots import Slots, ZygoteFinder
from mqtune.worker.hooks import WorkerHooks
from mqtune.worker.host.devices import SlotPlan
from mqtune.worker.host.impairments import Impairments
from mqtune.worker.host.logs import Logs
from mqtune.worker.host.processes import MemoryKills, end_leftovers, find_counter, memory_limit, reaper
from mqtune.worker.host.scratch import Scratch
from mqtune.worker.loop.runtime import WorkerRuntime
from mqtune.worker.loop.settings import WorkerSettings
from mqtune.worker.loop.shutdown import shutdown_s
from mqtune.worker.ports import MakeServices, WorkerHost, WorkerState, no_services
from mqtune.worker.programs.experiments import Experiments
from mqtune.worker.reports.uplink import Uplink

logger = logging.getLogger(__name__)

#: Unused importers are closed after this time, which is longer than the usual pause between an experiment's trials.
IMPORTER_IDLE_S: Final = 120.0
#: The share of the worker's memory that unused importers may have: trials need the rest.
UNUSED_IMPORTERS_SHARE: Final = 1 / 8
#: How long killed processes of earlier workers may take to disappear, before this worker joins anyway.
LEFTOVERS_S: Final = 5.0
#: How long a thread computes while others wait for the interpreter: Python's default of 5 ms would be most of the time
#: that it takes to stop a trial.
SWITCH_INTERVAL_S: Final = 0.0005


def prepare_process() -> None:
    """Prepare this process for a worker.

    It adopts the orphans of killed zygotes, and its threads switch more often.
    """
    reaper.adopt()
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def make_worker(
    client: RedisClient,
    name: str,
    plan: SlotPlan,
    settings: WorkerSettings,
    *,
    wake_consumer: Callable[[], None],
    show: Callable[[AttemptRun], None] = lambda _: None,
    token: str = "",
    services: MakeServices = no_services,
) -> WorkerRuntime:
    """Return a worker that is not started yet, and kill what a killed worker has left here.

    Args:
        client: a checked connection, shared by all threads.
        name: the worker's name in the fleet; its Celery node name.
        plan: its slots.
        settings: the operator's settings.
        wake_consumer: called from any thread when a slot becomes free or is about to.
        show: called with each heartbeat, from one thread, for each attempt that is here.
        token: the fleet's proof that the worker has its name; empty before it has one.
        services: makes the worker's services.
    """
    if left := end_leftovers(LEFTOVERS_S):
        logger.warning("killed %d processes that a killed worker left on this machine: %s", len(left), left)
    timing, log_root = settings.timing, settings.log_root
    scratch = Scratch(log_root)
    scratch.sweep()
    closing, clock = threading.Event(), ServerClock(client)

    def on_impairment() -> None:
        # The runtime is made below.
        runtime.on_impairment()

    def state() -> WorkerState:
        return runtime.state()

    impairments = Impairments(on_impairment, worker=name, clock=clock.time)
    experiments = Experiments(lambda experiment: RedisJournal(client, experiment, closing=closing))
    hooks = WorkerHooks(
        services(
            WorkerHost(
                name=name,
                plan=plan,
                client=client,
                clock=clock,
                timing=timing,
                impairments=impairments,
                attempts=lambda: tuple(runtime.here),
                journal=experiments.journal,
                logs=lambda: logs,
                state=state,
                scratch=scratch,
                code_roots=lambda: {importer.key.program.code_root for importer in slots.importers.all},
                closing=closing,
            )
        )
    )
    most_bytes = memory_limit() * UNUSED_IMPORTERS_SHARE
    slots = Slots(plan, log_root, impairments, hooks, preloads=hooks.preloads(), most_bytes=most_bytes, timing=timing)
    logs = Logs(log_root, [slots.importers.log, *(slot.log for slot in slots.all)], impairments, timing=timing)
    parts = WorkerParts(
        name=name,
        host=socket.gethostname(),
        queue=queue_name(plan.offer, settings.experiments),
        timing=timing,
        grace_s=settings.grace_s,
        clock=clock,
        uplink=Uplink(clock, timing),
        logs=logs,
        scratch=scratch,
        slots=slots,
        zygotes=ZygoteFinder(name, settings.code_root, log_root, hooks),
        memory_kills=MemoryKills(find_counter()),
        wake_consumer=wake_consumer,
        hooks=hooks,
    )
    runtime = WorkerRuntime(
        client,
        parts,
        info=_describe_worker(client, parts, settings),
        fleet=Fleet(client, patience_s=math.inf, closing=closing, token=token),
        impairments=impairments,
        experiments=experiments,
        closing=closing,
        chores=(partial(slots.trim, IMPORTER_IDLE_S), partial(reaper.clear, 0)),
        show=show,
    )
    return runtime


def _describe_worker(client: RedisClient, parts: WorkerParts, settings: WorkerSettings) -> WorkerInfo:
    """Return the constant part of a worker's description in the fleet."""
    owner, plan = this_owner(account_of(client)), parts.slots.plan
    offer = plan.offer
    return WorkerInfo(
        name=parts.name,
        host=parts.host,
        pid=os.getpid(),
        version=__version__,
        queue=parts.queue,
        gpus=offer.gpus,
        cpus=offer.cpus,
        slots=len(plan.devices),
        devices=[",".join(devices) for devices in plan.devices],
        code_root=str(settings.code_root),
        joined_at=parts.clock.time(),
        gpu_memory_gb=offer.gpu_memory_gb,
        tags=sorted(offer.tags),
        experiments=settings.experiments,
        leaves_within_s=shutdown_s(parts.grace_s, parts.timing),
        account=owner.account,
        user=owner.user,
    )
