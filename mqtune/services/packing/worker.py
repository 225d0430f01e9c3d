"""The worker's part of packing: sharing of GPU memory, and the check that devices are free."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain

from mqtune.core.resources import queue_name
from mqtune.core.worker_info import WorkerInfo
from mqtune.journal import Fleet
from mqtune.services.packing.device_memory import DeviceMemory
from mqtune.services.packing.room import SharedMemory
from mqtune.worker import GpuProbe, WorkerSettings
from mqtune.worker.ports import WorkerHost, WorkerService


def for_worker(host: WorkerHost, settings: WorkerSettings) -> Sequence[WorkerService]:
    """Return the services for the worker's devices; none for a worker without devices.

    One service quarantines devices whose memory others use. If trials share GPUs by memory, a second service gives each
    attempt its part of a GPU's memory.
    """
    plan, timing = host.plan, host.timing
    if not any(plan.devices):
        return ()
    query, devices = GpuProbe(timing=timing), set(chain.from_iterable(plan.devices))
    check = DeviceMemory(query, host.impairments, devices, plan.device_bytes, timing)
    if not plan.offer.is_shared_by_memory:
        return (check,)
    queue = queue_name(plan.offer, settings.experiments)
    fleet = Fleet(host.client, patience_s=math.inf, closing=host.closing)

    def others() -> Iterator[WorkerInfo]:
        return (info for info in fleet.workers() if info.queue == queue and info.name != host.name)

    return SharedMemory(plan, host.state, others), check
