"""A process that asks NVIDIA's driver how full devices are, so that a worker never loads the driver's library itself.

Each line on stdin is a JSON list of devices, named as in CUDA_VISIBLE_DEVICES; the answer is one line of JSON on stdout:
``{"used": {device: bytes}, "unknown": {device: reason}}``. Where nothing can be asked it is ``{"error": reason, "final":
whether there is no use in asking again}``, and then the process ends. It also ends when stdin does: with its worker.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Sequence
from typing import Any, ClassVar, Final

__all__ = ["LIBRARY", "Nvml", "NvmlError", "main"]

#: The driver's own library, by the name that it has wherever there is a driver.
LIBRARY: Final = "libnvidia-ml.so.1"
_SUCCESS: Final = 0
#: Bytes of the longest UUID, as NVML's header has it (NVML_DEVICE_UUID_V2_BUFFER_SIZE).
_UUID_BYTES: Final = 96


class NvmlError(Exception):
    """NVML can't do what it was asked for."""


class _Memory(ctypes.Structure):
    """NVML's nvmlMemory_t."""

    _fields_: ClassVar = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


#: What is called, and with what; a handle is a pointer that must not be cut to an int.
_SIGNATURES: Final[dict[str, list[Any]]] = {
    "nvmlInit_v2": [],
    "nvmlDeviceGetCount_v2": [ctypes.POINTER(ctypes.c_uint)],
    "nvmlDeviceGetHandleByIndex_v2": [ctypes.c_uint, ctypes.POINTER(ctypes.c_void_p)],
    "nvmlDeviceGetHandleByUUID": [ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p)],
    "nvmlDeviceGetUUID": [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint],
    "nvmlDeviceGetMemoryInfo": [ctypes.c_void_p, ctypes.POINTER(_Memory)],
}


class Nvml:
    """The few calls of NVML that a worker needs.

    Raises:
        OSError: there is no such library.
        NvmlError: the driver does not work.
    """

    def __init__(self, library: str = LIBRARY) -> None:
        self._library = ctypes.CDLL(library)
        self._library.nvmlErrorString.argtypes = [ctypes.c_int]
        self._library.nvmlErrorString.restype = ctypes.c_char_p
        for name, arguments in _SIGNATURES.items():
            getattr(self._library, name).argtypes = arguments
        self._call("nvmlInit_v2")

    def used(self, device: str) -> int:
        """Return how many bytes of a device's memory are in use, by whomever.

        Args:
            device: an index in the order of the PCI bus, the beginning of the UUID of a GPU, or the UUID of a part of one.

        Raises:
            NvmlError: there is no such device, or it can't say.
        """
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", self._handle(device), ctypes.byref(memory))
        return int(memory.used)

    def _handle(self, device: str) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        if device.isdecimal():
            self._call("nvmlDeviceGetHandleByIndex_v2", int(device), ctypes.byref(handle))
            return handle
        try:
            self._call("nvmlDeviceGetHandleByUUID", device.encode(), ctypes.byref(handle))
        except NvmlError:
            # CUDA takes the beginning of an UUID for it.
            if not device.startswith("GPU-"):
                raise
            return self._handle_by_beginning(device)
        return handle

    def _handle_by_beginning(self, device: str) -> ctypes.c_void_p:
        number = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(number))
        for index in range(number.value):
            handle, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(_UUID_BYTES)
            self._call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
            self._call("nvmlDeviceGetUUID", handle, uuid, _UUID_BYTES)
            if uuid.value.decode().startswith(device):
                return handle
        raise NvmlError("no GPU has such a UUID")

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != _SUCCESS:
            raise NvmlError(f"{name}: {self._library.nvmlErrorString(code).decode()}")


def answer(nvml: Nvml, devices: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what there is to say about some devices."""
    used: dict[str, int] = {}
    unknown: dict[str, str] = {}
    for device in devices:
        try:
            used[device] = nvml.used(device)
        except NvmlError as error:
            unknown[device] = str(error)
    return {"used": used, "unknown": unknown}


def main(library: str = LIBRARY) -> None:
    """Answer questions until there are no more."""
    nvml: Nvml | None = None
    for line in sys.stdin:
        try:
            nvml = nvml or Nvml(library)
        except OSError as error:
            _say({"error": str(error), "final": True})
            return
        except NvmlError as error:
            # A driver that is being replaced may work later, but not with this library.
            _say({"error": str(error), "final": False})
            return
        _say(answer(nvml, json.loads(line)))


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
