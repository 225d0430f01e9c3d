"""The operator's settings for the resource use of trials."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mqtune.core.errors import ConfigurationError
from mqtune.worker import ServiceSettings, SlotPlan, option

if TYPE_CHECKING:
    from mqtune.journal import RedisClient
    from mqtune.worker import WorkerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSettings(ServiceSettings):
    """Whether a trial that uses more GPU memory than it asked for is ended."""

    strict_gpu_memory: bool = option(
        False, "With --pack-gpus: end a trial that uses more GPU memory than it asked for."
    )

    def check_start(self, client: RedisClient, plan: SlotPlan, settings: WorkerSettings) -> None:
        if self.strict_gpu_memory and not plan.offer.is_shared_by_memory:
            raise ConfigurationError(
                "--strict-gpu-memory is for GPUs that trials share by memory: give --pack-gpus 8, too, or leave it out"
            )
