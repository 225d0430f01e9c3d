"""The worker's end of the process that asks NVIDIA's driver: every answer has a deadline, whatever the driver does."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from mqtune.worker.privileges import without_secrets

__all__ = ["COMMAND", "DriverQuery"]

logger = logging.getLogger(__name__)

#: What answers; see there for what it is asked and answers.
COMMAND: Final = (sys.executable, "-m", "mqtune.worker.nvml")
#: The driver answers within milliseconds, and within seconds where it is loaded for the question; a broken one may never.
ANSWER_S: Final = 10.0
#: For how long a driver that did not answer is not asked again, so that a broken one costs each trial nothing.
PAUSE_S: Final = 60.0
#: A process that was killed is gone at once, unless it hangs in the driver; then nothing waits for it.
_GONE_S: Final = 1.0
_READ_BYTES: Final = 1 << 16


class _NoAnswer(Exception):
    """The driver can't be asked; ``is_final`` when there is no use in asking again."""

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_final = is_final


class DriverQuery:
    """Asks the driver by a process of its own, which is started for the first question and again when it has died.

    Whatever is wrong is logged once, and answered by leaving devices out. Any thread may ask; close it at the end.

    Args:
        command: the process.
    """

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command = command
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._asks_from = 0.0
        self._said: set[str] = set()

    def used(self, devices: Sequence[str]) -> dict[str, int]:
        """Return the bytes in use on each device, within some ``ANSWER_S``; devices that can't say are left out."""
        with self._lock:
            if time.monotonic() < self._asks_from:
                return {}
            try:
                answer = self._ask(devices)
            except _NoAnswer as error:
                self._end()
                self._asks_from = float("inf") if error.is_final else time.monotonic() + PAUSE_S
                self._say_once(f"how full its devices are can't be asked ({error}); nothing waits for their memory")
                return {}
        for device, reason in answer["unknown"].items():
            self._say_once(f"how full device {device} is can't be asked ({reason}); nothing waits for its memory")
        return {device: int(used) for device, used in answer["used"].items()}

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.warning("%s", text)

    def _ask(self, devices: Sequence[str]) -> dict[str, dict[str, Any]]:
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
                    # A Ctrl-C in the worker's terminal is not meant for it.
                    start_new_session=True,
                )
            assert self._process.stdin is not None  # noqa: S101 - both are pipes
            self._process.stdin.write(json.dumps(list(devices)).encode() + b"\n")
            answer = json.loads(self._read_line())
        except (OSError, ValueError) as error:
            raise _NoAnswer(f"{type(error).__name__}: {error}") from None
        if "error" in answer:
            raise _NoAnswer(answer["error"], is_final=answer["final"])
        return answer  # type: ignore[no-any-return]

    def _read_line(self) -> bytes:
        assert self._process is not None and self._process.stdout is not None  # noqa: S101, PT018 - made by the caller
        fd, line = self._process.stdout.fileno(), b""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        deadline = time.monotonic() + ANSWER_S
        while not line.endswith(b"\n"):
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise _NoAnswer(f"no answer within {ANSWER_S:.0f} s")
            read = os.read(fd, _READ_BYTES)
            if not read:
                raise _NoAnswer("the process that asks has died")
            line += read
        return line

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GONE_S)

    def close(self) -> None:
        """End the process; nothing is answered any more. Whoever waits for an answer does so no longer."""
        self._asks_from = float("inf")
        process = self._process
        if process is not None:
            process.kill()
        if self._lock.acquire(timeout=_GONE_S):
            self._asks_from = float("inf")
            self._end()
            self._lock.release()
