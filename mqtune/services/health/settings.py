"""The operator's settings for the check of a worker's slots."""

from __future__ import annotations

from dataclasses import dataclass

from mqtune.worker import ServiceSettings, option


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings(ServiceSettings):
    """The command that checks a slot; empty for no check."""

    health_check: str = option(
        "",
        "Command that is run for a slot, and fails if the slot should take no trial: 'nvidia-smi -i "
        "$CUDA_VISIBLE_DEVICES'.",
    )
