"""A worker gets the parts of packing that its slots need."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from impaired import nothing_impaired

from mqtune.core.timing import Timing
from mqtune.services.packing.device_memory import DeviceMemory
from mqtune.services.packing.room import SharedMemory
from mqtune.services.packing.worker import for_worker
from mqtune.worker import WorkerHooks, WorkerSettings, plan_slots, plan_slots_by_memory


@pytest.mark.parametrize(
    ("gpus", "options", "parts"),
    [
        ((), {}, []),
        (("0", "1"), {}, [DeviceMemory]),
        (("0",), {"most": 2, "gpu_memory_mb": 24_000}, [SharedMemory, DeviceMemory]),
    ],
)
def test_devices_are_checked_and_memory_is_divided_where_trials_share_it(
    gpus: tuple[str, ...], options: dict[str, int], parts: list[type], tmp_path: Path
) -> None:
    plan = plan_slots_by_memory(gpus, **options, cpus=1) if options else plan_slots(gpus, cpus=1)
    host: Any = SimpleNamespace(
        name="w@h",
        plan=plan,
        timing=Timing(),
        impairments=nothing_impaired(),
        client=Mock(),
        closing=None,
        state=Mock(),
    )

    services = for_worker(host, WorkerSettings(broker="", code_root=tmp_path, log_root=tmp_path))

    assert [type(each) for each in services] == parts
    hooks = WorkerHooks(services)
    assert bool(hooks.guards) is bool(gpus)
    assert bool(hooks.dividers) is (SharedMemory in parts)
    slot: Any = SimpleNamespace(index=0, places=("0",))
    assert hooks.retires(slot) == (
        "its GPU is shared by memory, which comes back when a process ends" if SharedMemory in parts else ""
    )
    hooks.drain()
