"""``mqtune show`` of a long experiment, whose copy of the journal lies in a folder."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.measurement import Context, Figures
from benchmarks.work.opened import TRIALS

if TYPE_CHECKING:
    from mqtune.journal.base import Entry
    from mqtune.journal.copy import JournalFile

__all__ = ["measure"]

#: Reports of one trial in an entry.
_BATCH: Final = 100
_LATER: Final = 100_000
_SHOW: Final = (sys.executable, "-m", "mqtune", "show")


def measure(context: Context) -> Figures:
    """Measure the command from its start to its end, each in a process of its own."""
    from mqtune.journal.copy import JOURNAL_FILE
    from mqtune.results.kept_state import STATE_FILE

    long, short = context.folder / "long", context.folder / "short"
    for folder in (long, short):
        folder.mkdir()
    file, entries, reports = _opened(long), _entries("long", TRIALS), context.sizes["reports"]
    _append(file, entries, reports)
    _append(_opened(short), _entries("short", 1), 1)
    whole_s = _show(long, reports)
    state = long / STATE_FILE
    figures: Figures = {
        "show_whole_s": whole_s,
        "show_s": _show(long, reports),
        "show_short_s": _show(short, 1),
        "state_mb": state.stat().st_size / 1e6,
        "copy_mb": (long / JOURNAL_FILE).stat().st_size / 1e6,
    }
    written = reports + _append(file, entries, _LATER)
    figures["show_running_s"] = _show(long, written)
    return figures


def _opened(folder: Path) -> JournalFile:
    """Return the copy in a folder, to be written."""
    from mqtune.journal.copy import JOURNAL_FILE, JournalFile

    file = JournalFile(folder / JOURNAL_FILE)
    file.begin([])
    return file


def _show(folder: Path, reports: int) -> float:
    begin = time.perf_counter()
    shown = subprocess.run([*_SHOW, str(folder)], capture_output=True, text=True, check=True)
    took_s = time.perf_counter() - begin
    if f"{reports} reports" not in shown.stdout:
        raise RuntimeError(f"{reports} reports were to be shown: {shown.stdout}")
    return took_s


def _append(file: JournalFile, entries: Iterator[tuple[Entry, int]], reports: int) -> int:
    """Write entries with as many reports, or a few more, and return how many these are."""
    written = 0
    while written < reports:
        entry, count = next(entries)
        file.append([entry])
        written += count
    return written


def _entries(name: str, trials: int) -> Iterator[tuple[Entry, int]]:
    """Yield the entries of an experiment that goes on for ever, each with the number of reports in it."""
    from mqtune.core.codec import REPORTS_PREFIX, pack_metrics, segment_bytes
    from mqtune.journal.base import Entry

    number = 0
    for data in _beginning(name, trials):
        number += 1
        yield Entry(f"{number}-0", data), 0
    if trials == 1:
        data = segment_bytes("0001", 1, 1, [pack_metrics(1.7e9, {"loss": 1.0, "training_iteration": 1})])
        yield Entry(f"{number + 1}-0", REPORTS_PREFIX + b"\x91" + data), 1
    rng, first = random.Random(7), 1
    while True:
        # Metrics that differ from turn to turn, and not from trial to trial, are written in the time that counts here.
        steps = range(first, first + _BATCH)
        packed = [pack_metrics(1.7e9, {"loss": rng.random(), "training_iteration": step}) for step in steps]
        for trial in range(1, trials + 1):
            number += 1
            data = segment_bytes(f"{trial:04d}", 1, first, packed)
            yield Entry(f"{number}-0", REPORTS_PREFIX + b"\x91" + data), _BATCH
        first += _BATCH


def _beginning(name: str, trials: int) -> Iterator[bytes]:
    from mqtune.core.events import START, AttemptStarted, ExperimentCreated, TrialStaged
    from mqtune.core.trial import TrialId

    deciders = {"searcher": {"searcher": "random"}, "scheduler": {"scheduler": "fifo"}}
    definition = {"metric": "loss", "mode": "min", "max_failures": 0, **deciders}
    yield ExperimentCreated(name=name, definition=definition, at=1.0).encode()
    for trial in (TrialId(f"{number:04d}") for number in range(1, trials + 1)):
        config = {"lr": 0.1, "layers": 3, "optimizer": "adam"}
        yield TrialStaged(trial=trial, attempt=1, config=config, at=1.0, cursor=START).encode()
        yield AttemptStarted(trial=trial, attempt=1, worker="w", host="h", devices=["0"], at=1.0).encode()
