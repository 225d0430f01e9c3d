"""The process that asks NVIDIA's driver about GPUs, so that a worker never loads the driver's library itself.

It asks with nvidia-ml-py (``pip install 'mqtune[gpu]'``), and with nvidia-smi where that package is missing. Each line on stdin
is a question, and its answer is one line on stdout, both in JSON:

- ``"gpus"``: which GPUs there are; ``{"gpus": [[number, UUID, bytes of memory or 0 where unknown], …]}``
- a list of devices, named as in CUDA_VISIBLE_DEVICES: how full they are; ``{"used": {device: bytes}, "unknown": {device: reason}}``
- ``{"load": devices}``: for how much of the last moment they computed; ``{"load": {device: percent}}``, without those that don't say

Where nothing can be asked the answer is ``{"error": reason, "final": whether asking again is useless}``, and the process ends. It
also ends when stdin does: with its worker.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

#: How long nvidia-smi may take: less than whoever asks waits for an answer (see ``mqtune.worker.devices``), so that this process
#: can still kill and reap it.
_SMI_TIMEOUT_S: Final = {"gpus": 25.0, "used": 8.0}
_SMI_FIELDS: Final = ("index", "uuid", "memory.total", "memory.used")
_SMI_LOAD: Final = (*_SMI_FIELDS[:3], "utilization.gpu")
_BYTES_PER_MIB: Final = 1 << 20


class Gpu(NamedTuple):
    """One GPU; its number is its place in the order of the PCI bus, and memory that is not known is 0 bytes."""

    number: str
    uuid: str
    total: int


class DriverError(Exception):
    """The driver can't be asked; *final* when asking again is useless."""

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final


class GpuSource(Protocol):
    """A way to ask the driver. Each method raises DriverError when the driver doesn't answer."""

    def gpus(self) -> list[Gpu]:
        """Return the GPUs of this machine."""

    def used(self, devices: Sequence[str]) -> tuple[dict[str, int], dict[str, str]]:
        """Return the bytes in use on each device, by any process, and for the others the reason why that is unknown."""

    def load(self, devices: Sequence[str]) -> dict[str, int]:
        """Return the percent of the last moment in which each device computed; parts of GPUs don't say."""


class Nvml:
    """Asks with nvidia-ml-py.

    Raises:
        ImportError: the package is not installed.
        DriverError: the driver does not work.
    """

    def __init__(self) -> None:
        import pynvml  # noqa: PLC0415 - an extra

        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
                raise ImportError(str(error)) from None
            raise DriverError(f"NVML: {error}") from None

    def gpus(self) -> list[Gpu]:
        try:
            return [self._gpu(index) for index in range(self._nvml.nvmlDeviceGetCount())]
        except self._nvml.NVMLError as error:
            raise DriverError(f"NVML: {error}") from None

    def _gpu(self, index: int) -> Gpu:
        handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        try:
            total = int(self._nvml.nvmlDeviceGetMemoryInfo(handle).total)
        except self._nvml.NVMLError:
            # Some share the machine's memory.
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

    def load(self, devices: Sequence[str]) -> dict[str, int]:
        load: dict[str, int] = {}
        for device in devices:
            with contextlib.suppress(self._nvml.NVMLError):
                load[device] = int(self._nvml.nvmlDeviceGetUtilizationRates(self._handle(device)).gpu)
        return load

    def _handle(self, device: str) -> Any:
        if device.isdecimal():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(device))
        try:
            # The UUID of a GPU, or of a part of one (MIG).
            return self._nvml.nvmlDeviceGetHandleByUUID(device.encode())
        except self._nvml.NVMLError:
            found = matching(device, self.gpus())
            if found is None:
                raise
            return self._nvml.nvmlDeviceGetHandleByIndex(int(found.number))


class NvidiaSmi:
    """Asks with the command nvidia-smi, which takes a moment for each question and knows nothing about parts of GPUs.

    Raises:
        DriverError: there is no such command.
    """

    def __init__(self) -> None:
        command = shutil.which("nvidia-smi")
        if command is None:
            raise DriverError(
                "there is neither nvidia-smi nor, with a driver, nvidia-ml-py: pip install 'mqtune[gpu]'", final=True
            )
        self._command = command

    def gpus(self) -> list[Gpu]:
        return [gpu for gpu, _ in self._rows(_SMI_TIMEOUT_S["gpus"])]

    def used(self, devices: Sequence[str]) -> tuple[dict[str, int], dict[str, str]]:
        full = dict(self._rows(_SMI_TIMEOUT_S["used"]))
        used: dict[str, int] = {}
        unknown: dict[str, str] = {}
        for device in devices:
            found = matching(device, full)
            if found is None:
                unknown[device] = "nvidia-smi does not list it; nvidia-ml-py may know it: pip install 'mqtune[gpu]'"
            elif (size := _mebibytes(full[found])) is None:
                unknown[device] = "nvidia-smi does not say"
            else:
                used[device] = size
        return used, unknown

    def load(self, devices: Sequence[str]) -> dict[str, int]:
        rows = self._rows(_SMI_TIMEOUT_S["used"], _SMI_LOAD)
        loads = {gpu: int(load) for gpu, load in rows if load.isdecimal()}
        found = {device: matching(device, loads) for device in devices}
        return {device: loads[gpu] for device, gpu in found.items() if gpu is not None}

    def _rows(self, timeout_s: float, fields: Sequence[str] = _SMI_FIELDS) -> list[tuple[Gpu, str]]:
        """Return each GPU, and the last field as the command says it."""
        try:
            answer = subprocess.run(
                [self._command, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DriverError(f"nvidia-smi did not answer: {error}") from None
        if answer.returncode:
            said = (answer.stdout + answer.stderr).strip() or f"code {answer.returncode}"
            raise DriverError(f"nvidia-smi failed: {said}")
        rows = ([value.strip() for value in line.split(",")] for line in answer.stdout.splitlines())
        return [
            (Gpu(number, uuid, _mebibytes(total) or 0), last)
            # A driver may print a remark before its answer.
            for number, uuid, total, last in (row for row in rows if len(row) == len(fields) and row[0].isdecimal())
        ]


def matching(device: str, gpus: Iterable[Gpu]) -> Gpu | None:
    """Return the GPU of this number or UUID; as CUDA does, it takes the beginning of a UUID for it."""
    return next(
        (g for g in gpus if g.number == device or (device.startswith("GPU-") and g.uuid.startswith(device))), None
    )


def _mebibytes(text: str) -> int | None:
    return int(text) * _BYTES_PER_MIB if text.isdecimal() else None


def _text(value: str | bytes) -> str:
    # Earlier versions of nvidia-ml-py return bytes.
    return value.decode() if isinstance(value, bytes) else value


def _open() -> GpuSource:
    try:
        return Nvml()
    except ImportError:
        return NvidiaSmi()


def main() -> None:
    """Answer questions until there are no more."""
    source: GpuSource | None = None
    for line in sys.stdin:
        question = json.loads(line)
        try:
            source = source or _open()
            if question == "gpus":
                _say({"gpus": source.gpus()})
            elif isinstance(question, dict):
                _say({"load": source.load(question["load"])})
            else:
                used, unknown = source.used(question)
                _say({"used": used, "unknown": unknown})
        except DriverError as error:
            # A driver that is being replaced may work later, but not with the library that is loaded here.
            _say({"error": str(error), "final": error.final})
            return


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
