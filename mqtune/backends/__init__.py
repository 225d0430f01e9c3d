"""Backends: how a driver runs trials on this machine, on a fleet or in a simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqtune.core.lazy import facade_of

if TYPE_CHECKING:
    from mqtune.backends.base import (
        BackendSession as BackendSession,
        Offer as Offer,
        TakesSeveralTasks as TakesSeveralTasks,
    )
    from mqtune.backends.celery import CeleryBackend as CeleryBackend, Together as Together
    from mqtune.backends.local.backend import LocalBackend as LocalBackend
    from mqtune.backends.local.server import (
        EmbeddedServer as EmbeddedServer,
        ServerBinary as ServerBinary,
        find_binaries as find_binaries,
        find_binary as find_binary,
    )
    from mqtune.backends.local.worker import (
        PrivateWorker as PrivateWorker,
        WorkerProcess as WorkerProcess,
        private_name as private_name,
    )
    from mqtune.backends.placement import EqualWorkers as EqualWorkers, Placement as Placement, SlotRoom as SlotRoom
    from mqtune.backends.queues import QueueBackend as QueueBackend
    from mqtune.backends.shared import Pool as Pool, RegisterSource as RegisterSource, SharedSession as SharedSession
    from mqtune.backends.simulated.backend import (
        Simulated as Simulated,
        SimulatedBackend as SimulatedBackend,
        SimulatedJournal as SimulatedJournal,
    )
    from mqtune.backends.simulated.fleet import STARTS_AT as STARTS_AT, SimulatedClock as SimulatedClock
    from mqtune.backends.simulated.tables import rows_of as rows_of

#: The names that other folders and tests may use, by the module that defines them.
_NAMES = {
    "base": ("BackendSession", "Offer", "TakesSeveralTasks"),
    "celery": ("CeleryBackend", "Together"),
    "local.server": ("EmbeddedServer", "ServerBinary", "find_binaries", "find_binary"),
    "local.backend": ("LocalBackend",),
    "local.worker": ("PrivateWorker", "WorkerProcess", "private_name"),
    "placement": ("EqualWorkers", "Placement", "SlotRoom"),
    "queues": ("QueueBackend",),
    "shared": ("Pool", "RegisterSource", "SharedSession"),
    "simulated.backend": ("Simulated", "SimulatedBackend", "SimulatedJournal"),
    "simulated.fleet": ("STARTS_AT", "SimulatedClock"),
    "simulated.tables": ("rows_of",),
}
__getattr__ = facade_of(__name__, _NAMES)
