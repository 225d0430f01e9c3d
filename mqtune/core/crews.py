"""The register of a fleet in short: groups of equal workers, which show the existing slots."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mqtune.core.codec import Body, Number
from mqtune.core.events import WorkerInfo
from mqtune.core.plain import Count
from mqtune.core.version import meets

#: The most workers of a crew with names and with notes: as many as people read.
_NAMED: Final = 5
_NOTED: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """Workers with equal slots for the same experiments.

    Args:
        queue: the queue of their slots, with the experiments in its name.
        version: their version of mqtune.
        gpus: the resources of each slot, like the next three.
        cpus: see ``gpus``.
        gpu_memory_gb: see ``gpus``.
        tags: see ``gpus``.
        slots: the number of slots of each worker that take trials.
        workers: the number of workers.
        names: the names of the first workers.
        shared_gpus: the number of GPUs of each worker that trials share by memory.
        notes: the reasons why slots take no trials, by worker, of the first workers with one.
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
    """The crews of a fleet, and the slots that each experiment uses in each queue.

    Experiments are known by their token; see ``busy_as``.
    """

    crews: Sequence[Crew] = ()
    busy: Mapping[str, Mapping[str, int]] = {}

    @property
    def slots(self) -> Counter[str]:
        """The number of slots by queue. The name of a queue has the version of its workers."""
        slots: Counter[str] = Counter()
        for crew in self.crews:
            slots[crew.queue] += crew.slots * crew.workers
        return slots


def register_of(workers: Iterable[WorkerInfo]) -> Register:
    """Return the register of workers, which are in the order of their names."""
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
