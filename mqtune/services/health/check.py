"""The operator's health check of a slot."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import IO, Final

from mqtune.core.text import printable
from mqtune.core.timing import Timing
from mqtune.core.trial import DEVICE_BROKEN, AttemptEnd
from mqtune.trainable import signal_group
from mqtune.worker import ImpairmentCause, Impairments, RunResult, without_secrets
from mqtune.worker.ports import AttemptHere, SlotHere, WorkerService

#: Longest wait for a killed command to end.
_GONE_S: Final = 1.0
#: Bytes of output that are read for the last line, and its shown characters.
_TAIL_BYTES: Final = 4_096
_SHOWN_CHARS: Final = 200
#: The kind of its impairments.
_KIND: Final = "health_check"
_SHUTTING_DOWN: Final = "the worker is shutting down"


class HealthCheck(WorkerService):
    """Runs the command before a slot's first attempt, after a failed one, and after some time.

    Thread-safe.

    Args:
        impairments: gets the devices of failing slots.
    """

    def __init__(self, command: str, impairments: Impairments, timing: Timing = Timing()) -> None:
        self._timing = timing
        self._command = command
        self.impairments = impairments
        self._lock = threading.Lock()
        #: Time until which each slot counts as healthy.
        self._sound_until: dict[int, float] = {}
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def ended(self, run: AttemptHere, result: RunResult) -> None:
        """Have a slot checked again after a failed attempt."""
        if result.end is AttemptEnd.FAILED or result.error_type == DEVICE_BROKEN:
            self._sound_until.pop(run.slot, None)

    def admit(self, slot: SlotHere) -> bool:
        """Return whether a slot is healthy within ``health_check_s``. Else quarantine its devices."""
        if time.monotonic() < self._sound_until.get(slot.index, 0.0):
            return True
        environment = slot.environment
        problem = self._problem(environment)
        if problem:
            cause = ImpairmentCause(
                f"its health check failed: {problem}",
                "its health check succeeds",
                is_over=partial(self._is_sound, environment),
            )
            self.impairments.put(slot.places, _KIND, cause)
            return False
        self._sound_until[slot.index] = time.monotonic() + self._timing.sound_s
        return True

    def _is_sound(self, environment: Mapping[str, str]) -> bool:
        return not self._problem(environment)

    def _problem(self, environment: Mapping[str, str]) -> str:
        """Run the command. Return its last line or another error, or an empty text if it succeeded."""
        try:
            # A file, not a pipe, which an orphan of the command would keep open.
            with tempfile.TemporaryFile() as output:
                code = self._run(output, environment)
                output.seek(max(0, output.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = output.read().decode(errors="replace").strip().splitlines()
        except subprocess.TimeoutExpired:
            return f"it took longer than {self._timing.health_check_s:g} s"
        except OSError as error:
            return f"it could not be run: {error}"
        if not code:
            return ""
        said = printable(lines[-1].strip())[:_SHOWN_CHARS] if lines else ""
        return said or f"it exited with code {code}"

    def _run(self, output: IO[bytes], environment: Mapping[str, str]) -> int:
        with self._lock:
            if self._closed:
                raise InterruptedError(_SHUTTING_DOWN)
            process = subprocess.Popen(
                ["/bin/sh", "-c", self._command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**without_secrets(), **environment},
                # In the worker's session it is no orphan (see mqtune/worker/host/processes.py).
                process_group=0,
            )
            self._running.add(process)
        try:
            return process.wait(self._timing.health_check_s)
        except subprocess.TimeoutExpired:
            signal_group(process.pid, signal.SIGKILL)
            # Don't wait for a command that hangs in the kernel.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GONE_S)
            raise
        finally:
            self._running.discard(process)

    def drain(self) -> None:
        """End running checks, and start no more."""
        with self._lock:
            self._closed = True
            for process in tuple(self._running):
                signal_group(process.pid, signal.SIGKILL)
