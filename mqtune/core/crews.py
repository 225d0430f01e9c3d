"""The register of a fleet in short: workers that are alike, counted.

It is enough to know which slots there are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mqtune.core.codec import Body, Number
from mqtune.core.events import WorkerInfo
from mqtune.core.plain import Count
from mqtune.core.version import meets

#: Of how many workers a crew has the names, and the notes: as many as people read.
_NAMED: Final = 5
_NOTED: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """Workers that offer the same to the same experiments.

    Args:
        queue: the queue of their slots, which names the experiments too.
        version: their version of mqtune.
        gpus: as each of their slots offers, like the next three.
        cpus: see there.
        gpu_memory_gb: see there.
        tags: see there.
        slots: how many each worker has that take trials.
        workers: how many there are.
        names: of the first of them.
        shared_gpus: how many GPUs each worker has that trials share by memory.
        notes: by worker, why not all of its slots take trials, of the first of those that say so.
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
    """The workers of a fleet.

    It has the crews and, by experiment, as ``busy_as`` names it, its slots of each queue.
    """

    crews: Sequence[Crew] = ()
    busy: Mapping[str, Mapping[str, int]] = {}

    @property
    def slots(self) -> Counter[str]:
        """The number of slots by queue, whose name carries the version of its workers."""
        found: Counter[str] = Counter()
        for crew in self.crews:
            found[crew.queue] += crew.slots * crew.workers
        return found


def register_of(workers: Iterable[WorkerInfo]) -> Register:
    """Return the register in short; the order of workers is that of their names."""
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
