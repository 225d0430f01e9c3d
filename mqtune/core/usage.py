"""Resource use of an attempt, sampled at a low rate by its worker.

It is stored beside the metrics, never among them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from mqtune.core.codec import VERSION, decode_value, encode_value, is_version
from mqtune.core.trial import is_number

#: Figures of an attempt. Unknown ones, such as the load of a GPU part (MIG), are left out. An attempt that ended before
#: its first sample has no figures. GPU figures are the devices', including other processes there.
FIGURES: Final = {
    "sampled_s": "for how many seconds it was sampled",
    "gpu_percent": "the share of the time in which its devices computed, on average",
    "gpu_percent_peak": "the largest such share of one device in a sample",
    "gpu_memory_bytes_peak": (
        "the most memory in use on all its devices together; only its own if trials share GPUs by memory"
    ),
    "gpu_memory_bytes_asked": "the memory that it asked for, if trials share GPUs by memory",
    "gpu_power_w": "the power of all its devices together, on average",
    "gpu_energy_j": "the energy of all its devices together while it was sampled",
    "gpu_idle_s": "the longest time for which one of its devices was idle, if the worker warned about it",
    "gpu_slots": "how many slots share each of its devices, if more than one",
    "cpus": "how many processors its processes kept busy, on average",
    "redis_wait_s": "for how many seconds its data waited for a Redis that was full, away or refused the login",
    "memory_bytes_peak": "the most resident memory of its processes; memory that several share counts for each",
}
#: Figures by name. Some may be missing.
Usage = dict[str, float]


class DeviceUse(NamedTuple):
    """Current use of a device by all processes. A value that the device doesn't report is None.

    ``percent`` is the share of the time in which the device computed.
    """

    percent: float | None = None
    memory_bytes: float | None = None
    power_w: float | None = None


class LiveUse(NamedTuple):
    """Current use of an attempt, and its figures so far.

    Attributes:
        cpus: number of processors kept busy since the last sample; None if unknown.
        memory_bytes: resident memory of its processes; None if unknown.
        idle: for how many seconds each device has been idle. It has only devices about which the worker warned.
    """

    attempt: int
    devices: Mapping[str, DeviceUse]
    cpus: float | None
    memory_bytes: float | None
    idle: Mapping[str, float]
    usage: Usage


def sound_usage(untrusted: object) -> Usage:
    """Return the valid figures of untrusted data."""
    values = untrusted if isinstance(untrusted, dict) else {}
    figures = ((name, _number(values.get(name))) for name in FIGURES)
    return {name: value for name, value in figures if value is not None}


def encode_uses(uses: Mapping[str, LiveUse]) -> bytes:
    """Encode the use of trials, by trial id, for Redis."""
    return encode_value([VERSION, {trial: use._asdict() for trial, use in uses.items()}])


def decode_uses(data: bytes) -> dict[str, LiveUse]:
    """Decode the use of trials, by trial id.

    Invalid entries are left out, because any worker of an experiment may have written them.
    """
    try:
        version, bodies = decode_value(data)
        uses = {trial: _use_of(body) for trial, body in bodies.items()} if is_version(version, VERSION) else {}
    except (ValueError, TypeError, AttributeError):
        return {}
    return {trial: use for trial, use in uses.items() if use is not None and isinstance(trial, str)}


def _use_of(body: object) -> LiveUse | None:
    if not isinstance(body, dict) or type(body.get("attempt")) is not int:
        return None
    return LiveUse(
        attempt=body["attempt"],
        devices={name: _device_of(use) for name, use in _named(body.get("devices"))},
        cpus=_number(body.get("cpus")),
        memory_bytes=_number(body.get("memory_bytes")),
        idle={name: _number(value) or 0.0 for name, value in _named(body.get("idle"))},
        usage=sound_usage(body.get("usage")),
    )


def _named(untrusted: object) -> list[tuple[str, object]]:
    """Return the items of a dict with a printable name. Return an empty list for another value."""
    values = untrusted.items() if isinstance(untrusted, dict) else ()
    return [(name, value) for name, value in values if isinstance(name, str) and name.isprintable()]


def _device_of(values: object) -> DeviceUse:
    known = values[: len(DeviceUse._fields)] if isinstance(values, list) else []
    return DeviceUse(*map(_number, known))


def _number(value: object) -> float | None:
    """Return *value* if it is a finite number of at least 0, else None."""
    return value if is_number(value) and math.isfinite(value) and value >= 0 else None
