"""What everything that is up holds in memory: with two parked trials, and idle after them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from benchmarks.bodies import PATIENCE_S
from benchmarks.measurement import Context, Figures
from benchmarks.processes import Memory, descendants, memory_of
from benchmarks.work.base import Figure, Workload

__all__ = ["PARTIES", "WORKLOAD", "figures", "parked_trials", "settle_and_measure"]

PARTIES: Final = 2
#: For processes that end or shrink a moment after the trials.
SETTLE_S: Final = 2.0

WORKLOAD: Final = Workload(
    name="memory",
    title="resident memory of driver, workers, daemons",
    sizes={},
    quick_sizes={},
    figures={
        "idle_pss_mb": Figure(unit="MB", higher_is_better=False, title="memory idle, PSS", bar=180.0),
        "idle_rss_mb": Figure(unit="MB", higher_is_better=False, title="memory idle, RSS"),
        "idle_processes": Figure(unit="", higher_is_better=None, shown=False),
        "busy_pss_mb": Figure(unit="MB", higher_is_better=False, title="memory with 2 parked trials, PSS"),
        "busy_rss_mb": Figure(unit="MB", higher_is_better=False, shown=False),
        "busy_processes": Figure(unit="", higher_is_better=None, shown=False),
    },
)


def settle_and_measure(context: Context) -> Memory:
    """Add up every process of this measurement, a moment from now."""
    time.sleep(SETTLE_S)
    return memory_of(descendants(context.root_pid))


@contextmanager
def parked_trials(context: Context, *, parties: int = PARTIES) -> Iterator[list[Memory]]:
    """While the block runs parked trials: measure once all are up, release them, and leave the answer in the list."""
    found: list[Memory] = []

    def measure() -> None:
        deadline = time.monotonic() + PATIENCE_S
        while len(list(context.folder.glob("ready-*"))) < parties and time.monotonic() < deadline:
            time.sleep(0.05)
        found.append(settle_and_measure(context))
        (context.folder / "release").touch()

    thread = threading.Thread(target=measure)
    thread.start()
    yield found
    thread.join()


def figures(*, idle: Memory, busy: Memory | None) -> Figures:
    """Return the figures."""
    found: Figures = {
        "idle_pss_mb": idle.pss_mb,
        "idle_rss_mb": idle.rss_mb,
        "idle_processes": idle.processes,
    }
    if busy is not None:
        found |= {"busy_pss_mb": busy.pss_mb, "busy_rss_mb": busy.rss_mb, "busy_processes": busy.processes}
    return found
