"""What the trials do that save checkpoints; they are handed mqtune's way to report and to get a checkpoint."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Final

from benchmarks.bodies import meet
from benchmarks.trace import Trace
from benchmarks.work import checkpoint, pause, stream

__all__ = [
    "CALLS",
    "ROUNDS",
    "dicts",
    "directories",
    "flush",
    "in_turns",
    "large",
    "pausing",
    "stream_dicts",
    "write_files",
]

Report = Callable[..., object]

#: Where a trial leaves the times of its reports, and of its copies.
CALLS: Final = "calls.json"
ROUNDS: Final = "rounds.json"

#: Between two reports: enough that one has gone out when the next is made.
PAUSE_S: Final = 0.005
#: A trial that nobody pauses ends by itself.
REPORT_LIMIT: Final = 2_000
#: What a large file is written in: a tensor of a model.
TENSOR_BYTES: Final = 2**25


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
    taken = in_turns(works, rounds, after=lambda: shutil.rmtree(copy, ignore_errors=True))
    (Path(folder) / ROUNDS).write_text(json.dumps(taken))


def large(
    report: Report,
    checkpoint_dir: Callable[[], AbstractContextManager[str]],
    folder: str,
    *,
    files: int,
    megabytes: int,
    rounds: int,
) -> None:
    """In turns copy a large directory and flush the copy, report with it, write as many bytes anew, and write them to be saved."""
    source, copy = Path(folder) / "source", Path(folder) / "copy"
    size = megabytes * 1_000_000 // files
    write_files(source, files, size)
    flush(source)
    numbers = count()

    def write() -> None:
        write_files(copy, files, size)
        flush(copy)

    def write_to_be_saved() -> None:
        with checkpoint_dir() as draft:
            write_files(draft, files, size)
        report({"loss": -float(next(numbers))})

    works: dict[str, Callable[[int], object]] = {
        "copy": lambda _: _copy_and_flush(source, copy),
        "path": lambda _: report({"loss": -float(next(numbers))}, source),
        "write": lambda _: write(),
        "dir": lambda _: write_to_be_saved(),
    }

    def clean() -> None:
        shutil.rmtree(copy, ignore_errors=True)
        # What one has left to the disk is not the next one's to wait for.
        os.sync()

    (Path(folder) / ROUNDS).write_text(json.dumps(in_turns(works, rounds, after=clean)))


def in_turns(
    works: Mapping[str, Callable[[int], object]],
    rounds: int,
    *,
    before: Callable[[], object] = lambda: None,
    after: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Return the seconds that each work took, in each round; *before* and *after* each, which don't count.

    Each round has an order of its own, the same in every run: what one work leaves to the system meets all alike.
    """
    taken: dict[str, list[float]] = {name: [] for name in works}
    order = random.Random(0)
    for number in range(rounds):
        for name in order.sample(list(works), len(works)):
            before()
            begin = time.monotonic()
            works[name](number)
            taken[name].append(time.monotonic() - begin)
            after()
    return taken


def write_files(folder: Path, files: int, size: int) -> None:
    """Write files as ``torch.save`` does, tensor by tensor; their bytes are made before, outside of what is timed."""
    folder.mkdir(exist_ok=True)
    for number in range(files):
        with (folder / f"part-{number}").open("wb", buffering=0) as file:
            left = size
            while left:
                left -= file.write(memoryview(_tensor())[:left])


@cache
def _tensor() -> bytes:
    return os.urandom(TENSOR_BYTES)


def _copy_and_flush(source: Path, copy: Path) -> None:
    shutil.copytree(source, copy)
    flush(copy)


def flush(folder: Path) -> None:
    """Flush a folder's files to disk."""
    for path in (*folder.iterdir(), folder):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
