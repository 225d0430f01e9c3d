"""Asks the GPU driver, through a separate process (``mqtune.worker.host.gpu_probe``)."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from mqtune.core.timing import Timing
from mqtune.core.usage import DeviceUse
from mqtune.trainable.process.descendants import signal_group
from mqtune.worker.host.gpu_probe import Gpu, NoAnswer
from mqtune.worker.host.privileges import without_secrets

logger = logging.getLogger(__name__)

#: The process that asks.
COMMAND: Final = (sys.executable, "-P", "-m", "mqtune.worker.host.gpu_probe")
#: The longest wait for a killed process, which may hang in the driver.
_GONE_S: Final = 1.0
_READ_BYTES: Final = 1 << 16


class GpuProbe:
    """Asks the GPU driver through a child process.

    The process starts with the first question, and again if it has ended.

    Every answer has a deadline, so a driver that hangs blocks nothing else. Any thread may ask. Close it at the end.
    """

    def __init__(self, command: Sequence[str] = COMMAND, timing: Timing = Timing()) -> None:
        self._timing = timing
        self._command = command
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        #: After a fault, the monotonic time from which on the driver is asked again.
        self._asks_from = 0.0
        #: The warnings that were logged.
        self._said: set[str] = set()

    def gpus(self) -> list[Gpu]:
        """Return the GPUs of this machine, within about ``gpu_list_s``.

        Raises:
            NoAnswer: the driver can't be asked.
        """
        with self._lock:
            try:
                answer = self._ask("gpus", self._timing.gpu_list_s)
                return [Gpu(*gpu) for gpu in answer["gpus"]]
            except NoAnswer:
                self._end()
                raise

    def used(self, devices: Sequence[str]) -> dict[str, int]:
        """Return the bytes in use on each device, within about ``gpu_answer_s``.

        Devices whose use is unknown are left out. It never raises: a fault is logged once, and the driver is not asked
        again for ``gpu_pause_s``.
        """
        answer = self._ask_about_devices([*devices], "the worker does not wait for it to be freed")
        for device, reason in answer.get("unknown", {}).items():
            self._say_once(
                f"the memory in use on device {device} is unknown ({reason}); the worker does not wait for it to be "
                f"freed"
            )
        return {device: int(used) for device, used in answer.get("used", {}).items()}

    def use(self, devices: Sequence[str]) -> dict[str, DeviceUse]:
        """Return the load, memory and power of each device, over all processes.

        Unknown figures are None. Faults are handled as by ``used``.
        """
        answer = self._ask_about_devices({"use": [*devices]}, "so is the use of its devices by trials")
        return {device: DeviceUse(*use) for device, use in answer.get("use", {}).items()}

    def processes(self, devices: Sequence[str]) -> dict[str, dict[int, int]]:
        """Return by device the bytes that each process has on it, by process id.

        Faults are handled as by ``used``.
        """
        answer = self._ask_about_devices({"processes": [*devices]}, "so is the part of each trial")
        return {
            device: {int(pid): int(size) for pid, size in those.items()}
            for device, those in answer.get("processes", {}).items()
        }

    def _ask_about_devices(self, question: list[str] | dict[str, list[str]], otherwise: str) -> dict[str, Any]:
        """Return the answer to a question about devices; empty after a fault and in its pause.

        *otherwise* names the consequence of a fault, for the log.
        """
        with self._lock:
            if time.monotonic() < self._asks_from:
                return {}
            try:
                return self._ask(question, self._timing.gpu_answer_s)
            except NoAnswer as error:
                self._end()
                self._asks_from = float("inf") if error.is_final else time.monotonic() + self._timing.gpu_pause_s
                self._say_once(f"the memory in use on its devices is unknown ({error}); {otherwise}")
                return {}

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.warning("%s", text)

    def _ask(self, question: object, timeout_s: float) -> dict[str, Any]:
        try:
            if self._process is not None and self._process.poll() is not None:
                self._end()
            if self._process is None:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    bufsize=0,
                    env=without_secrets(),
                    # Ctrl-C in the worker's terminal does not reach it. In the worker's own session it is no orphan
                    # (see mqtune.worker.host.processes).
                    process_group=0,
                )
            assert self._process.stdin is not None  # noqa: S101 - both are pipes
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            answer: dict[str, Any] = json.loads(self._read_line(timeout_s))
        except (OSError, ValueError) as error:
            raise NoAnswer(f"{type(error).__name__}: {error}") from None
        if "error" in answer:
            raise NoAnswer(answer["error"], is_final=answer["final"])
        return answer

    def _read_line(self, timeout_s: float) -> bytes:
        assert self._process is not None and self._process.stdout is not None  # noqa: S101, PT018 - made by the caller
        fd, line = self._process.stdout.fileno(), b""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        deadline = time.monotonic() + timeout_s
        while not line.endswith(b"\n"):
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise NoAnswer(f"no answer within {timeout_s:g} s")
            read = os.read(fd, _READ_BYTES)
            if not read:
                raise NoAnswer("the process that asks has died")
            line += read
        return line

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        _kill(process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GONE_S)

    def close(self) -> None:
        """End the process. Open and later questions get no answer."""
        self._asks_from = float("inf")
        process = self._process
        if process is not None:
            _kill(process)
        if self._lock.acquire(timeout=_GONE_S):
            self._asks_from = float("inf")
            self._end()
            self._lock.release()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and the nvidia-smi that it may have started."""
    if process.returncode is None:
        signal_group(process.pid, signal.SIGKILL)
