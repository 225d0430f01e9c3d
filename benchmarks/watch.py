"""A process that waits on pidfds of other processes and writes the times of their deaths."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.trace import FIFO_NAME

__all__ = ["read_deaths", "watcher"]

DEATHS_NAME: Final = "deaths"
#: Time to wait for further deaths at the end of a measurement.
LAST_DEATHS_S: Final = 5.0
END: Final = "END 0\n"


def read_deaths(folder: Path) -> dict[str, float]:
    """Return the times of death by trial name, once the watcher has ended."""
    lines = (folder / DEATHS_NAME).read_text().splitlines()
    return {name: float(at) for name, at in (line.split() for line in lines)}


@contextlib.contextmanager
def watcher(folder: Path) -> Iterator[None]:
    """Run a watcher over the trials that announce themselves in *folder*."""
    fifo = folder / FIFO_NAME
    os.mkfifo(fifo)
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.watch", str(folder)])
    try:
        yield
    finally:
        fifo.open("w").write(END)
        process.wait()


def watch(folder: Path) -> None:
    """Write a line for each announced process when it dies, until told to end and all have died."""
    # Opened also for writing, so that the FIFO does not end between two writers.
    fifo = os.open(folder / FIFO_NAME, os.O_RDWR | os.O_NONBLOCK)
    poll = select.poll()
    poll.register(fifo, select.POLLIN)
    names: dict[int, str] = {}
    ends_at: float | None = None
    with (folder / DEATHS_NAME).open("w", buffering=1) as deaths:
        while ends_at is None or (names and time.monotonic() < ends_at):
            for fd, _ in poll.poll(None if ends_at is None else 100):
                now = time.monotonic()
                if fd != fifo:
                    deaths.write(f"{names.pop(fd)} {now}\n")
                    poll.unregister(fd)
                    os.close(fd)
                    continue
                for line in os.read(fifo, 65536).decode().splitlines(keepends=True):
                    if line == END:
                        ends_at = now + LAST_DEATHS_S
                        continue
                    name, pid = line.split()
                    pidfd = os.pidfd_open(int(pid))
                    names[pidfd] = name
                    poll.register(pidfd, select.POLLIN)


if __name__ == "__main__":
    watch(Path(sys.argv[1]))
