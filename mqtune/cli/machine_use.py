"""How attempts use machines: now, as workers report it, and in all, as the journal has it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from mqtune.cli.place import Place, live_broker
from mqtune.cli.servers import redis_at
from mqtune.core.errors import MqtuneError
from mqtune.core.text import printable
from mqtune.core.timing import Timing
from mqtune.core.trial import Attempt, Trial
from mqtune.core.usage import DeviceUse, LiveUse, Usage
from mqtune.results.experiments import duration

#: Seconds to connect. They are few, as commands show everything else without this connection.
_CONNECT_S: Final = 1.0
_BYTES_PER_GB: Final = 1e9
_BYTES_PER_MB: Final = 1e6
_J_PER_WH: Final = 3_600.0
_WH_PER_KWH: Final = 1_000.0
_SHOWN: Final = 10
#: Current use by (experiment, worker), then by trial.
Uses = dict[tuple[str, str], dict[str, LiveUse]]


def uses_on(url: str | None, workers: Collection[tuple[str, str]]) -> Uses:
    """Return how the trials of these (experiment, worker) pairs use machines now.

    It is empty if the server does not answer, or the account may not read it.
    """
    if url is None or not workers:
        return {}
    from mqtune.services.usage.board import UsageBoard  # noqa: PLC0415

    with contextlib.suppress(MqtuneError), redis_at(url, timing=Timing(connect_timeout_s=_CONNECT_S)) as client:
        return UsageBoard(client).read(sorted(set(workers)))
    return {}


def use_in(uses: Uses, experiment: str, worker: str, trial: str, attempt: int) -> LiveUse | None:
    """Return one attempt's current use, or None if it is unknown."""
    use = uses.get((experiment, worker), {}).get(trial)
    return use if use is not None and use.attempt == attempt else None


def is_running(attempt: Attempt) -> bool:
    """Return whether an attempt is running, according to the journal."""
    return attempt.started_at is not None and attempt.end is None


def uses_of(place: Place, trials: Iterable[Trial]) -> dict[str, LiveUse]:
    """Return how an experiment's running trials use machines now, by trial id."""
    running = [trial for trial in trials if trial.attempts and is_running(trial.attempts[-1])]
    url = live_broker(place) if running else None
    uses = uses_on(url, [(place.name, trial.attempt.worker) for trial in running])
    pairs = (
        (trial.id, use_in(uses, place.name, trial.attempt.worker, trial.id, trial.attempt.number)) for trial in running
    )
    return {id_: use for id_, use in pairs if use is not None}


def described_use(use: LiveUse | None) -> dict[str, object] | None:
    """Return an attempt's current use for JSON."""
    if use is None:
        return None
    devices = {name: device._asdict() for name, device in use.devices.items()}
    return {"devices": devices, "cpus": use.cpus, "memory_bytes": use.memory_bytes, "idle": dict(use.idle)}


def usage_of(attempt: Attempt, use: LiveUse | None) -> Usage:
    """Return figures about an attempt's use: so far if it is running, else in all."""
    return dict(use.usage if use is not None and is_running(attempt) else attempt.usage)


def use_text(use: LiveUse) -> str:
    """Return an attempt's current use on one line."""
    devices = [f"device {printable(name)}: {_device_text(name, device)}" for name, device in use.devices.items()]
    return " · ".join(filter(None, [*devices, _processes_text(use)]))


def short_use_text(use: LiveUse | None) -> str:
    """Return an attempt's current use in a few words. It is empty if unknown."""
    if use is None:
        return ""
    devices = list(use.devices.values())
    percents = [f"{device.percent:.0f} %" for device in devices if device.percent is not None]
    sizes = [device.memory_bytes for device in devices if device.memory_bytes is not None]
    idle = f"idle for {duration(max(use.idle.values()))}" if use.idle else ""
    gpu = ", ".join(filter(None, [idle, " / ".join(percents), _size(sum(sizes)) if sizes else ""]))
    return gpu or _processes_text(use)


def _device_text(name: str, use: DeviceUse) -> str:
    parts = [
        f"{use.percent:.0f} %" if use.percent is not None else "",
        _size(use.memory_bytes) if use.memory_bytes is not None else "",
        f"{use.power_w:.0f} W" if use.power_w is not None else "",
    ]
    known = ", ".join(filter(None, parts))
    if use.percent is not None or not known:
        return known or "its driver reports nothing"
    return f"{known} (its driver does not report how busy {'a part of a GPU' if name.startswith('MIG-') else 'it'} is)"


def _processes_text(use: LiveUse) -> str:
    cpus = f"{use.cpus:.1f} CPUs" if use.cpus is not None else ""
    return ", ".join(
        filter(None, [cpus, f"{_size(use.memory_bytes)} of memory" if use.memory_bytes is not None else ""])
    )


def usage_text(usage: Mapping[str, float]) -> str:
    """Return figures about an attempt's use on one line. It is empty without figures."""
    return " · ".join(
        part for part in map(", ".join, (_gpu_parts(usage), _process_parts(usage), _time_parts(usage))) if part
    )


def _gpu_parts(usage: Mapping[str, float]) -> list[str]:
    parts = []
    if "gpu_percent" in usage:
        parts.append(f"{usage['gpu_percent']:.0f} % (up to {usage.get('gpu_percent_peak', 0):.0f} %)")
    if "gpu_memory_bytes_peak" in usage:
        asked = usage.get("gpu_memory_bytes_asked")
        more = f", and it asked for {_size(asked)}" if asked is not None else ""
        parts.append(f"up to {_size(usage['gpu_memory_bytes_peak'])}{more}")
    if "gpu_power_w" in usage:
        parts.append(f"{usage['gpu_power_w']:.0f} W ({_energy(usage.get('gpu_energy_j', 0))})")
    return [f"GPU {parts[0]}", *parts[1:]] if parts else []


def _process_parts(usage: Mapping[str, float]) -> Iterator[str]:
    if "cpus" in usage:
        yield f"{usage['cpus']:.1f} CPUs"
    if "memory_bytes_peak" in usage:
        yield f"up to {_size(usage['memory_bytes_peak'])} of memory"


def _time_parts(usage: Mapping[str, float]) -> Iterator[str]:
    if "sampled_s" in usage:
        yield f"sampled for {duration(usage['sampled_s'])}"
    if "redis_wait_s" in usage:
        yield f"data waited {duration(usage['redis_wait_s'])} for Redis"


def _size(count: float) -> str:
    return f"{count / _BYTES_PER_GB:.1f} GB" if count >= _BYTES_PER_GB else f"{count / _BYTES_PER_MB:.0f} MB"


def _energy(joules: float) -> str:
    watt_hours = joules / _J_PER_WH
    return f"{watt_hours:.1f} Wh" if watt_hours < _WH_PER_KWH else f"{watt_hours / _WH_PER_KWH:.1f} kWh"


def warning_of(attempt: Attempt, use: LiveUse | None) -> str:
    """Return a warning if an attempt exceeded its GPU memory or left a device idle, else ""."""
    figures = usage_of(attempt, use)
    if (asked := figures.get("gpu_memory_bytes_asked")) is not None:
        took = _size(figures.get("gpu_memory_bytes_peak", 0))
        return f"attempt {attempt.number} has used {took} of its GPU's memory, but asked for {_size(asked)}"
    if use is not None and use.idle and is_running(attempt):
        names = ", ".join(map(printable, use.idle))
        return (
            f"attempt {attempt.number} has device {names} and has left it idle for {duration(max(use.idle.values()))}"
        )
    idle_s = figures.get("gpu_idle_s", 0)
    return f"attempt {attempt.number} left a device idle for {duration(idle_s)} without a break" if idle_s else ""


def sharing_of(attempt: Attempt, use: LiveUse | None) -> str:
    """Return a note if the figures of a device include other attempts, or an empty text."""
    slots = usage_of(attempt, use).get("gpu_slots", 1)
    return f"{slots:.0f} slots share each device: its figures include everything that runs there" if slots > 1 else ""


def idle_warnings(uses: Mapping[str, LiveUse]) -> list[str]:
    """Return a line for each trial that leaves a device idle, the longest idle first.

    After ten trials, the last line gives the number of further ones.
    """
    idle = sorted(((max(use.idle.values()), id_) for id_, use in uses.items() if use.idle), reverse=True)
    lines = [f"trial {id_} has left its GPU idle for {duration(idle_s)}" for idle_s, id_ in idle[:_SHOWN]]
    return [*lines, f"… and {len(idle) - _SHOWN} more"] if len(idle) > _SHOWN else lines
