"""Finds a worker's devices, and divides them into slots."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

from mqtune.core.errors import ConfigurationError
from mqtune.core.resources import BYTES_PER_GB, Resources
from mqtune.core.timing import Timing
from mqtune.worker.host.gpu_probe import Gpu, NoAnswer, matching
from mqtune.worker.host.gpus import GpuProbe

logger = logging.getLogger(__name__)

#: Offered GPU memory is rounded down to a multiple of this: GPUs of one kind then share a queue, and its name stays
#: readable.
_MEMORY_STEP_MB: Final = 100
_BYTES_PER_MB: Final = 1_000_000
_MB_PER_GB: Final = 1_000
#: Variables that limit the threads and processes of libraries in a trial to its slot's cores, unless the user has set
#: them.
_CORE_LIMITS: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    # joblib's and scikit-learn's n_jobs=-1 would start a process for each core of the machine.
    "LOKY_MAX_CPU_COUNT",
    "POLARS_MAX_THREADS",
    # Libraries in Rust, such as Hugging Face's tokenizers.
    "RAYON_NUM_THREADS",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlan:
    """The devices and resources of a worker's slots.

    Attributes:
        offer: the resources of each slot, the same for all.
        devices: the names of each slot's devices, as in CUDA_VISIBLE_DEVICES; empty tuples for CPU slots.
    """

    offer: Resources
    devices: tuple[tuple[str, ...], ...]

    @property
    def device_bytes(self) -> int:
        """The memory of each device in bytes; 0 if it is unknown."""
        # Each slot of a GPU that is shared by memory offers all of its memory.
        share = min(self.offer.gpus, 1) or 1
        return round(self.offer.gpu_memory_gb / share * BYTES_PER_GB)

    @property
    def varies(self) -> frozenset[str]:
        """The names of the environment variables that differ between slots."""
        return frozenset(_visibility_variables() if len(set(self.devices)) > 1 else ())

    def environment(self, slot: int) -> dict[str, str]:
        """Return the environment variables for processes in slot number *slot*."""
        limits = {name: str(self.offer.cpus) for name in _CORE_LIMITS if name not in os.environ}
        visible = dict.fromkeys(_visibility_variables(), ",".join(self.devices[slot]))
        return {**visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", **limits}


def _visibility_variables() -> tuple[str, ...]:
    """Return the names of the variables that list a process's GPUs, on this machine."""
    return ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES") if _has_amd_tools() else ("CUDA_VISIBLE_DEVICES",)


def _has_amd_tools() -> bool:
    """Whether this machine has AMD's tools, and none of NVIDIA's."""
    return shutil.which("nvidia-smi") is None and shutil.which("rocm-smi") is not None


def without_devices() -> dict[str, str]:
    """Return the environment variables of a process without GPUs."""
    return dict.fromkeys(_visibility_variables(), "")


def _visible_text() -> str | None:
    """Return the text of the variable that lists this process's GPUs; None if none is set.

    Raises:
        ConfigurationError: ROCR_VISIBLE_DEVICES is set, which renumbers GPUs for the other variables.
    """
    if _has_amd_tools() and "ROCR_VISIBLE_DEVICES" in os.environ:
        raise ConfigurationError(
            f"ROCR_VISIBLE_DEVICES={os.environ['ROCR_VISIBLE_DEVICES']!r} renumbers GPUs; unset it, and name those "
            f"that the worker may "
            "use: --gpus 0,1, or HIP_VISIBLE_DEVICES"
        )
    return next((os.environ[name] for name in reversed(_visibility_variables()) if name in os.environ), None)


def find_gpus(asked: str) -> tuple[str, ...]:
    """Return the devices that ``--gpus`` names.

    *asked* is its text: ``auto``, a number, or a list such as ``0,1`` or ``GPU-…,``.

    Raises:
        ConfigurationError: *asked* is malformed, names a device twice, or asks for more than are visible; or it is
            ``auto``, and the driver fails.
    """
    asked = asked.strip()
    if asked == "auto":
        return _visible_gpus()
    if asked.isdecimal():
        names = tuple(str(index) for index in range(int(asked)))
        visible = _visible_text()
        if visible is None:
            return names
        seen = _split_names(visible)
        if len(seen) < len(names):
            raise ConfigurationError(
                f"--gpus {asked}: CUDA_VISIBLE_DEVICES={visible!r} shows only {len(seen)}; ask for fewer, or name "
                f"them: --gpus 0,1"
            )
        return seen[: len(names)]
    devices = _split_names(asked)
    if not devices or not all(re.fullmatch(r"\d+|(GPU|MIG)-[\w/-]+", device) for device in devices):
        raise ConfigurationError(f"--gpus {asked!r} is invalid; give auto, a number, or a list such as 0,1")
    if len(set(devices)) < len(devices):
        raise ConfigurationError(
            f"--gpus {asked!r} names a device twice; for two trials on one GPU use --slots-per-gpu 2"
        )
    return devices


def _split_names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _visible_gpus() -> tuple[str, ...]:
    visible = _visible_text()
    if visible is not None:
        return _split_names(visible)
    try:
        return tuple(gpu.number for gpu in _installed())
    except NoAnswer as error:
        # As a worker without GPUs it would be lost to the fleet until somebody notices; a supervisor tries again.
        raise ConfigurationError(
            f"which GPUs this machine has is not known, because its GPU driver fails: {error}; repair it, or go on "
            f"without "
            "GPUs by --gpus 0 (MQTUNE_GPUS=0)"
        ) from None


def find_gpu_memory(asked: str, gpus: tuple[str, ...], timing: Timing = Timing()) -> int:
    """Return the memory of each GPU in MB (10⁶ bytes); 0 if it is unknown.

    If GPUs differ, the smallest counts, because all slots of a worker offer the same. It is unknown if the driver
    doesn't list one of the devices, such as a part of a GPU.

    Args:
        asked: the text of ``--gpu-memory``: ``auto`` to ask the driver, or a number of GB.
        gpus: the devices, from ``find_gpus``.

    Raises:
        ConfigurationError: *asked* is malformed, or there are no GPUs, or the driver answers and does not list one of
            them.
    """
    asked = asked.strip()
    declared_mb = None if asked == "auto" else _declared_mb(asked)
    if not gpus and declared_mb is not None:
        raise ConfigurationError(
            f"--gpu-memory {asked} is for workers with GPUs; leave it out, or name them: --gpus 0,1"
        )
    if not gpus:
        return 0
    installed = _installed_if_known(timing)
    _check_known(gpus, installed)
    if declared_mb is not None:
        return declared_mb
    sizes = [_memory_mb(gpu, installed) for gpu in gpus]
    if all(sizes) and len({*sizes}) > 1:
        shown = ", ".join(f"{gpu}: {mb / _MB_PER_GB:.1f} GB" for gpu, mb in zip(gpus, sizes, strict=True))
        logger.warning(
            "the GPUs differ (%s): each slot offers the memory of the smallest; start a worker for each kind: "
            "--gpus %s,",
            shown,
            gpus[0],
        )
    return min(sizes)


def _declared_mb(asked: str) -> int:
    with contextlib.suppress(ValueError):
        gigabytes = float(asked)
        if math.isfinite(gigabytes) and gigabytes * _MB_PER_GB >= _MEMORY_STEP_MB:
            return round(gigabytes * _MB_PER_GB)
    raise ConfigurationError(f"--gpu-memory {asked!r} is invalid; give auto, or the GB of each GPU, such as 24")


def _memory_mb(device: str, installed: Iterable[Gpu]) -> int:
    """Return a device's memory; 0 when it is not known."""
    gpu = matching(device, installed)
    return gpu.total // _BYTES_PER_MB if gpu is not None else 0


def _installed(timing: Timing = Timing()) -> list[Gpu]:
    """Return the GPUs of this machine; an empty list without a GPU driver.

    Raises:
        NoAnswer: there is a driver, and it fails.
    """
    if shutil.which("nvidia-smi") is None and find_spec("pynvml") is None and not _has_amd_tools():
        return []
    with contextlib.closing(GpuProbe(timing=timing)) as probe:
        try:
            return probe.gpus()
        except NoAnswer as error:
            # A machine without a driver may have the package.
            if error.is_final:
                return []
            raise


def _installed_if_known(timing: Timing = Timing()) -> list[Gpu]:
    try:
        return _installed(timing)
    except NoAnswer as error:
        logger.warning(
            "this machine's GPUs and their memory are unknown (%s); give the memory in GB: --gpu-memory 24",
            error,
        )
        return []


def _check_known(gpus: Iterable[str], installed: Sequence[Gpu]) -> None:
    """Raise ConfigurationError if the driver lists GPUs, but not all of *gpus*.

    Parts of GPUs (MIG) are not checked, because it does not list them.
    """
    unknown = [gpu for gpu in gpus if not gpu.startswith("MIG-") and matching(gpu, installed) is None]
    if installed and unknown:
        known = ",".join(gpu.number for gpu in installed)
        raise ConfigurationError(
            f"the GPU driver does not know the GPUs {','.join(unknown)} of --gpus, or of CUDA_VISIBLE_DEVICES: this "
            f"machine has {known}; name some of these: --gpus {installed[0].number},"
        )


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
        gpus: the devices, from ``find_gpus``; if it is empty, the slots are CPU slots.
        slots_per_gpu: how many trials share a GPU.
        gpus_per_slot: how many GPUs a trial gets.
        cpus: the cores of the worker, by default all usable cores. Slots share them evenly.
        slots: number of CPU slots; one for each core by default.
        gpu_memory_mb: memory of each GPU in MB, from ``find_gpu_memory``; trials that share a GPU share it evenly.
        tags: the tags of every slot.

    Raises:
        ConfigurationError: a number is below 1, or two options exclude each other.
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


def plan_slots_by_memory(
    gpus: tuple[str, ...], most: int, gpu_memory_mb: int, *, cpus: int | None = None, tags: Iterable[str] = ()
) -> SlotPlan:
    """Return the slots of GPUs that trials share by memory, where each gets the memory that it asks for.

    Args:
        gpus: the devices, at least one.
        most: the most trials that share a GPU.
        gpu_memory_mb: memory of each GPU in MB, at least 100.
        cpus: the cores of the worker, by default all usable cores. Slots share them evenly.
        tags: the tags of every slot.
    """
    offer = Resources(
        cpus=max(1, (cpus or usable_cpus()) // (most * len(gpus))),
        gpu_memory_gb=gpu_memory_mb // _MEMORY_STEP_MB / (_MB_PER_GB // _MEMORY_STEP_MB),
        tags=tags,
    )
    return SlotPlan(offer=offer, devices=tuple((gpu,) for gpu in gpus for _ in range(most)))


def usable_cpus() -> int:
    """Return how many cores this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
