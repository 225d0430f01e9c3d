"""Summary of a fleet's workers and slots. Equal workers form a crew."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mqtune.core.codec import Body, Number
from mqtune.core.plain import Count
from mqtune.core.version import meets
from mqtune.core.worker_info import WorkerInfo

#: The most names and the most notes in a crew. People read no more.
_NAMED: Final = 5
_NOTED: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """Workers with equal slots for the same experiments.

    Args:
        queue: the queue of their slots, with the experiments in its name.
        gpus: the number of GPUs of each slot.
        cpus: the number of CPU cores of each slot.
        gpu_memory_gb: the GPU memory of each slot.
        slots: the number of slots of each worker. Idle slots that take no trials are left out.
        names: the names of up to five workers.
        shared_gpus: the number of GPUs of each worker that trials share by memory.
        notes: why slots take no trials, as a text by worker, for up to twenty workers.
    """

    queue: str
    version: str
    gpus: Number
    cpus: int
    gpu_memory_gb: Number
    tags: list[str]
    slots: Count
    workers: int
    names: list[str]
    shared_gpus: int = 0
    notes: Body = field(default_factory=dict)

    @property
    def is_usable(self) -> bool:
        """Whether the workers have the same minor version as this process."""
        return meets(self.version)


class Register(NamedTuple):
    """The crews of a fleet, and its busy slots.

    ``busy`` has the number of busy slots by experiment and queue. ``events.busy_as`` makes the token that stands for an
    experiment there, because its name may be confidential.
    """

    crews: Sequence[Crew] = ()
    busy: Mapping[str, Mapping[str, int]] = {}

    @property
    def slots(self) -> Counter[str]:
        """The number of slots by queue. A queue's name contains the version of its workers."""
        slots: Counter[str] = Counter()
        for crew in self.crews:
            slots[crew.queue] += crew.slots * crew.workers
        return slots


def register_of(workers: Iterable[WorkerInfo]) -> Register:
    """Return the register of *workers*, which must be sorted by name."""
    alike: defaultdict[tuple[object, ...], list[WorkerInfo]] = defaultdict(list)
    busy: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for info in workers:
        offer = info.queue, info.version, info.gpus, info.cpus, info.gpu_memory_gb, tuple(info.tags)
        alike[*offer, info.slots, info.shared_gpus].append(info)
        for experiment, count in info.busy.items():
            if type(count) is int:
                busy[experiment][info.queue] += count
    return Register([_crew(some) for some in alike.values()], busy)


def _crew(workers: Sequence[WorkerInfo]) -> Crew:
    one = workers[0]
    noted = [info for info in workers if info.note][:_NOTED]
    return Crew(
        queue=one.queue,
        version=one.version,
        gpus=one.gpus,
        cpus=one.cpus,
        gpu_memory_gb=one.gpu_memory_gb,
        tags=one.tags,
        slots=one.slots,
        workers=len(workers),
        shared_gpus=one.shared_gpus,
        names=[info.name for info in workers[:_NAMED]],
        notes={info.name: info.note for info in noted},
    )
