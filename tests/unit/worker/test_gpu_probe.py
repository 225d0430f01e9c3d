"""A process of its own asks the driver: it answers, or fails within a known time."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from waiting import eventually, is_gone

from mqtune.core.timing import Timing
from mqtune.core.usage import DeviceUse
from mqtune.worker import GpuProbe

#: Answers by each device's number, and notes each process.
HONEST = """
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, dict):
            say({"use": {asked["use"][0]: [50, 1000, None]}})
            continue
        say({"used": {d: int(d) * 1000 for d in asked if d.isdecimal()},
             "unknown": {d: "no such device" for d in asked if not d.isdecimal()}})
"""
Build = Callable[..., GpuProbe]


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Build]:
    """Returns a query whose process does what a script says, and notes its number."""
    with contextlib.ExitStack() as built:

        def make(body: str, timing: Timing = Timing()) -> GpuProbe:
            script = tmp_path / "driver.py"
            script.write_text(
                "import json, os, sys, time\n"
                f"open({str(tmp_path / 'started')!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
                "def say(answer):\n    print(json.dumps(answer), flush=True)\n" + textwrap.dedent(body)
            )
            return built.enter_context(contextlib.closing(GpuProbe([sys.executable, str(script)], timing)))

        yield make


def processes(folder: Path) -> list[int]:
    notes = folder / "started"
    return [int(line) for line in notes.read_text().split()] if notes.exists() else []


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == GpuProbe.__module__]


def test_one_process_answers_until_it_is_killed(build: Build, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    query = build(HONEST)
    assert processes(tmp_path) == [], "nobody has asked"

    assert query.used(["1", "3"]) == {"1": 1000, "3": 3000}
    assert query.used(["2"]) == {"2": 2000}
    assert query.use(["0", "1"]) == {"0": DeviceUse(50, 1000, None)}
    for _ in range(3):
        assert query.used(["GPU-5", "1"]) == {"1": 1000}

    (pid,) = processes(tmp_path)
    (warning,) = warnings(caplog)
    assert "device GPU-5 is unknown (no such device); the worker does not wait for it to be freed" in warning

    psutil.Process(pid).kill()
    eventually(lambda: is_gone(pid))
    assert query.used(["1"]) == {"1": 1000}
    assert len(processes(tmp_path)) == 2


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("sys.stdin.readline(); sys.stdout.write('{'); sys.stdout.flush(); time.sleep(600)", id="half"),
        pytest.param("sys.stdin.readline(); os.close(1); time.sleep(600)", id="mute"),
        pytest.param("sys.stdin.readline(); print('#', flush=True); time.sleep(600)", id="babbling"),
    ],
)
def test_a_silent_process_is_killed(build: Build, tmp_path: Path, caplog: pytest.LogCaptureFixture, body: str) -> None:
    query = build(body, Timing(gpu_answer_s=1.0))

    assert [query.used(["0"]) for _ in range(3)] == [{}] * 3

    (pid,) = processes(tmp_path) or [0]
    assert not pid or is_gone(pid)
    assert len(warnings(caplog)) == 1


#: Two GPUs and a part of one; of which a file says what is wrong with the driver.
PYNVML = """
NVML_ERROR_LIBRARY_NOT_FOUND = 12
class NVMLError(Exception):
    def __init__(self, value, text):
        super().__init__(text)
        self.value = value
class Memory:
    total = 80 << 30
    def __init__(self, used): self.used = used
DEVICES = {"GPU-aaaa1111-0000": 5 << 32, "GPU-bbbb2222-0000": 7 << 32, "MIG-cccc3333-0000": 1 << 33}
def nvmlInit():
    if INIT: raise NVMLError(INIT, "Driver Not Loaded" if INIT == 9 else "NVML Shared Library Not Found")
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index):
    if index >= 2: raise NVMLError(2, "Invalid Argument")
    return list(DEVICES)[index]
def nvmlDeviceGetHandleByUUID(uuid):
    if uuid.decode() not in DEVICES: raise NVMLError(6, "Not Found")
    return uuid.decode()
def nvmlDeviceGetUUID(handle): return TEXT(handle)
def nvmlDeviceGetMemoryInfo(handle): return Memory(DEVICES[handle])
class Rates: gpu = 37
def supported(handle, value):
    if handle.startswith("MIG"): raise NVMLError(3, "Not Supported")
    return value
def nvmlDeviceGetUtilizationRates(handle): return supported(handle, Rates())
def nvmlDeviceGetPowerUsage(handle): return supported(handle, 412350)
class Process:
    def __init__(self, pid, used): self.pid, self.usedGpuMemory = pid, used
def nvmlDeviceGetComputeRunningProcesses(handle):
    return [Process(70, 3 << 30), Process(71, None if handle.startswith("MIG") else 1 << 30)]
"""
SMI = """
import sys
known = {"index": "0", "uuid": "GPU-aaaa1111-0000", "memory.total": "81920", "memory.used": "20480", "utilization.gpu": "5",
         "power.draw": "71.25"}
if "compute-apps" in sys.argv[1]:
    print("a remark of the driver, as it comes")
    print("GPU-aaaa1111-0000, 70, 3072")
    print("GPU-bbbb2222-0000, 71, [N/A]")
    print("GPU-aaaa1111-0000, 72, 1024")
    raise SystemExit
asked = sys.argv[1].removeprefix("--query-gpu=").split(",")
print("a remark of the driver, as it comes")
print(", ".join(known[each] for each in asked))
print(", ".join({"index": "1", "uuid": "GPU-bbbb2222-0000"}.get(each, "[N/A]") for each in asked))
"""
Ask = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """Return the process's answers to some questions, on a machine with these stand-ins."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib").mkdir()

    def answers(*questions: object, pynvml: str = "raise ImportError", smi: str = "") -> list[dict[str, Any]]:
        (tmp_path / "lib" / "pynvml.py").write_text(pynvml)
        if smi:
            command = tmp_path / "bin" / "nvidia-smi"
            command.write_text(f"#!{sys.executable}\n{smi}")
            command.chmod(0o755)
        said = subprocess.run(
            [sys.executable, "-P", "-m", "mqtune.worker.host.gpu_probe"],
            input="".join(json.dumps(question) + "\n" for question in questions),
            env={**os.environ, "PATH": str(tmp_path / "bin"), "PYTHONPATH": str(tmp_path / "lib")},
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        assert said.stderr == ""
        return [json.loads(line) for line in said.stdout.splitlines()]

    return answers


def nvml(init: int = 0, text: str = "str") -> str:
    return PYNVML.replace("INIT", str(init)).replace("TEXT", text)


NO_DEVICE = nvml().replace("nvmlDeviceGetCount(): return 2", "nvmlDeviceGetCount(): return 0")


@pytest.mark.parametrize("text", ["str", "str.encode"])
def test_with_nvidia_ml_py_each_device_is_found_as_cuda_would_find_it(ask: Ask, text: str) -> None:
    asked = ["0", "1", "GPU-bbbb2222-0000", "GPU-bbbb", "MIG-cccc3333-0000", "2", "GPU-dddd", "MIG-cccc"]

    listed, full = ask("gpus", asked, pynvml=nvml(text=text), smi="raise SystemExit(9)")

    assert listed == {"gpus": [["0", "GPU-aaaa1111-0000", 80 << 30], ["1", "GPU-bbbb2222-0000", 80 << 30]]}
    assert list(full["used"].values()) == [5 << 32, 7 << 32, 7 << 32, 7 << 32, 1 << 33]
    assert full["unknown"] == {"2": "Invalid Argument", "GPU-dddd": "Not Found", "MIG-cccc": "Not Found"}


@pytest.mark.parametrize("pynvml", ["raise ImportError", nvml(init=12)], ids=["no package", "no library"])
def test_without_nvidia_ml_py_or_its_library_nvidia_smi_is_asked(ask: Ask, pynvml: str) -> None:
    listed, full = ask("gpus", ["0", "GPU-aaaa", "1", "MIG-cccc3333-0000"], pynvml=pynvml, smi=SMI)

    assert listed == {"gpus": [["0", "GPU-aaaa1111-0000", 80 << 30], ["1", "GPU-bbbb2222-0000", 0]]}
    assert full["used"] == {"0": 20 << 30, "GPU-aaaa": 20 << 30}
    assert set(full["unknown"]) == {"1", "MIG-cccc3333-0000"}
    assert "pip install nvidia-ml-py" in full["unknown"]["MIG-cccc3333-0000"]


def test_what_a_device_does_not_say_of_its_use_is_null_and_of_its_processes_nothing(ask: Ask) -> None:
    devices = ["0", "GPU-bbbb", "MIG-cccc3333-0000", "7"]
    asked = {"use": devices}, {"processes": devices}

    use, processes = ask(*asked, pynvml=nvml())
    used = [37, 5 << 32, 412.35], [37, 7 << 32, 412.35], [None, 1 << 33, None], [None] * 3
    assert use == {"use": dict(zip(devices, used, strict=True))}
    assert processes == {"processes": {name: {"70": 3 << 30, "71": 1 << 30} for name in devices[:2]}}

    use, processes = ask(*asked, smi=SMI)
    assert use == {"use": {**dict.fromkeys(devices, [None] * 3), "0": [5.0, 20 << 30, 71.25]}}
    assert processes == {"processes": {"0": {"70": 3 << 30, "72": 1 << 30}}}


@pytest.mark.parametrize(
    ("question", "machine", "reason", "is_final"),
    [
        ("gpus", {}, "no nvidia-smi, and nvidia-ml-py is not installed: pip install nvidia-ml-py", True),
        (["0"], {"pynvml": nvml(init=12)}, "no nvidia-smi, and nvidia-ml-py finds no NVIDIA driver (NVML Shared", True),
        ({"use": ["0"]}, {"pynvml": nvml(init=9)}, "NVML: Driver Not Loaded", False),
        (["0"], {"smi": "print('No devices were found'); raise SystemExit(6)"}, "failed: No devices were found", False),
        ("gpus", {"pynvml": NO_DEVICE}, "no devices were found", False),
    ],
    ids=["nothing", "no library", "no driver", "nvidia-smi fails", "no device"],
)
def test_a_driver_that_can_not_be_asked_is_one_answer_and_the_end(
    ask: Ask, question: object, machine: dict[str, str], reason: str, is_final: bool
) -> None:
    (said,) = ask(question, question, **machine)

    assert reason in said["error"]
    assert said["final"] is is_final
