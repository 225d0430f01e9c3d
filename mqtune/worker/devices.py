"""Which devices a worker has, and how they make slots; asking never initialises a device in this process."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import Final

from mqtune.errors import ConfigurationError
from mqtune.resources import Resources

__all__ = ["SlotPlan", "find_gpus", "plan_slots"]

logger = logging.getLogger(__name__)

#: nvidia-smi answers within a second, and within several on a machine whose driver has to be loaded first.
_QUERY_TIMEOUT_S: Final = 30
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
    command = shutil.which("nvidia-smi")
    if command is None:
        return ()
    try:
        answer = subprocess.run(
            [command, "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=_QUERY_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.warning(
            "nvidia-smi did not answer (%s); this worker has no GPUs unless they are named: --gpus 0,1", error
        )
        return ()
    if answer.returncode:
        said = (answer.stdout + answer.stderr).strip() or f"code {answer.returncode}"
        logger.warning("nvidia-smi failed (%s); this worker has no GPUs unless they are named: --gpus 0,1", said)
        return ()
    return tuple(answer.stdout.split())


def plan_slots(
    gpus: tuple[str, ...],
    *,
    slots_per_gpu: int = 1,
    gpus_per_slot: int = 1,
    cpus: int | None = None,
    slots: int | None = None,
) -> SlotPlan:
    """Return the slots that a worker offers.

    Args:
        gpus: the devices, from ``find_gpus``; without one the slots are CPU slots.
        slots_per_gpu: how many trials share a GPU.
        gpus_per_slot: how many GPUs a trial gets.
        cpus: cores that the worker may use; all that this process may run on by default. Slots share them evenly.
        slots: number of CPU slots; one for each core by default.

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
        return SlotPlan(offer=Resources(cpus=max(1, cores // number)), devices=((),) * number)
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
    return SlotPlan(offer=Resources(gpus=share, cpus=max(1, cores // len(devices))), devices=devices)


def usable_cpus() -> int:
    """Return how many cores this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
