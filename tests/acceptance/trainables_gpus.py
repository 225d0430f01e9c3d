"""Trainables that take memory of a real GPU, by CUDA's driver alone, and have it compute.

As a program, ``trainables_gpus.py``, it takes memory too, says so, and keeps it until its input ends.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

import mqtune

#: How much each takes: more than a worker puts up with after a trial (a CUDA context and 256 MiB), and little for any GPU.
TAKEN_BYTES: Final = 2 << 30
#: Where trials look whether they may end; a worker's environment says it.
FOLDER: Final = "GPU_TRIALS_FOLDER"


class Cuda:
    """Memory on the first GPU that this process may see, and something to do for it.

    Raises:
        OSError: CUDA's driver is not here.
        RuntimeError: it can't be used.
    """

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", ctypes.c_uint(0))
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._memory = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(self._memory), ctypes.c_size_t(TAKEN_BYTES))

    def compute(self) -> None:
        for value in range(10):
            self._call("cuMemsetD8_v2", self._memory, ctypes.c_ubyte(value), ctypes.c_size_t(TAKEN_BYTES))
        self._call("cuCtxSynchronize")

    def _call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._driver, name)(*arguments):
            raise RuntimeError(f"{name} returned {code}")


def holds(config: dict[str, Any]) -> None:
    """Take memory, report the process's number, and end when there is a file with this trial's number."""
    _run(config, lambda: time.sleep(0.05))


def computes(config: dict[str, Any]) -> None:
    cuda = Cuda()
    _run(config, cuda.compute, cuda)


def _run(config: dict[str, Any], work: Any, cuda: Cuda | None = None) -> None:
    kept = cuda or Cuda()
    gate = Path(os.environ[FOLDER], f"end-{config['number']}")
    mqtune.report({"loss": 1.0, "pid": os.getpid()})
    while not gate.exists():
        work()
    mqtune.report({"loss": 0.5, "pid": os.getpid()})
    del kept


if __name__ == "__main__":
    kept = Cuda()
    print("taken", flush=True)
    sys.stdin.read()
