"""AMD's GPUs, tried on a rocm-smi that says what a real one says; no machine with one was at hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mqtune.core.errors import ConfigurationError
from mqtune.worker import find_gpu_memory, find_gpus, plan_slots

GB = 10**9
CARDS = {
    f"card{number}": {
        "Unique ID": f"0x{number:016x}",
        "GPU use (%)": "37",
        "VRAM Total Memory (B)": str(64 * GB),
        "VRAM Total Used Memory (B)": str(2 * GB),
        "Average Graphics Package Power (W)": "95.0",
    }
    for number in range(2)
} | {"system": {"Driver version": "6.7.0"}}

Machine = Callable[[str], None]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Have a machine without NVIDIA's tools, whose rocm-smi answers so."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)

    def has(answer: str) -> None:
        command = tmp_path / "rocm-smi"
        command.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
        command.chmod(0o755)

    return has


def test_a_slot_sees_its_gpu_by_amds_variable_and_by_nvidias(machine: Machine) -> None:
    machine("WARNING: AMD GPU device(s) is/are in a low-power state.\n" + json.dumps(CARDS))

    gpus = find_gpus("auto")
    plan = plan_slots(gpus, gpu_memory_mb=find_gpu_memory("auto", gpus))

    assert gpus == ("0", "1")
    assert plan.device_bytes == 64 * GB
    second = plan.environment(1)
    assert second["HIP_VISIBLE_DEVICES"] == second["CUDA_VISIBLE_DEVICES"] == "1"
    assert plan.varies == {"HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"}


def test_a_worker_keeps_to_the_gpus_that_it_is_shown_unless_they_are_renumbered(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(json.dumps(CARDS))
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    assert find_gpus("auto") == ("1",)

    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "1")
    with pytest.raises(ConfigurationError, match="ROCR_VISIBLE_DEVICES='1' renumbers GPUs; unset it"):
        find_gpus("auto")
