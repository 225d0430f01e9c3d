"""Times that a trial leaves behind for the measurement, and that survive SIGKILL."""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import time
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["Trace", "TraceRecord", "announce", "read_trace", "read_traces"]

RECORD: Final = struct.Struct("=dddq")  #: started, marked, beat (monotonic seconds), epochs
SUFFIX: Final = ".trace"
#: Where the watcher listens for the processes to watch, inside the measurement's folder.
FIFO_NAME: Final = "watched"


class TraceRecord(NamedTuple):
    """What one trial left behind; times are CLOCK_MONOTONIC seconds, which all processes of a machine share."""

    started: float
    marked: float
    beat: float
    epochs: int


class Trace:
    """A trial's times in a file mapped into its memory: written without a system call, kept by the kernel."""

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
        """Note now as the moment from which latencies count."""
        self._marked = time.monotonic()
        self.beat()

    def beat(self) -> None:
        """Note now as the last moment at which the trial's own code ran."""
        RECORD.pack_into(self._map, 0, self._started, self._marked, time.monotonic(), self._epochs)

    def count_epoch(self) -> None:
        """Note one more finished epoch."""
        self._epochs += 1
        self.beat()


def read_trace(path: Path) -> TraceRecord:
    """Read what one trial left behind."""
    return TraceRecord(*RECORD.unpack(path.read_bytes()))


def read_traces(folder: Path) -> dict[str, TraceRecord]:
    """Read what all trials left behind, by name."""
    return {path.stem: read_trace(path) for path in folder.glob(f"*{SUFFIX}")}


def announce(folder: str | Path, name: str) -> None:
    """Tell the watcher, if there is one, that this process runs the trial *name*."""
    with contextlib.suppress(FileNotFoundError):
        fifo = os.open(Path(folder) / FIFO_NAME, os.O_WRONLY)
        os.write(fifo, f"{name} {os.getpid()}\n".encode())
        os.close(fifo)
