"""The resources of trials and slots, and the Celery queue that brings the two together."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import ClassVar, Final

from mqtune.core.checks import number, whole_number
from mqtune.core.codec import Body
from mqtune.core.errors import ConfigurationError
from mqtune.core.names import OF_RESOURCES, KnownArguments
from mqtune.core.version import __version__, minor

#: Trials and workers meet only within one minor version: the queue's name carries it.
QUEUE_VERSION: Final = minor(__version__).replace(".", "-")
#: All queues of trials, as a pattern of Redis.
QUEUES: Final = "mqtune-*"
#: The names of all experiments, as a pattern.
EVERY: Final = "*"
#: The key, in a definition, of the name of the function by which each trial asks for resources.
BY_CONFIG: Final = "by_config"
#: The most seats of a gang: each is a key, a lease and a task, and one script goes over all of them.
MOST_SEATS: Final = 1000
#: The bytes of a GB, as makers of GPUs count.
BYTES_PER_GB: Final = 10**9
#: Between the patterns of a worker that serves several.
_BETWEEN: Final = ","
_PATTERN: Final = re.compile(r"[A-Za-z0-9._*-]{1,100}")
#: The memory in the name of a queue.
_MEMORY: Final = re.compile(r"\.mem(\d*\.?\d+)")
_OF_GANGS: Final = frozenset({"machines", "seats"})
#: Tags become part of a queue's name.
_TAG: Final = re.compile(r"[a-z0-9_-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources(KnownArguments):
    """What one trial asks for, or one slot of a worker offers.

    Args:
        gpus: number of GPUs; below 1 it is a share of one GPU (0.5 lets two trials share it),
            above 1 it must be whole. 0 with ``gpu_memory_gb`` is as much of one GPU as that, beside other trials.
        cpus: number of CPU cores, a whole number of at least 1.
        gpu_memory_gb: memory of each of the GPUs, or of the share of one, in GB of 10⁹ bytes, as makers count it:
            a "24 GB" GPU has at least 24. 0 asks for none in particular, or says that it is not known. Without ``gpus``
            a trial gets so much of a GPU, on workers that share theirs by memory; a slot there offers all of a GPU's.
        machines: on how many workers each trial runs at once, as one gang: with ``gpus=8, machines=2`` it has a slot
            with 8 GPUs on each of two. All begin together, or none.
        seats: the same, but several of its slots may be on one worker. Give one of the two.
        tags: what else the slot must have, by names that the workers' operator has chosen, such as ``a100`` or
            ``nvlink``: small letters, digits, dashes and underscores. Kept as a frozenset.

    Raises:
        ConfigurationError: a count is negative, not finite, or not whole where it must be; a tag is no name; *machines*
            and *seats* are both given, or are more than ``MOST_SEATS``.
    """

    meant: ClassVar = OF_RESOURCES

    gpus: float = 0
    cpus: int = 1
    gpu_memory_gb: float = 0
    tags: Iterable[str] = frozenset()
    machines: int = 1
    seats: int = 1

    def __post_init__(self) -> None:
        gpus = number("resources", "gpus", self.gpus)
        cpus = whole_number("resources", "cpus", self.cpus, 1)
        memory = number("resources", "gpu_memory_gb", self.gpu_memory_gb, least=0)
        if gpus < 0 or (gpus > 1 and gpus != int(gpus)):
            raise ConfigurationError(
                f"resources: gpus={gpus!r} can't be had; give 0, a share below 1 such as 0.5, or a whole number"
            )
        machines = whole_number("resources", "machines", self.machines, 1)
        seats = whole_number("resources", "seats", self.seats, 1)
        if machines > 1 and seats not in (1, machines):
            raise ConfigurationError(
                f"resources: machines={machines} and seats={seats} are given; give machines=… for a slot on each of so "
                f"many workers, or "
                "seats=… for so many slots on any"
            )
        if max(machines, seats) > MOST_SEATS:
            raise ConfigurationError(
                f"resources: a trial has no more than {MOST_SEATS} seats; {max(machines, seats)} are asked for"
            )
        plain: Body = {"gpus": gpus, "cpus": cpus, "gpu_memory_gb": memory, "tags": _checked_tags(self.tags)}
        plain |= {"machines": machines, "seats": max(machines, seats)}
        for name, value in plain.items():
            object.__setattr__(self, name, value)

    @property
    def gang(self) -> str:
        """The journal's form of its seats: their number, "apart" for different workers, and the resources of each.

        It is empty for one seat.
        """
        if self.seats == 1:
            return ""
        return f"{self.seats}:{'apart' if self.machines > 1 else 'any'}:{self.of_seat}"

    @property
    def of_seat(self) -> Resources:
        """The resources that one of its seats asks for."""
        return replace(self, machines=1, seats=1)

    @property
    def not_offered(self) -> str:
        """The beginning of a sentence: that no workers offer the slots for it."""
        if self.seats == 1:
            return f"no worker offers a slot with {self}"
        if self.machines > 1:
            return f"no fleet of {self.seats} workers offers a slot with {self.of_seat} on each"
        return f"no fleet offers {self.seats} slots with {self.of_seat} each"

    @property
    def has_gpu(self) -> bool:
        """Whether a GPU, or some of one, is asked for or offered."""
        return self.gpus > 0 or self.gpu_memory_gb > 0

    @property
    def is_shared_by_memory(self) -> bool:
        """Whether it is a part of a GPU that is measured by its memory alone."""
        return self.has_gpu and not self.gpus

    @property
    def shared_bytes(self) -> int:
        """How many bytes of a GPU's memory that is; 0 for anything that is measured otherwise."""
        return max(1, round(self.gpu_memory_gb * BYTES_PER_GB)) if self.is_shared_by_memory else 0

    def fits(self, offer: Resources) -> bool:
        """Whether a slot that offers *offer* may run a trial that asks for this.

        GPUs match exactly (a trial without a GPU never blocks a slot that has one); CPU cores, GPU memory and tags may
        be more than asked for.
        """
        return (
            math.isclose(self.gpus, offer.gpus, abs_tol=1e-6)
            and self.has_gpu == offer.has_gpu
            and self.cpus <= offer.cpus
            and self.gpu_memory_gb <= offer.gpu_memory_gb
            and frozenset(self.tags) <= frozenset(offer.tags)
        )

    def encode(self) -> Body:
        """Return plain values for a message. With one seat, all versions know them."""
        plain = {**asdict(self), "tags": sorted(self.tags)}
        return {name: value for name, value in plain.items() if name not in _OF_GANGS or value > 1}

    @classmethod
    def decode(cls, body: Body) -> Resources:
        """Return the resources that ``encode`` made plain; fields that are not known are ignored.

        Raises:
            ConfigurationError: a value can't be had.
        """
        return cls(**{each.name: body[each.name] for each in fields(cls) if each.name in body})

    def __str__(self) -> str:
        if self.seats > 1:
            return f"{self.seats} {'machines' if self.machines > 1 else 'slots'} with {self.of_seat} each"
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
    """Return the Celery queue that slots of this shape consume.

    Examples are ``mqtune-0-2.gpu1.cpu4`` and ``….cpu4.mem24+a100+nvlink``. Equal shapes have one name, on every
    machine, and different shapes have different ones. Workers that are for some experiments alone have queues of their
    own: ``….cpu4@team-a-*``. Slots for several patterns have a name too, ``….cpu4@team-a-*,team-b-*``, and consume a
    queue for each: see ``queues_of``.
    """
    memory = f".mem{offer.gpu_memory_gb:.12g}" if offer.gpu_memory_gb else ""
    tags = "".join(f"+{tag}" for tag in sorted(offer.tags))
    return f"mqtune-{QUEUE_VERSION}.gpu{offer.gpus:g}.cpu{offer.cpus}{memory}{tags}" + (
        "" if experiments == EVERY else f"@{experiments}"
    )


def version_in(queue: str) -> str:
    """Return the minor version of mqtune of the slots of this queue, such as 0.2."""
    return queue.removeprefix("mqtune-").partition(".")[0].replace("-", ".")


def gpus_in(queue: str, asked: Resources) -> float:
    """Return how many GPUs a trial that asks for this has in a slot of this queue.

    A part that is measured by memory counts as its share.
    """
    if not asked.is_shared_by_memory:
        return asked.gpus
    found = _MEMORY.search(queue)
    return min(1.0, asked.gpu_memory_gb / float(found[1])) if found else 0.0


def queues_of(name: str) -> list[str]:
    """Return the Celery queues that the slots of this name consume.

    There is one for each of their worker's patterns, in their order.

    So teams share slots, and each has a queue of its own, which the accounts of the others can't see.
    """
    return [queue for _, queue in patterned(name)]


def patterned(name: str) -> list[tuple[str, str]]:
    """Return the Celery queues that the slots of this name consume, each with its pattern of experiments."""
    shape, at, patterns = name.partition("@")
    if not at:
        return [(EVERY, name)]
    return [(pattern, shape if pattern == EVERY else f"{shape}@{pattern}") for pattern in patterns_of(patterns)]


def patterns_of(experiments: str) -> list[str]:
    """Return the patterns that a worker serves, which stand with commas between them."""
    return experiments.split(_BETWEEN)


def serves(experiments: str, experiment: str) -> bool:
    """Whether a worker for experiments of these patterns takes trials of one."""
    return any(fnmatchcase(experiment, pattern) for pattern in patterns_of(experiments))


def checked_patterns(experiments: str) -> str:
    """Return the patterns of a worker, each once and in one order, so that equal workers share a queue.

    Raises:
        ConfigurationError: one can't stand for names of experiments.
    """
    patterns = sorted({pattern.strip() for pattern in patterns_of(experiments)})
    for pattern in patterns:
        check_experiments(pattern)
    return _BETWEEN.join(patterns)


def is_pattern(text: str) -> bool:
    """Whether a text can stand for the names of experiments."""
    return _PATTERN.fullmatch(text) is not None


def check_experiments(pattern: str) -> None:
    """Check what stands for the names of experiments: ``*`` stands for any letters.

    Raises:
        ConfigurationError: it can't.
    """
    if not is_pattern(pattern):
        raise ConfigurationError(
            f"experiments={pattern!r} can't be names of experiments; use letters, digits, dots, dashes, underscores, "
            f"and * "
            "for any of them, such as team-a-*"
        )


def _checked_tags(tags: object) -> frozenset[str]:
    if isinstance(tags, str | bytes) or not isinstance(tags, Iterable):
        raise ConfigurationError(
            f"resources: tags={tags!r} is not a list of names; give a list such as ['a100', 'nvlink']"
        )
    found = tuple(tags)
    for tag in found:
        if not isinstance(tag, str) or not _TAG.fullmatch(tag):
            raise ConfigurationError(
                f"resources: tag {tag!r} is not a name; use small letters, digits, dashes and underscores, such as "
                f"'a100'"
            )
    return frozenset(found)
