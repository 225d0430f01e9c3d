"""The pipe by which a worker tells a running trial what is wanted of it."""

from __future__ import annotations

import contextlib
import os
import threading

from mqtune.trainable.process.protocol import CLEARED, PAUSE, RECORD, SAVE, STOP, Told

__all__ = ["Control"]


class Control:
    """The worker's end of a trial's control pipe; any thread may call it.

    What is told before the trial's process is there waits in the pipe. A trial that never looks can't hold up its worker:
    once the pipe is full, records are dropped.
    """

    def __init__(self) -> None:
        self.read_end, self._write = os.pipe()
        os.set_blocking(self.read_end, False)
        os.set_blocking(self._write, False)
        self._lock = threading.Lock()
        self._wishes = 0
        self._cleared = 0
        self._closed = False

    def tell(self, told: Told) -> None:
        """Say that the trial should end; the stop signal has it look."""
        with self._lock:
            self._put(STOP if told == "stop" else PAUSE, 0)

    def wish(self, number: int) -> None:
        """Say that a checkpoint is wanted; nothing happens when this or a later wish was passed on."""
        with self._lock:
            if number > self._wishes:
                self._wishes = number
                self._put(SAVE, number)

    def clear(self, sequence: int) -> None:
        """In lockstep, let the trial go on behind this report; nothing happens when it was let go further."""
        with self._lock:
            if sequence > self._cleared:
                self._cleared = sequence
                self._put(CLEARED, sequence)

    def _put(self, kind: bytes, number: int) -> None:
        if not self._closed:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(self._write, RECORD.pack(kind, number))

    def close(self) -> None:
        """Close both ends."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._write)
                os.close(self.read_end)
