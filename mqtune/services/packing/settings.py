"""The operator's settings for GPUs whose memory trials share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mqtune.core.errors import ConfigurationError
from mqtune.worker import ServiceSettings, SlotPlan, find_gpu_memory, find_gpus, option, plan_slots_by_memory

if TYPE_CHECKING:
    from mqtune.worker import WorkerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingSettings(ServiceSettings):
    """Whether trials share GPUs by memory. Each then gets the memory that it asks for.

    Raises:
        ConfigurationError: an option needs another one, or excludes one.
    """

    pack_gpus: int | None = option(
        None, "Share each GPU among up to this many trials, as far as the memory that they ask for fits on it."
    )

    def check(self, settings: WorkerSettings) -> None:
        if self.pack_gpus is None:
            return
        if self.pack_gpus < 1:
            raise ConfigurationError(f"--pack-gpus {self.pack_gpus}: must be at least 1")
        if settings.slots is not None:
            raise ConfigurationError(
                f"--slots {settings.slots} is for workers without GPUs; --pack-gpus {self.pack_gpus} says how many "
                f"trials share a GPU: leave --slots out"
            )
        if settings.slots_per_gpu * settings.gpus_per_slot > 1:
            raise ConfigurationError(
                f"--pack-gpus {self.pack_gpus} goes neither with --slots-per-gpu nor with --gpus-per-slot: trials "
                f"share a GPU evenly, or by memory"
            )

    def plan(self, settings: WorkerSettings, tags: Sequence[str]) -> SlotPlan | None:
        most = self.pack_gpus
        if most is None:
            return None
        gpus = find_gpus(settings.gpus)
        if not gpus:
            raise ConfigurationError(
                f"--pack-gpus {most} is for workers with GPUs; leave it out, or name them: --gpus 0,1"
            )
        memory_mb = find_gpu_memory(settings.gpu_memory, gpus, settings.timing)
        if not memory_mb:
            raise ConfigurationError(
                f"--pack-gpus {most}: the memory of the GPUs is unknown; give the GB of each: --gpu-memory 24"
            )
        return plan_slots_by_memory(gpus, most, memory_mb, cpus=settings.cpus, tags=tags)
