"""A worker's description of itself in the fleet's register."""

from __future__ import annotations

import hashlib
import reprlib
from dataclasses import dataclass, field

from mqtune.core.codec import VERSION, Body, Number, decode_value, encode_value, is_version
from mqtune.core.errors import MessageVersionError
from mqtune.core.impairment import Impairment
from mqtune.core.owner import NOBODY, Owner
from mqtune.core.plain import Count, from_plain, unusual_fields


def busy_as(experiment: str) -> str:
    """Return a token that stands for an experiment. An experiment's name may be confidential."""
    return hashlib.sha256(experiment.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """A worker's description of itself in the fleet's register."""

    name: str
    host: str
    pid: int
    version: str
    queue: str
    gpus: Number
    cpus: int
    slots: Count
    devices: list[str]
    code_root: str
    joined_at: Number
    #: The memory of each GPU of a slot, or of its share of one; 0 if unknown.
    gpu_memory_gb: Number = 0
    tags: list[str] = field(default_factory=list)
    #: The reasons why it, or one of its devices, takes no trials now. ``slots`` leaves these out if idle.
    impairments: list[Impairment] = field(default_factory=list)
    #: The longest duration of its shutdown, in seconds.
    leaves_within_s: Number = 60.0
    #: The names of the experiments whose trials it takes: patterns with * for any letters, separated by commas.
    experiments: str = "*"
    #: The number of its busy slots by experiment. ``busy_as`` makes the tokens of experiments.
    busy: Body = field(default_factory=dict)
    #: The parts of its owner, with ``host``.
    account: str = ""
    user: str = ""
    #: How many submitted scripts it may run at the same time, and how many run now.
    drivers: int = 0
    driving: int = 0
    #: The most free memory of a GPU for another trial, if trials share GPUs by memory.
    free_gpu_memory_gb: Number = 0

    @property
    def gpu_names(self) -> list[str]:
        """The worker's GPUs, each once."""
        return [*dict.fromkeys(name for names in self.devices for name in names.split(",") if name)]

    @property
    def busy_slots(self) -> int:
        """The number of its slots with an attempt."""
        return sum(count for count in self.busy.values() if type(count) is int)

    @property
    def shared_gpus(self) -> int:
        """The number of GPUs that trials share by memory."""
        return len(self.gpu_names) if self.gpu_memory_gb and not self.gpus else 0

    @property
    def note(self) -> str:
        """The worker's impairments as text for people. It stays the same while nothing changes."""
        return "; ".join(impairment.reason for impairment in self.impairments)

    @property
    def owner(self) -> Owner:
        """The owner of the worker's process. NOBODY for a worker of an earlier version."""
        return Owner(self.account, self.user, self.host) if self.user else NOBODY

    def encode(self) -> bytes:
        """Encode the description for a heartbeat, without the fields that have their defaults."""
        return encode_value([VERSION, unusual_fields(self)])

    @classmethod
    def decode(cls, data: bytes) -> WorkerInfo:
        """Return the description. Unknown fields are ignored.

        Raises:
            MessageVersionError: the version is unknown, or the bytes are not a description.
        """
        try:
            version, body = decode_value(data)
        except (ValueError, TypeError) as error:
            raise MessageVersionError(f"a worker's description can't be read: {data[:100]!r}: {error}") from None
        if not is_version(version, VERSION):
            raise MessageVersionError(
                f"a worker's description has version {reprlib.repr(version)}; this mqtune reads {VERSION}"
            )
        try:
            return from_plain(cls, body)
        except (TypeError, ValueError, LookupError) as error:
            raise MessageVersionError(f"a worker's description is broken: {error}") from None
