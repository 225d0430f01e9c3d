"""How many slots a worker has whose trials share GPUs by memory."""

from __future__ import annotations

from typing import Any

import pytest

from mqtune.core.errors import ConfigurationError
from mqtune.core.resources import Resources
from mqtune.services.settings import worker_settings
from mqtune.worker import plan_slots_by_memory

TWO, PAIRS = ("0", "1"), (("0",), ("0",), ("1",), ("1",))


@pytest.mark.parametrize(
    ("cpus", "memory_mb", "offer"),
    [
        (12, 25_757, Resources(cpus=3, gpu_memory_gb=25.7)),
        # Each has a core even where there are more slots.
        (3, 24_000, Resources(cpus=1, gpu_memory_gb=24)),
    ],
)
def test_each_slot_offers_all_memory_of_its_gpu(cpus: int, memory_mb: int, offer: Resources) -> None:
    plan = plan_slots_by_memory(TWO, 2, memory_mb, cpus=cpus)

    assert (plan.devices, plan.offer) == (PAIRS, offer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pack_gpus": 0}, "--pack-gpus 0: must be at least 1"),
        ({"pack_gpus": 4, "slots_per_gpu": 2}, "--pack-gpus 4 goes neither with --slots-per-gpu nor"),
        ({"pack_gpus": 4, "slots": 8}, "--slots 8 is for workers without GPUs; .* leave --slots out"),
        ({"pack_gpus": 4, "gpus": "0"}, "--pack-gpus 4 is for workers with GPUs; leave it out, or name them"),
        ({"pack_gpus": 4}, "--pack-gpus 4: the memory of the GPUs is unknown; give the GB of each: --gpu-memory 24"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        worker_settings({"broker": "redis://x", "gpus": "0,1", **options}).plan()
