"""The resources of trials and slots, and the Celery queues by which they meet."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import ClassVar, Final

from mqtune.core.checks import number, whole_number
from mqtune.core.codec import Body, Number
from mqtune.core.errors import ConfigurationError
from mqtune.core.names import OF_RESOURCES, KnownArguments
from mqtune.core.version import __version__, minor

#: The minor version in a queue's name, so that workers never get trials of another minor version.
QUEUE_VERSION: Final = minor(__version__).replace(".", "-")
#: All queues of trials, as a pattern of Redis.
QUEUES: Final = "mqtune-*"
#: The names of all experiments, as a pattern.
EVERY: Final = "*"
#: The key, in a definition, of the function that returns the resources of each trial.
BY_CONFIG: Final = "by_config"
#: The most slots of a trial. Each is a key, a lease and a task, and one script iterates over all.
MOST_TASKS: Final = 1000
#: The bytes of a GB, as in the names of GPUs.
BYTES_PER_GB: Final = 10**9
#: The separator of a worker's patterns.
_BETWEEN: Final = ","
_PATTERN: Final = re.compile(r"[A-Za-z0-9._*-]{1,100}")
#: The memory in the name of a queue.
_MEMORY: Final = re.compile(r"\.mem(\d*\.?\d+)")
_OF_SLOTS: Final = frozenset({"machines", "seats"})
#: A tag, which is part of a queue's name.
_TAG: Final = re.compile(r"[a-z0-9_-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources(KnownArguments):
    """The resources that one trial asks for, or that one slot of a worker offers.

    Args:
        gpus: number of GPUs. Below 1 it is a share of one GPU (0.5 lets two trials share it); above 1 it must be whole.
            0 with ``gpu_memory_gb`` is that much memory of one GPU, beside other trials.
        cpus: number of CPU cores, a whole number of at least 1.
        gpu_memory_gb: memory of each GPU, or of the share of one, in GB of 10⁹ bytes: a "24 GB" GPU has at least 24.
            0 is any memory, or unknown. Without ``gpus`` a trial gets this much of a GPU, on workers that share GPUs by
            memory. A slot there offers all memory of a GPU.
        machines: number of workers on which each trial runs at the same time, as one gang. With ``gpus=8, machines=2``
            it has a slot with 8 GPUs on each of two. All start together or none.
        seats: number of slots in which each trial runs at the same time, as one gang. Several of them may be on one
            worker. Give either *machines* or *seats*.
        tags: further properties of the slot, by names that the workers' operator has chosen, such as ``a100`` or
            ``nvlink``: small letters, digits, dashes and underscores. Kept as a frozenset.

    Raises:
        ConfigurationError: a number is invalid, a tag is not a name, or *machines* and *seats* are both given or more
            than ``MOST_TASKS``.
    """

    meant: ClassVar = OF_RESOURCES

    gpus: Number = 0
    cpus: int = 1
    gpu_memory_gb: Number = 0
    tags: Iterable[str] = frozenset()
    machines: int = 1
    seats: int = 1

    def __post_init__(self) -> None:
        gpus = number("resources", "gpus", self.gpus)
        cpus = whole_number("resources", "cpus", self.cpus, 1)
        memory = number("resources", "gpu_memory_gb", self.gpu_memory_gb, least=0)
        if gpus < 0 or (gpus > 1 and gpus != int(gpus)):
            raise ConfigurationError(
                f"resources: gpus={gpus!r} is impossible; give 0, a share below 1 such as 0.5, or a whole number"
            )
        machines = whole_number("resources", "machines", self.machines, 1)
        seats = whole_number("resources", "seats", self.seats, 1)
        if machines > 1 and seats not in (1, machines):
            raise ConfigurationError(
                f"resources: machines={machines} and seats={seats} are both given; give machines=N for one slot on "
                "each of N workers, or seats=N for N slots on any workers"
            )
        if max(machines, seats) > MOST_TASKS:
            raise ConfigurationError(
                f"resources: a trial may have at most {MOST_TASKS} seats; {max(machines, seats)} are given"
            )
        plain: Body = {"gpus": gpus, "cpus": cpus, "gpu_memory_gb": memory, "tags": _checked_tags(self.tags)}
        plain |= {"machines": machines, "seats": max(machines, seats)}
        for name, value in plain.items():
            object.__setattr__(self, name, value)

    @property
    def slots(self) -> int:
        """The number of slots that each trial has at the same time. Each runs one task of it."""
        return self.seats

    @property
    def task_plan(self) -> str:
        """The tasks of an attempt as a text, such as "2:apart:8 GPUs, 4 CPUs". Empty for one task.

        "apart" means one task on each worker; "any" allows several on one worker.
        """
        if self.seats == 1:
            return ""
        return f"{self.seats}:{'apart' if self.machines > 1 else 'any'}:{self.of_task}"

    @property
    def of_task(self) -> Resources:
        """The resources of one task."""
        return replace(self, machines=1, seats=1)

    @property
    def not_offered(self) -> str:
        """The words "no worker offers …" with these resources, to begin a sentence for people."""
        if self.seats == 1:
            return f"no worker offers a slot with {self}"
        if self.machines > 1:
            return f"no fleet of {self.seats} workers offers a slot with {self.of_task} on each"
        return f"no fleet offers {self.seats} slots with {self.of_task} each"

    @property
    def has_gpu(self) -> bool:
        """Whether the resources include a GPU or a part of one."""
        return self.gpus > 0 or self.gpu_memory_gb > 0

    @property
    def is_shared_by_memory(self) -> bool:
        """Whether the resources include a part of a GPU by memory alone, without ``gpus``."""
        return self.has_gpu and not self.gpus

    @property
    def shared_bytes(self) -> int:
        """The GPU memory in bytes if ``is_shared_by_memory``, else 0."""
        return max(1, round(self.gpu_memory_gb * BYTES_PER_GB)) if self.is_shared_by_memory else 0

    def fits(self, offer: Resources) -> bool:
        """Whether a slot with *offer* may run a trial with these resources.

        GPUs match exactly: a trial without a GPU never blocks a slot with one. A slot may have more CPU cores, GPU
        memory and tags.
        """
        return (
            math.isclose(self.gpus, offer.gpus, abs_tol=1e-6)
            and self.has_gpu == offer.has_gpu
            and self.cpus <= offer.cpus
            and self.gpu_memory_gb <= offer.gpu_memory_gb
            and frozenset(self.tags) <= frozenset(offer.tags)
        )

    def encode(self) -> Body:
        """Return plain values for a message. *machines* and *seats* are left out if they are 1."""
        plain = {**asdict(self), "tags": sorted(self.tags)}
        return {name: value for name, value in plain.items() if name not in _OF_SLOTS or value > 1}

    @classmethod
    def decode(cls, body: Body) -> Resources:
        """Return the resources that ``encode`` has made plain. Unknown fields are ignored.

        Raises:
            ConfigurationError: a value is invalid.
        """
        return cls(**{attribute.name: body[attribute.name] for attribute in fields(cls) if attribute.name in body})

    def __str__(self) -> str:
        if self.seats > 1:
            return f"{self.seats} {'machines' if self.machines > 1 else 'slots'} with {self.of_task} each"
        parts = [f"{self.cpus} CPU" + "s" * (self.cpus != 1)]
        if self.gpus:
            memory = f" ({self.gpu_memory_gb:g} GB)" if self.gpu_memory_gb else ""
            parts.insert(0, f"{self.gpus:g} GPU" + "s" * (self.gpus > 1) + memory)
        elif self.has_gpu:
            parts.insert(0, f"{self.gpu_memory_gb:g} GB of a GPU")
        if tags := sorted(self.tags):
            parts.append("tag" + "s" * (len(tags) > 1) + " " + "+".join(tags))
        return ", ".join(parts)


def queue_name(offer: Resources, experiments: str = EVERY) -> str:
    """Return the Celery queue of slots of this shape.

    Examples are ``mqtune-0-2.gpu1.cpu4`` and ``….cpu4.mem24+a100+nvlink``. Slots of equal shape have the same name on
    every machine. If a worker serves only some experiments, the name of its slots has their patterns:
    ``….cpu4@team-a-*``. A name with several patterns, as in ``….cpu4@team-a-*,team-b-*``, stands for several queues:
    see ``queues_of``.
    """
    memory = f".mem{offer.gpu_memory_gb:.12g}" if offer.gpu_memory_gb else ""
    tags = "".join(f"+{tag}" for tag in sorted(offer.tags))
    return f"mqtune-{QUEUE_VERSION}.gpu{offer.gpus:g}.cpu{offer.cpus}{memory}{tags}" + (
        "" if experiments == EVERY else f"@{experiments}"
    )


def version_in(queue: str) -> str:
    """Return the minor version of mqtune in the name of a queue, such as 0.2."""
    return queue.removeprefix("mqtune-").partition(".")[0].replace("-", ".")


def gpus_in(queue: str, asked: Resources) -> float:
    """Return how many GPUs a trial occupies in a slot of this queue.

    A trial that shares a GPU by memory occupies a fraction, or 0 if the queue's name has no memory.
    """
    if not asked.is_shared_by_memory:
        return asked.gpus
    matched = _MEMORY.search(queue)
    return min(1.0, asked.gpu_memory_gb / float(matched[1])) if matched else 0.0


def queues_of(name: str) -> list[str]:
    """Return the Celery queues of slots with this name, one for each of their patterns.

    Teams that share slots have a queue each, so that the account of one team can't read the queue of another.
    """
    return [queue for _, queue in patterned(name)]


def patterned(name: str) -> list[tuple[str, str]]:
    """Return pairs of a pattern of experiments and its Celery queue, for slots with this name."""
    shape, at, patterns = name.partition("@")
    if not at:
        return [(EVERY, name)]
    return [(pattern, shape if pattern == EVERY else f"{shape}@{pattern}") for pattern in patterns_of(patterns)]


def patterns_of(experiments: str) -> list[str]:
    """Split a worker's patterns, which commas separate."""
    return experiments.split(_BETWEEN)


def serves(experiments: str, experiment: str) -> bool:
    """Whether a worker with these patterns takes trials of an experiment."""
    return any(fnmatchcase(experiment, pattern) for pattern in patterns_of(experiments))


def checked_patterns(experiments: str) -> str:
    """Return a worker's patterns, sorted and unique, so that equal workers share queues.

    Raises:
        ConfigurationError: a pattern is invalid.
    """
    patterns = sorted({pattern.strip() for pattern in patterns_of(experiments)})
    for pattern in patterns:
        check_experiments(pattern)
    return _BETWEEN.join(patterns)


def is_pattern(text: str) -> bool:
    """Whether a text is a valid pattern of experiments' names."""
    return _PATTERN.fullmatch(text) is not None


def check_experiments(pattern: str) -> None:
    """Check a pattern of experiments' names, with ``*`` for any letters.

    Raises:
        ConfigurationError: the pattern is invalid.
    """
    if not is_pattern(pattern):
        raise ConfigurationError(
            f"experiments={pattern!r} can't be names of experiments; use letters, digits, dots, dashes, underscores, "
            "and * for any of them, such as team-a-*"
        )


def _checked_tags(tags: object) -> frozenset[str]:
    if isinstance(tags, str | bytes) or not isinstance(tags, Iterable):
        raise ConfigurationError(
            f"resources: tags={tags!r} is not a list of names; give a list such as ['a100', 'nvlink']"
        )
    given_tags = tuple(tags)
    for tag in given_tags:
        if not isinstance(tag, str) or not _TAG.fullmatch(tag):
            raise ConfigurationError(
                f"resources: tag {tag!r} is not a name; use small letters, digits, dashes and underscores, such as "
                f"'a100'"
            )
    return frozenset(given_tags)


def in_gb(size: float) -> str:
    """Return a number of bytes as text, such as "1.5 GB"."""
    return f"{size / BYTES_PER_GB:.1f} GB"
