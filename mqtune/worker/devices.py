"""Which devices a worker has, and how they make slots; asking never initialises a device in this process."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from mqtune.core.errors import ConfigurationError
from mqtune.core.resources import Resources
from mqtune.worker.privileges import without_secrets

__all__ = ["SlotPlan", "find_gpu_memory", "find_gpus", "plan_slots"]

logger = logging.getLogger(__name__)

#: nvidia-smi answers within a second, and within several on a machine whose driver has to be loaded first.
_QUERY_TIMEOUT_S: Final = 30
#: Slots offer GPU memory in steps of it, rounded down: GPUs of one kind then share a queue, and people can read its name.
_MEMORY_STEP_MB: Final = 100
_BYTES_PER_MIB: Final = 1 << 20
_BYTES_PER_MB: Final = 1_000_000
_MB_PER_GB: Final = 1_000
#: What limits the threads of the numeric libraries in a trial to its slot's cores, unless its user says otherwise.
_THREAD_LIMITS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlan:
    """A worker's slots: all of one shape, each with its devices."""

    offer: Resources
    devices: tuple[tuple[str, ...], ...]

    def environment(self, slot: int) -> dict[str, str]:
        """Return the variables that a slot's processes get before any user code is imported."""
        limits = {name: str(self.offer.cpus) for name in _THREAD_LIMITS if name not in os.environ}
        return {"CUDA_VISIBLE_DEVICES": ",".join(self.devices[slot]), "CUDA_DEVICE_ORDER": "PCI_BUS_ID", **limits}


def find_gpus(asked: str) -> tuple[str, ...]:
    """Return the devices that *asked* means: ``auto``, a number, or a list such as ``0,1`` or ``3,`` or ``GPU-…,GPU-…``.

    Raises:
        ConfigurationError: *asked* is none of these, names a device twice, or asks for more than can be seen.
    """
    asked = asked.strip()
    if asked == "auto":
        return _visible_gpus()
    if asked.isdecimal():
        names = tuple(str(index) for index in range(int(asked)))
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            return names
        seen = _listed(visible)
        if len(seen) < len(names):
            raise ConfigurationError(
                f"--gpus {asked}: CUDA_VISIBLE_DEVICES={visible!r} shows only {len(seen)}; ask for fewer, or name them: --gpus 0,1"
            )
        return seen[: len(names)]
    devices = _listed(asked)
    if not devices or not all(re.fullmatch(r"\d+|(GPU|MIG)-[\w/-]+", device) for device in devices):
        raise ConfigurationError(f"--gpus {asked!r} makes no sense; give auto, a number, or a list such as 0,1")
    if len(set(devices)) < len(devices):
        raise ConfigurationError(
            f"--gpus {asked!r} names a device twice; for two trials on one GPU use --slots-per-gpu 2"
        )
    return devices


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _visible_gpus() -> tuple[str, ...]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return _listed(visible)
    rows = _query("index", otherwise="this worker has no GPUs unless they are named: --gpus 0,1")
    return tuple(index for (index,) in rows if index.isdecimal())


def find_gpu_memory(asked: str, gpus: tuple[str, ...]) -> int:
    """Return what *asked* says of the memory of each GPU, in MB (10⁶ bytes); 0 when it is not known.

    GPUs that differ count as the smallest of them, because all slots of a worker have one shape; one that nvidia-smi does
    not list, such as a part of a GPU, makes it unknown.

    Args:
        asked: ``auto``, to have nvidia-smi say it, or a number of GB.
        gpus: the devices, from ``find_gpus``.

    Raises:
        ConfigurationError: *asked* is neither, or there are no GPUs that it could be said of.
    """
    asked = asked.strip()
    if asked != "auto":
        memory_mb = _declared_mb(asked)
        if not gpus:
            raise ConfigurationError(
                f"--gpu-memory {asked} is for workers with GPUs; leave it out, or name them: --gpus 0,1"
            )
        return memory_mb
    if not gpus:
        return 0
    rows = _query(
        "index,uuid,memory.total", otherwise="how much memory its GPUs have is not known: --gpu-memory 24 says it"
    )
    found = [_memory_mb(gpu, rows) for gpu in gpus]
    if all(found) and len({*found}) > 1:
        shown = ", ".join(f"{gpu}: {mb / _MB_PER_GB:.1f} GB" for gpu, mb in zip(gpus, found, strict=True))
        logger.warning(
            "the GPUs differ (%s): each slot offers what the smallest has; start a worker for each kind: --gpus %s,",
            shown,
            gpus[0],
        )
    return min(found)


def _declared_mb(asked: str) -> int:
    with contextlib.suppress(ValueError):
        gigabytes = float(asked)
        if math.isfinite(gigabytes) and gigabytes * _MB_PER_GB >= _MEMORY_STEP_MB:
            return round(gigabytes * _MB_PER_GB)
    raise ConfigurationError(f"--gpu-memory {asked!r} makes no sense; give auto, or the GB of each GPU, such as 24")


def _memory_mb(gpu: str, rows: list[tuple[str, ...]]) -> int:
    """Return a GPU's memory by nvidia-smi's rows of index, UUID and MiB; 0 when they don't say."""
    for index, uuid, mebibytes in rows:
        # CUDA takes the beginning of an UUID for it.
        if gpu == index or (gpu.startswith("GPU-") and uuid.startswith(gpu)):
            return int(mebibytes) * _BYTES_PER_MIB // _BYTES_PER_MB if mebibytes.isdecimal() else 0
    return 0


def _query(fields: str, *, otherwise: str) -> list[tuple[str, ...]]:
    """Return what nvidia-smi says of each GPU; nothing where there is no nvidia-smi, or, with a warning, no answer."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    try:
        answer = subprocess.run(
            [command, f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_QUERY_TIMEOUT_S,
            env=without_secrets(),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.warning("nvidia-smi did not answer (%s); %s", error, otherwise)
        return []
    if answer.returncode:
        said = (answer.stdout + answer.stderr).strip() or f"code {answer.returncode}"
        logger.warning("nvidia-smi failed (%s); %s", said, otherwise)
        return []
    rows = [tuple(value.strip() for value in line.split(",")) for line in answer.stdout.splitlines() if line.strip()]
    # A driver may print a remark before its answer.
    return [row for row in rows if len(row) == fields.count(",") + 1]


def plan_slots(
    gpus: tuple[str, ...],
    *,
    slots_per_gpu: int = 1,
    gpus_per_slot: int = 1,
    cpus: int | None = None,
    slots: int | None = None,
    gpu_memory_mb: int = 0,
    tags: Iterable[str] = (),
) -> SlotPlan:
    """Return the slots that a worker offers.

    Args:
        gpus: the devices, from ``find_gpus``; without one the slots are CPU slots.
        slots_per_gpu: how many trials share a GPU.
        gpus_per_slot: how many GPUs a trial gets.
        cpus: cores that the worker may use; all that this process may run on by default. Slots share them evenly.
        slots: number of CPU slots; one for each core by default.
        gpu_memory_mb: memory of each GPU in MB, from ``find_gpu_memory``; trials that share a GPU share it evenly.
        tags: what every slot has besides.

    Raises:
        ConfigurationError: the numbers don't go together.
    """
    for name, value in (
        ("slots-per-gpu", slots_per_gpu),
        ("gpus-per-slot", gpus_per_slot),
        ("cpus", cpus),
        ("slots", slots),
    ):
        if value is not None and value < 1:
            raise ConfigurationError(f"--{name} {value}: must be at least 1")
    cores = cpus or usable_cpus()
    if not gpus:
        number = slots or cores
        return SlotPlan(offer=Resources(cpus=max(1, cores // number), tags=tags), devices=((),) * number)
    if slots is not None:
        raise ConfigurationError(f"--slots {slots} is for workers without GPUs; use --slots-per-gpu or --gpus-per-slot")
    if slots_per_gpu > 1 and gpus_per_slot > 1:
        raise ConfigurationError("--slots-per-gpu and --gpus-per-slot can't both be more than 1")
    if len(gpus) % gpus_per_slot:
        raise ConfigurationError(
            f"--gpus-per-slot {gpus_per_slot} does not divide the {len(gpus)} GPUs {','.join(gpus)}"
        )
    if gpus_per_slot > 1:
        devices = tuple(gpus[at : at + gpus_per_slot] for at in range(0, len(gpus), gpus_per_slot))
    else:
        devices = tuple((gpu,) for gpu in gpus for _ in range(slots_per_gpu))
    share = gpus_per_slot if gpus_per_slot > 1 else 1 / slots_per_gpu
    memory_steps = gpu_memory_mb // slots_per_gpu // _MEMORY_STEP_MB
    offer = Resources(
        gpus=share,
        cpus=max(1, cores // len(devices)),
        gpu_memory_gb=memory_steps / (_MB_PER_GB // _MEMORY_STEP_MB),
        tags=tags,
    )
    return SlotPlan(offer=offer, devices=devices)


def usable_cpus() -> int:
    """Return how many cores this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
