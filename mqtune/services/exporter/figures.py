"""The figures that exporters serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from mqtune.journal import Room


class Figure(NamedTuple):
    """A metric and its values of one moment, by the values of its labels.

    A counter has a name with the ending ``_total``, and only grows.
    """

    name: str
    text: str
    labels: tuple[str, ...]
    values: Mapping[tuple[str, ...], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFigures:
    """The figures of a worker at one moment.

    Attributes:
        worker: its name in the fleet.
        slots: the number of its slots.
        usable: the number of slots that take trials or run one; 0 when it leaves.
        busy: the number of slots with a trial.
        ended: the number of attempts that have ended here since it started, by the devices of their slot, with commas
            between them, and by their end.
        heartbeat_at: the time of its last heartbeat that the server answered, in seconds since the epoch by this
            machine's clock; 0 before the first.
        gpu_memory: the bytes in use on each of its devices, by any process. Devices without such a number are left out.
        gpu_load: the percent of the last moment in which each of them computed. Parts of GPUs (MIG) are left out.
        gpu_power: the watts that each of them draws, likewise.
        redis: the memory of its Redis, used and allowed; None if unknown.
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
