"""A process that asks the GPU driver, so that the worker never loads the driver's library.

It asks NVIDIA's driver by nvidia-ml-py (the extra ``gpu``), or by nvidia-smi where that package is missing.
If neither exists, it asks AMD's driver by rocm-smi. Each line on its stdin is a question, and each line on its stdout
is an answer, both in JSON:

- ``"gpus"``: the GPUs of this machine; ``{"gpus": [[number, UUID, bytes of memory or 0 where unknown], …]}``
- a list of devices, named as in CUDA_VISIBLE_DEVICES: their memory in use; ``{"used": {device: bytes}, "unknown":
  {device: reason}}``
- ``{"processes": devices}``: the memory of each process on these devices; ``{"processes": {device: {pid: bytes}}}``.
  Devices without this information are left out.
- ``{"use": devices}``: their use now; ``{"use": {device: [percentage of recent time in which it computed, bytes in use,
  watts]}}``, with null for an unknown figure

After an answer ``{"error": reason, "final": whether asking again is useless}`` the process ends. It also ends when its
stdin is closed, and so with its worker.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

#: The time limits of nvidia-smi, by question. They are shorter than the worker's, so that this process can still kill
#: and reap the command.
_SMI_TIMEOUT_S: Final = {"gpus": 25.0, "used": 8.0}
_SMI_GPU: Final = ("index", "uuid", "memory.total")
_SMI_USED: Final = ("memory.used",)
_SMI_USE: Final = ("utilization.gpu", "memory.used", "power.draw")
#: The name of a GPU in rocm-smi's answer, and the names of its fields.
_ROCM_CARD: Final = re.compile(r"card\d+")
_ROCM_ID: Final = "Unique ID"
_ROCM_TOTAL: Final = "VRAM Total Memory (B)"
_ROCM_USED: Final = "VRAM Total Used Memory (B)"
_ROCM_PERCENT: Final = "GPU use (%)"
_BYTES_PER_MIB: Final = 1 << 20
_MILLIWATTS_PER_W: Final = 1_000
_NUMBER: Final = re.compile(r"\d+(\.\d+)?")
#: The use of a device: percent, bytes and watts; None for an unknown figure.
Use = tuple[float | None, int | None, float | None]
_UNKNOWN: Final[Use] = (None, None, None)


class Gpu(NamedTuple):
    """One GPU: its number in the order of the PCI bus, UUID, and bytes of memory (0: unknown)."""

    number: str
    uuid: str
    total: int


_NO_GPU: Final = Gpu("", "", 0)


class NoAnswer(Exception):
    """The driver can't be asked. If ``is_final``, asking again is useless."""

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_final = is_final


class GpuSource(Protocol):
    """A way to ask the driver. Each method raises NoAnswer when the driver doesn't answer."""

    def gpus(self) -> list[Gpu]:
        """Return the GPUs of this machine."""

    def used(self, devices: Sequence[str]) -> tuple[dict[str, int], dict[str, str]]:
        """Return the bytes in use by device; and for other devices, the reason why they are unknown."""

    def processes(self, devices: Sequence[str]) -> dict[str, dict[int, int]]:
        """Return by device the bytes that each process has on it, by process id.

        Devices without this information are left out.
        """

    def use(self, devices: Sequence[str]) -> dict[str, Use]:
        """Return the load, memory and power of each device, over all processes.

        Of parts of GPUs (MIG) only the memory is known.
        """


class Nvml:
    """Asks with nvidia-ml-py.

    Raises:
        ImportError: the package is not installed, or there is no driver for it.
        NoAnswer: the driver does not work.
    """

    def __init__(self) -> None:
        try:
            import pynvml  # noqa: PLC0415 - an extra
        except ImportError:
            raise ImportError("nvidia-ml-py is not installed: pip install nvidia-ml-py") from None
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
                raise ImportError(f"nvidia-ml-py finds no NVIDIA driver ({error})") from None
            raise NoAnswer(f"NVML: {error}") from None

    def gpus(self) -> list[Gpu]:
        try:
            gpus = [self._gpu(index) for index in range(self._nvml.nvmlDeviceGetCount())]
        except self._nvml.NVMLError as error:
            raise NoAnswer(f"NVML: {error}") from None
        if not gpus:
            # A driver without a device has lost it, as nvidia-smi reports.
            raise NoAnswer("NVML: no devices were found")
        return gpus

    def _gpu(self, index: int) -> Gpu:
        handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        try:
            total = int(self._nvml.nvmlDeviceGetMemoryInfo(handle).total)
        except self._nvml.NVMLError:
            # Some GPUs share the machine's memory.
            total = 0
        return Gpu(str(index), _text(self._nvml.nvmlDeviceGetUUID(handle)), total)

    def used(self, devices: Sequence[str]) -> tuple[dict[str, int], dict[str, str]]:
        used: dict[str, int] = {}
        unknown: dict[str, str] = {}
        for device in devices:
            try:
                used[device] = int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle(device)).used)
            except self._nvml.NVMLError as error:
                unknown[device] = str(error)
        return used, unknown

    def processes(self, devices: Sequence[str]) -> dict[str, dict[int, int]]:
        by_device = {}
        for device in devices:
            with contextlib.suppress(self._nvml.NVMLError):
                those = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle(device))
                if all(process.usedGpuMemory is not None for process in those):
                    by_device[device] = {int(process.pid): int(process.usedGpuMemory) for process in those}
        return by_device

    def use(self, devices: Sequence[str]) -> dict[str, Use]:
        by_device = dict.fromkeys(devices, _UNKNOWN)
        for device in devices:
            with contextlib.suppress(self._nvml.NVMLError):
                by_device[device] = self._use(self._handle(device))
        return by_device

    def _use(self, handle: object) -> Use:
        nvml = self._nvml
        percent = self._number(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        used = self._number(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used)
        milliwatts = self._number(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        return percent, used, None if milliwatts is None else milliwatts / _MILLIWATTS_PER_W

    def _number(self, ask: Callable[[], int]) -> int | None:
        try:
            return int(ask())
        except self._nvml.NVMLError:
            return None

    def _handle(self, device: str) -> Any:
        if device.isdecimal():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(device))
        try:
            # The UUID of a GPU, or of a part of one (MIG).
            return self._nvml.nvmlDeviceGetHandleByUUID(device.encode())
        except self._nvml.NVMLError:
            gpu = matching(device, self.gpus())
            if gpu is None:
                raise
            return self._nvml.nvmlDeviceGetHandleByIndex(int(gpu.number))


class NvidiaSmi:
    """Asks with the command nvidia-smi. It is slow, and does not know parts of GPUs.

    Args:
        otherwise: why nvidia-ml-py can't be used.

    Raises:
        NoAnswer: there is no such command.
    """

    def __init__(self, otherwise: str) -> None:
        command = shutil.which("nvidia-smi")
        if command is None:
            raise NoAnswer(f"there is no nvidia-smi, and {otherwise}", is_final=True)
        self._command = command

    def gpus(self) -> list[Gpu]:
        return list(self._rows(_SMI_TIMEOUT_S["gpus"], _SMI_USED))

    def used(self, devices: Sequence[str]) -> tuple[dict[str, int], dict[str, str]]:
        full = self._rows(_SMI_TIMEOUT_S["used"], _SMI_USED)
        used: dict[str, int] = {}
        unknown: dict[str, str] = {}
        for device in devices:
            gpu = matching(device, full)
            if gpu is None:
                unknown[device] = "nvidia-smi does not list it; nvidia-ml-py may know it: pip install nvidia-ml-py"
            elif (size := _mebibytes(*full[gpu])) is None:
                unknown[device] = "nvidia-smi does not report it"
            else:
                used[device] = size
        return used, unknown

    def processes(self, devices: Sequence[str]) -> dict[str, dict[int, int]]:
        listed = self._rows(_SMI_TIMEOUT_S["used"], ())
        by_device: dict[str, dict[int, int]] = {
            device: {} for device in devices if matching(device, listed) is not None
        }
        names = {gpu.uuid: device for device in by_device if (gpu := matching(device, listed)) is not None}
        for uuid, pid, used in self._query("compute-apps", ("gpu_uuid", "pid", "used_memory"), _SMI_TIMEOUT_S["used"]):
            device = names.get(uuid, "")
            if device in by_device and pid.isdecimal():
                size = _mebibytes(used)
                if size is None:
                    # In a container nvidia-smi may not know it.
                    del by_device[device]
                else:
                    by_device[device][int(pid)] = size
        return by_device

    def use(self, devices: Sequence[str]) -> dict[str, Use]:
        rows = self._rows(_SMI_TIMEOUT_S["used"], _SMI_USE)
        gpus = ((device, matching(device, rows)) for device in devices)
        return {device: _UNKNOWN if gpu is None else _use_of(*rows[gpu]) for device, gpu in gpus}

    def _rows(self, timeout_s: float, more: Sequence[str]) -> dict[Gpu, list[str]]:
        """Return the texts of the fields *more* for each GPU."""
        rows = self._query("gpu", (*_SMI_GPU, *more), timeout_s)
        return {
            Gpu(number, uuid, _mebibytes(total) or 0): said for number, uuid, total, *said in rows if number.isdecimal()
        }

    def _query(self, kind: str, fields: Sequence[str], timeout_s: float) -> list[list[str]]:
        """Query GPUs (*kind* "gpu") or processes ("compute-apps"). Return rows with these fields.

        Other lines that the command prints are skipped.
        """
        options = f"--query-{kind}={','.join(fields)}", "--format=csv,noheader,nounits"
        answer = _run_command("nvidia-smi", [self._command, *options], timeout_s)
        if answer.returncode:
            raise _failure("nvidia-smi", answer)
        rows = ([value.strip() for value in line.split(",")] for line in answer.stdout.splitlines())
        return [row for row in rows if len(row) == len(fields)]


class RocmSmi:
    """Asks with the command rocm-smi, for AMD's GPUs, as ROCm 5 and 6 have it.

    It numbers the GPUs as ``HIP_VISIBLE_DEVICES`` does.

    Raises:
        NoAnswer: there is no such command.
    """

    def __init__(self) -> None:
        command = shutil.which("rocm-smi")
        if command is None:
            raise NoAnswer("there is no rocm-smi", is_final=True)
        self._command = command

    def gpus(self) -> list[Gpu]:
        return list(self._cards("gpus"))

    def used(self, devices: Sequence[str]) -> tuple[dict[str, int], dict[str, str]]:
        cards = self._cards("used")
        used: dict[str, int] = {}
        unknown: dict[str, str] = {}
        for device in devices:
            card = cards.get(matching(device, cards) or _NO_GPU, {})
            if (size := _int_or_none(card.get(_ROCM_USED))) is None:
                unknown[device] = "rocm-smi does not report it"
            else:
                used[device] = size
        return used, unknown

    def processes(self, devices: Sequence[str]) -> dict[str, dict[int, int]]:
        # The answer about processes differs from version to version.
        return {}

    def use(self, devices: Sequence[str]) -> dict[str, Use]:
        cards = self._cards("used")
        return {device: self._use(cards.get(matching(device, cards) or _NO_GPU, {})) for device in devices}

    def _use(self, card: dict[str, str]) -> Use:
        # The field's name depends on the generation of the GPU.
        watts = next((_number(value) for name, value in card.items() if name.endswith("Power (W)")), None)
        return _number(card.get(_ROCM_PERCENT, "")), _int_or_none(card.get(_ROCM_USED)), watts

    def _cards(self, question: str) -> dict[Gpu, dict[str, str]]:
        options = "--showuniqueid", "--showmeminfo", "vram", "--showuse", "--showpower", "--json"
        answer = _run_command("rocm-smi", [self._command, *options], _SMI_TIMEOUT_S[question])
        # It may print a warning before its answer.
        _, begins, body = answer.stdout.partition("{")
        try:
            said = json.loads(begins + body)
        except ValueError:
            raise _failure("rocm-smi", answer) from None
        cards = {name: card for name, card in said.items() if _ROCM_CARD.fullmatch(name) and isinstance(card, dict)}
        if not cards:
            raise NoAnswer("rocm-smi: no devices were found")
        return {
            Gpu(
                name.removeprefix("card"), _uuid(card.get(_ROCM_ID, "")), _int_or_none(card.get(_ROCM_TOTAL)) or 0
            ): card
            for name, card in cards.items()
        }


def _run_command(name: str, command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a GPU driver's command, and return its result.

    Raises:
        NoAnswer: the command can't be run, or takes too long.
    """
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoAnswer(f"{name} did not answer: {error}") from None


def _failure(name: str, answer: subprocess.CompletedProcess[str]) -> NoAnswer:
    said = (answer.stdout + answer.stderr).strip() or f"code {answer.returncode}"
    return NoAnswer(f"{name} failed: {said}")


def _uuid(unique_id: str) -> str:
    """Return a unique id in the form of ``ROCR_VISIBLE_DEVICES``; empty if it is malformed."""
    return f"GPU-{unique_id.removeprefix('0x')}" if unique_id.startswith("0x") else ""


def _int_or_none(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def matching(device: str, gpus: Iterable[Gpu]) -> Gpu | None:
    """Return the GPU of this number or UUID. As in CUDA, the beginning of a UUID is enough."""
    return next(
        (g for g in gpus if g.number == device or (device.startswith("GPU-") and g.uuid.startswith(device))), None
    )


def _mebibytes(text: str) -> int | None:
    return int(text) * _BYTES_PER_MIB if text.isdecimal() else None


def _use_of(percent: str, used: str, watts: str) -> Use:
    return _number(percent), _mebibytes(used), _number(watts)


def _number(text: str) -> float | None:
    # The command has words of its own for an unknown figure.
    return float(text) if _NUMBER.fullmatch(text) else None


def _text(value: str | bytes) -> str:
    # Earlier versions of nvidia-ml-py return bytes.
    return value.decode() if isinstance(value, bytes) else value


def _open_source() -> GpuSource:
    try:
        return Nvml()
    except ImportError as error:
        if shutil.which("nvidia-smi") is None and shutil.which("rocm-smi") is not None:
            return RocmSmi()
        return NvidiaSmi(str(error))


def main() -> None:
    """Answer the questions on stdin until it is closed, or the driver doesn't answer."""
    source: GpuSource | None = None
    for line in sys.stdin:
        question = json.loads(line)
        try:
            source = source or _open_source()
            if question == "gpus":
                _write_answer({"gpus": source.gpus()})
            elif isinstance(question, dict) and "processes" in question:
                _write_answer({"processes": source.processes(question["processes"])})
            elif isinstance(question, dict):
                _write_answer({"use": source.use(question["use"])})
            else:
                used, unknown = source.used(question)
                _write_answer({"used": used, "unknown": unknown})
        except NoAnswer as error:
            # A driver that is being replaced may work later, but not with the library that this process has loaded.
            _write_answer({"error": str(error), "final": error.is_final})
            return


def _write_answer(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
