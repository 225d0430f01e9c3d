"""Times that a trial records for the measurement. They survive SIGKILL."""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["Trace", "TraceRecord", "announce", "read_traces"]

RECORD: Final = struct.Struct("=dddq")  #: started, marked, beat (monotonic seconds), epochs
SUFFIX: Final = ".trace"
#: The watcher's FIFO for announced processes, in the measurement's folder.
FIFO_NAME: Final = "watched"


class TraceRecord(NamedTuple):
    """The times of one trial, in seconds of CLOCK_MONOTONIC, and its epochs."""

    started: float
    marked: float
    beat: float
    epochs: int


class Trace:
    """A trial's times in a file mapped into its memory, so that a write needs no system call."""

    def __init__(self, folder: str | Path, name: str) -> None:
        path = Path(folder) / f"{name}{SUFFIX}"
        path.write_bytes(bytes(RECORD.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), RECORD.size)
        self._started = time.monotonic()
        self._marked = 0.0
        self._epochs = 0
        self.beat()

    def mark(self) -> None:
        """Note the start of latencies."""
        self._marked = time.monotonic()
        self.beat()

    def beat(self) -> None:
        """Note that the trial's own code runs."""
        RECORD.pack_into(self._map, 0, self._started, self._marked, time.monotonic(), self._epochs)

    def count_epoch(self) -> None:
        """Note one more finished epoch."""
        self._epochs += 1
        self.beat()


def read_traces(folder: Path) -> dict[str, TraceRecord]:
    """Return the records of all trials, by name."""
    return {path.stem: TraceRecord(*RECORD.unpack(path.read_bytes())) for path in folder.glob(f"*{SUFFIX}")}


def announce(folder: str | Path, name: str) -> None:
    """Tell the watcher that this process runs the trial *name*. Do nothing without a watcher."""
    with contextlib.suppress(FileNotFoundError):
        fifo = os.open(Path(folder) / FIFO_NAME, os.O_WRONLY)
        os.write(fifo, f"{name} {os.getpid()}\n".encode())
        os.close(fifo)
