"""The trials' code, the same in every system except for the way to report.

It imports nothing outside the standard library, since a trial's imports are measured too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.curve import CONFIGS, MAX_EPOCHS, loss
from benchmarks.trace import Trace, announce

__all__ = ["asha", "meet", "noop", "run", "stoppable", "stream"]

Report = Callable[[dict[str, Any]], object]

EPOCH_S: Final = 0.010
REPORT_EVERY_S: Final = 0.020
STOP_AT: Final = 20
#: The end of a trial that is not stopped, well after the slowest poll (5 s) of any system.
REPORT_LIMIT: Final = 2_000
BEAT_S: Final = 0.001
#: The longest that trials wait for each other.
PATIENCE_S: Final = 120.0


def run(work: str, report: Report, folder: str, index: int, *, reports: int, parties: int) -> None:
    """Run the body that *work* names: noop, stream, stop or asha."""
    if work == "noop":
        noop(report)
    elif work == "stream":
        stream(report, folder, index, reports=reports, parties=parties)
    elif work == "stop":
        stoppable(report, folder, index)
    else:
        asha(report, folder, index)


def noop(report: Report) -> None:
    """Report once and end."""
    report({"loss": 0.0, "epoch": 1})


def stream(report: Report, folder: str, index: int, *, reports: int, parties: int) -> None:
    """Report as fast as possible, once all parties are up."""
    meet(Path(folder), index, parties)
    trace = Trace(folder, f"stream-{index}")
    for number in range(1, reports + 1):
        report({"loss": 1.0 / number, "epoch": number})
    trace.beat()


def stoppable(report: Report, folder: str, index: int) -> None:
    """Report every 20 ms, with a sign of life each millisecond, until stopped."""
    name = f"stop-{index}"
    announce(folder, name)
    trace = Trace(folder, name)
    try:
        for number in range(1, REPORT_LIMIT + 1):
            due = time.monotonic() + REPORT_EVERY_S
            while time.monotonic() < due:
                time.sleep(BEAT_S)
                trace.beat()
            if number == STOP_AT:
                trace.mark()
            report({"loss": 1.0 / number, "epoch": number})
            trace.beat()
    finally:
        trace.beat()


def asha(report: Report, folder: str, index: int) -> None:
    """Train for at most 27 epochs of 10 ms on the synthetic curve."""
    config = CONFIGS[index]
    trace = Trace(folder, f"asha-{index}")
    try:
        for epoch in range(1, MAX_EPOCHS + 1):
            time.sleep(EPOCH_S)
            trace.count_epoch()
            report({"loss": loss(config["lr"], epoch, config["seed"]), "epoch": epoch})
    finally:
        trace.beat()


def meet(folder: Path, index: int, parties: int) -> None:
    """Wait until all parties have begun."""
    (folder / f"ready-{index}").touch()
    deadline = time.monotonic() + PATIENCE_S
    while len(list(folder.glob("ready-*"))) < parties:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all trials have begun within {PATIENCE_S:.0f} s")
        time.sleep(BEAT_S)
