"""Backends: how a driver runs trials on this machine, on a fleet or in a simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqtune.core.lazy import facade_of

if TYPE_CHECKING:
    from mqtune.backends.base import BackendSession as BackendSession, TakesSeveralTasks as TakesSeveralTasks
    from mqtune.backends.placement import Placement as Placement, SlotRoom as SlotRoom
    from mqtune.backends.queues import QueueBackend as QueueBackend
    from mqtune.backends.shared import Pool as Pool, SharedSession as SharedSession

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
