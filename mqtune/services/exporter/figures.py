"""The figures that exporters serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from mqtune.journal import Room


class Figure(NamedTuple):
    """A metric and its current values, by label values.

    A counter has a name with the ending ``_total``, and only grows.
    """

    name: str
    text: str
    labels: tuple[str, ...]
    values: Mapping[tuple[str, ...], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFigures:
    """The current figures of a worker.

    Attributes:
        worker: its name in the fleet.
        slots: number of its slots.
        usable: number of slots that accept trials or run one.
        busy: number of slots with a trial.
        ended: number of attempts ended here since its start, by the devices of their slot, with commas between them,
            and by their end.
        heartbeat_at: time of its last acknowledged heartbeat, in seconds since the epoch by this machine's clock; 0
            before the first.
        gpu_memory: bytes in use on each of its devices, by any process. Devices without such a number are left out.
        gpu_load: percentage of recent time in which each device computed. Parts of GPUs (MIG) are left out.
        gpu_power: power of each device in watts. Parts of GPUs are left out.
        redis: memory of its Redis, used and allowed; None if unknown.
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


#: Returns a worker's figures, or None before its start. Thread-safe.
ReadFigures = Callable[[], WorkerFigures | None]
