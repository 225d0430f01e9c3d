"""What the trials do that save checkpoints; they are handed mqtune's way to report and to get a checkpoint."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.bodies import meet
from benchmarks.trace import Trace
from benchmarks.work import checkpoint, pause, stream

__all__ = ["CALLS", "ROUNDS", "dicts", "directories", "pausing", "stream_dicts"]

Report = Callable[..., object]

#: Where a trial leaves the times of its reports, and of its copies.
CALLS: Final = "calls.json"
ROUNDS: Final = "rounds.json"

#: Between two reports: enough that one has gone out when the next is made.
PAUSE_S: Final = 0.005
#: A trial that nobody pauses ends by itself.
REPORT_LIMIT: Final = 2_000


def pausing(report: Report, get_checkpoint: Callable[[], Any]) -> None:
    """Report every 5 ms with a dict of 1 kB, from where the checkpoint left off, until paused; the first one at once."""
    found = get_checkpoint()
    step = found.data["step"] if found else 0
    for number in range(step + 1, step + REPORT_LIMIT):
        report({"loss": 0.0, "training_iteration": number}, {"step": number, "state": bytes(pause.CHECKPOINT_BYTES)})
        time.sleep(PAUSE_S)


def dicts(report: Report, folder: str, *, reports: int) -> None:
    """Report every 5 ms, with and without a dict of 1 kB in turns; leave [with, before, after] of each call behind."""
    state = {"state": bytes(checkpoint.DICT_BYTES)}
    calls = []
    for number in range(reports):
        time.sleep(PAUSE_S)
        is_with = bool(number % 2)
        before = time.monotonic()
        report({"loss": 0.0, "epoch": number}, state if is_with else None)
        calls.append([is_with, before, time.monotonic()])
    (Path(folder) / CALLS).write_text(json.dumps(calls))


def stream_dicts(report: Report, folder: str, index: int, *, reports: int) -> None:
    """Report as fast as possible with a dict of 1 kB each time, from when all parties are up."""
    state = {"state": bytes(checkpoint.DICT_BYTES)}
    meet(Path(folder), index, stream.PARTIES)
    trace = Trace(folder, f"stream-{index}")
    for number in range(1, reports + 1):
        report({"loss": 1.0 / number, "epoch": number}, state)
    trace.beat()


def directories(report: Report, folder: str, *, megabytes: int, rounds: int) -> None:
    """In turns copy a directory, copy it and flush the copy, and report with it; leave the seconds of each behind."""
    source, copy = Path(folder) / "source", Path(folder) / "copy"
    source.mkdir()
    for number in range(checkpoint.FILES):
        (source / f"part-{number}").write_bytes(os.urandom(megabytes * 1_000_000 // checkpoint.FILES))
    os.sync()
    works: dict[str, Callable[[int], object]] = {
        "copy": lambda _: shutil.copytree(source, copy),
        "synced_copy": lambda _: _copy_and_flush(source, copy),
        "save": lambda number: report({"loss": -float(number), "epoch": number}, source),
    }
    taken: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds):
        for name, work in works.items():
            begin = time.monotonic()
            work(number)
            taken[name].append(time.monotonic() - begin)
            shutil.rmtree(copy, ignore_errors=True)
    (Path(folder) / ROUNDS).write_text(json.dumps(taken))


def _copy_and_flush(source: Path, copy: Path) -> None:
    shutil.copytree(source, copy)
    for path in (*copy.iterdir(), copy):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
