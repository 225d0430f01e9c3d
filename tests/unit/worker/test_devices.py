"""A worker's devices and slots, and that asking for them needs neither a GPU nor CUDA."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mqtune.core.errors import ConfigurationError
from mqtune.core.resources import Resources
from mqtune.worker import find_gpu_memory, find_gpus, plan_slots

TWO = ("0", "1")
PAIRS = (("0",), ("0",), ("1",), ("1",))

#: Two GPUs of one kind, one of another, and a fourth of unknown memory.
MEMORY = """
sys.stdout.write('0, GPU-aaaa-1, 24564, 0\\n1, GPU-aaab-2, 24564, 0\\n2, GPU-cccc-3, 81559, 0\\n3, GPU-dddd-4, [N/A], 0\\n')
"""
QUERY = "--query-gpu=index,uuid,memory.total,memory.used --format=csv,noheader,nounits"


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without GPUs, on any machine."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing-here"))
    (tmp_path / "pynvml.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.fixture
def nvidia_smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A command of that name on the PATH that runs a script and notes its arguments."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return write(folder / "nvidia-smi", MEMORY)


def write(command: Path, body: str) -> Path:
    called = command.with_name("called")
    command.write_text(
        f"#!{sys.executable}\nimport sys\nopen({str(called)!r}, 'a').write(' '.join(sys.argv[1:]))\n{body}\n"
    )
    command.chmod(0o755)
    return command


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("sys.exit(9)", "code 9"),
        ("print('No devices were found'); sys.exit(6)", "No devices were found"),
        ("print('Unable to determine the device handle: GPU is lost'); sys.exit(15)", "GPU is lost"),
    ],
)
def test_auto_is_refused_where_the_gpu_driver_fails(nvidia_smi: Path, body: str, reason: str) -> None:
    write(nvidia_smi, body)

    with pytest.raises(ConfigurationError, match=rf"GPU driver fails: .*{reason}.*--gpus 0 \(MQTUNE_GPUS=0\)"):
        find_gpus("auto")


def test_a_number_is_the_first_devices_of_those_that_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (find_gpus("3"), find_gpus("0")) == (("0", "1", "2"), ())

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6,7")
    assert (find_gpus("2"), find_gpus("0")) == (("4", "6"), ())
    with pytest.raises(ConfigurationError, match=r"--gpus 4: CUDA_VISIBLE_DEVICES='4,6,7' shows only 3"):
        find_gpus("4")


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("0,1", ("0", "1")),
        (" 3, 1 ", ("3", "1")),
        ("3,", ("3",)),
        ("GPU-8f3c0a1e-1,GPU-2", ("GPU-8f3c0a1e-1", "GPU-2")),
        ("MIG-GPU-8f3c/1/0,", ("MIG-GPU-8f3c/1/0",)),
    ],
)
def test_a_list_is_these_devices_in_this_order(asked: str, found: tuple[str, ...]) -> None:
    assert find_gpus(asked) == found
    with pytest.raises(ConfigurationError, match=r"names a device twice.*--slots-per-gpu 2"):
        find_gpus(",".join([*found, *found]))


@pytest.mark.parametrize("asked", ["fish", "", ",", "-1", "1.5", "0,x", "cuda:0", "0;1", "inf", "nan", "24GB", "0.01"])
def test_what_makes_no_sense_is_named_with_the_way_out(asked: str) -> None:
    named = rf"{re.escape(repr(asked))} is invalid; give auto, "
    with pytest.raises(ConfigurationError, match=rf"--gpus {named}a number, or a list such as 0,1"):
        find_gpus(asked)
    if asked != "1.5":
        with pytest.raises(ConfigurationError, match=rf"--gpu-memory {named}or the GB"):
            find_gpu_memory(asked, TWO)


@pytest.mark.parametrize(
    ("gpus", "memory_mb"),
    [(("0", "1"), 25_757), (("GPU-cccc",), 85_520), (("MIG-GPU-aaaa-1/0/0",), 0), (("0", "3"), 0)],
)
def test_auto_asks_nvidia_smi_how_much_memory_the_gpus_have(nvidia_smi: Path, gpus: tuple[str, ...], memory_mb: int):
    assert find_gpu_memory("auto", ()) == 0
    assert not nvidia_smi.with_name("called").exists(), "nobody is asked for the memory of no GPU"
    assert find_gpu_memory("auto", gpus) == memory_mb
    assert nvidia_smi.with_name("called").read_text() == QUERY


@pytest.mark.usefixtures("nvidia_smi")
def test_gpus_that_differ_count_as_the_smallest_and_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    assert find_gpu_memory("auto", ("0", "1")) == 25_757
    assert "differ" not in caplog.text
    assert find_gpu_memory("auto", ("0", "2")) == 25_757
    assert "the GPUs differ (0: 25.8 GB, 2: 85.5 GB)" in caplog.text
    assert "start a worker for each kind: --gpus 0," in caplog.text


@pytest.mark.usefixtures("nvidia_smi")
@pytest.mark.parametrize(
    ("gpus", "unknown", "memory"), [(("3", "4", "5"), "4,5", "auto"), (("GPU-aaaa", "GPU-eeee"), "GPU-eeee", "24")]
)
def test_a_gpu_that_the_driver_does_not_know_is_refused(gpus: tuple[str, ...], unknown: str, memory: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"does not know the GPUs {unknown} .*has 0,1,2,3; .*--gpus 0,$"):
        find_gpu_memory(memory, gpus)


@pytest.mark.parametrize(
    ("gpus", "options", "devices", "offer"),
    [
        (TWO, {"cpus": 8}, (("0",), ("1",)), Resources(gpus=1, cpus=4)),
        (TWO, {"cpus": 8, "slots_per_gpu": 2}, PAIRS, Resources(gpus=0.5, cpus=2)),
        (("0", "1", "2", "3"), {"cpus": 8, "gpus_per_slot": 2}, (("0", "1"), ("2", "3")), Resources(gpus=2, cpus=4)),
        ((), {"cpus": 3}, ((), (), ()), Resources(cpus=1)),
        ((), {"cpus": 8, "slots": 2}, ((), ()), Resources(cpus=4)),
        # Each has a core even where there are more slots.
        ((), {"cpus": 2, "slots": 5}, ((),) * 5, Resources(cpus=1)),
        (TWO, {"cpus": 1}, (("0",), ("1",)), Resources(gpus=1, cpus=1)),
    ],
)
def test_gpus_or_else_cores_are_slots_with_their_share_of_the_cores(
    gpus: tuple[str, ...], options: dict[str, int], devices: tuple[tuple[str, ...], ...], offer: Resources
) -> None:
    plan = plan_slots(gpus, **options)

    assert (plan.devices, plan.offer) == (devices, offer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": 2}, r"--slots 2 is for workers without GPUs; use --slots-per-gpu"),
        ({"gpus_per_slot": 2, "slots_per_gpu": 2}, r"can't both be more than 1"),
        ({"gpus_per_slot": 3}, r"--gpus-per-slot 3 does not divide the 2 GPUs 0,1"),
        ({"slots_per_gpu": 0}, r"--slots-per-gpu 0: must be at least 1"),
        ({"cpus": 0}, r"--cpus 0: must be at least 1"),
    ],
)
def test_numbers_that_do_not_go_together_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        plan_slots(TWO, **options)


def test_a_slot_sees_its_devices_and_no_others() -> None:
    plan = plan_slots(("GPU-a", "GPU-b"), cpus=2)

    seen = [plan.environment(slot)["CUDA_VISIBLE_DEVICES"] for slot in (0, 1)]
    assert seen == ["GPU-a", "GPU-b"]
    assert plan.environment(0)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID", "as nvidia-smi counts them"
    assert plan_slots((), slots=1).environment(0)["CUDA_VISIBLE_DEVICES"] == ""


def test_libraries_keep_to_the_slots_cores_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_slots((), cpus=8, slots=2)
    for variable in ("OMP_NUM_THREADS", "LOKY_MAX_CPU_COUNT", "POLARS_MAX_THREADS", "RAYON_NUM_THREADS"):
        monkeypatch.delenv(variable, raising=False)
        assert plan.environment(0)[variable] == "4"
        monkeypatch.setenv(variable, "2")
        assert variable not in plan.environment(0)


@pytest.mark.parametrize(("asked", "memory_mb"), [("24", 24_000), (" 12.5 ", 12_500)])
def test_memory_that_is_declared_counts_whatever_the_driver_says(nvidia_smi: Path, asked: str, memory_mb: int) -> None:
    assert find_gpu_memory(asked, TWO) == memory_mb

    write(nvidia_smi, "sys.exit(9)")
    assert find_gpu_memory(asked, ("7",)) == memory_mb
    with pytest.raises(ConfigurationError, match=r"--gpu-memory .* is for workers with GPUs; leave it out"):
        find_gpu_memory(asked, ())


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
    """Have a machine with AMD's GPUs, by a fake rocm-smi. No real one was at hand."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
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


def test_a_worker_uses_its_visible_gpus_unless_renumbered(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(json.dumps(CARDS))
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    assert find_gpus("auto") == ("1",)

    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "1")
    with pytest.raises(ConfigurationError, match="ROCR_VISIBLE_DEVICES='1' renumbers GPUs; unset it"):
        find_gpus("auto")
