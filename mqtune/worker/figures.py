"""A worker's figures, for those who watch it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mqtune.journal.room import Room


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFigures:
    """What a worker is and does at one moment.

    Attributes:
        worker: its name in the fleet.
        slots: how many it has.
        usable: how many of them take trials or run one; none when it leaves.
        busy: how many have a trial.
        ended: how many attempts have ended here since it started, by the devices of their slot, with commas between
            them, and by how.
        heartbeat_at: when it last told the fleet that it is here, in seconds since the epoch by this machine's clock; 0
            before that.
        gpu_memory: the bytes in use on each of its devices, by any process; devices that don't say are left out.
        gpu_load: the percent of the last moment in which each of them computed, without parts of GPUs (MIG), which
            don't say.
        gpu_power: the watts that each of them draws, likewise.
        redis: the room in the memory of the Redis that it works for; None where that is not known.
    """

    worker: str
    slots: int
    usable: int
    busy: int
    ended: Mapping[tuple[str, str], int]
    heartbeat_at: float
    redis: Room | None
    gpu_memory: Mapping[str, float] = field(default_factory=dict)
    gpu_load: Mapping[str, float] = field(default_factory=dict)
    gpu_power: Mapping[str, float] = field(default_factory=dict)


#: Returns a worker's figures; None before it has started. Any thread may call it.
ReadFigures = Callable[[], WorkerFigures | None]
