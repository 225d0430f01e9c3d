"""What is called of NVIDIA's library, and how, on a stand-in that is built from NVML's published signatures."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mqtune.worker.nvml import Nvml, NvmlError

#: Two GPUs and a part of one. A handle is a pointer beyond 32 bits, as on a real machine.
STAND_IN = r"""
#include <string.h>
typedef int nvmlReturn_t;
typedef struct device { const char *uuid; unsigned long long used; } *nvmlDevice_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
static struct device devices[3] = {
    {"GPU-aaaa1111-0000", 5ULL << 32}, {"GPU-bbbb2222-0000", 7ULL << 32}, {"MIG-cccc3333-0000", 1ULL << 33}};
static int inited = 0;
nvmlReturn_t nvmlInit_v2(void) { inited = 1; return INIT; }
const char *nvmlErrorString(nvmlReturn_t code) {
    return code == 9 ? "Driver Not Loaded" : code == 2 ? "Invalid Argument" : code == 6 ? "Not Found" : "Unknown Error"; }
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) { *count = 2; return 0; }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    if (!inited || index >= 2) return 2;
    *device = &devices[index]; return 0; }
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    for (int i = 0; i < 3; i++) if (!strcmp(devices[i].uuid, uuid)) { *device = &devices[i]; return 0; }
    return 6; }
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    if (strlen(device->uuid) >= length) return 2;
    strcpy(uuid, device->uuid); return 0; }
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    memory->total = 80ULL << 30; memory->used = device->used; memory->free = memory->total - memory->used; return 0; }
"""


def built(folder: Path, init: int) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler to build the stand-in")
    source, library = folder / "nvml.c", folder / f"libnvidia-ml-{init}.so"
    source.write_text(STAND_IN)
    subprocess.run([compiler, "-shared", "-fPIC", f"-DINIT={init}", "-o", library, source], check=True, timeout=60)
    return str(library)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return built(tmp_path_factory.mktemp("nvml"), 0)


@pytest.mark.parametrize(
    ("device", "used"),
    [
        ("0", 5 << 32),
        ("1", 7 << 32),
        ("GPU-bbbb2222-0000", 7 << 32),
        ("GPU-bbbb", 7 << 32),
        ("MIG-cccc3333-0000", 1 << 33),
    ],
)
def test_a_device_is_found_as_cuda_would_find_it(library: str, device: str, used: int) -> None:
    assert Nvml(library).used(device) == used


@pytest.mark.parametrize("device", ["2", "GPU-dddd", "MIG-cccc"])
def test_a_device_that_is_not_there_is_an_error(library: str, device: str) -> None:
    with pytest.raises(NvmlError, match=r"Invalid Argument|no GPU has such a UUID|Not Found"):
        Nvml(library).used(device)


def test_a_driver_that_does_not_work_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NvmlError, match="nvmlInit_v2: Driver Not Loaded"):
        Nvml(built(tmp_path, 9))


def answers(library: str, *questions: list[str]) -> list[dict[str, object]]:
    """What the process says to some questions, and that it ends by itself."""
    command = [sys.executable, "-c", f"from mqtune.worker.nvml import main; main({library!r})"]
    said = subprocess.run(
        command,
        input="".join(json.dumps(question) + "\n" for question in questions),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert said.stderr == ""
    return [json.loads(line) for line in said.stdout.splitlines()]


def test_the_process_answers_each_line_by_a_line(library: str) -> None:
    first, second = answers(library, ["0", "2"], ["GPU-aaaa"])

    assert first == {"used": {"0": 5 << 32}, "unknown": {"2": "nvmlDeviceGetHandleByIndex_v2: Invalid Argument"}}
    assert second == {"used": {"GPU-aaaa": 5 << 32}, "unknown": {}}


def test_the_process_says_that_there_is_no_library_and_ends() -> None:
    (said,) = answers("libnvidia-ml-of-nobody.so", ["0"], ["0"])

    assert said["final"] is True
    assert "libnvidia-ml-of-nobody.so" in str(said["error"])


def test_the_process_says_that_the_driver_does_not_work_now_and_ends(tmp_path: Path) -> None:
    (said,) = answers(built(tmp_path, 9), ["0"], ["0"])

    assert said == {"error": "nvmlInit_v2: Driver Not Loaded", "final": False}
