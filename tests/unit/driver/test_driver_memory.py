"""What a driver remembers: so much for a trial, and nothing for a report."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from bench import Bench

import mqtune
from mqtune.journal import MemoryJournal, MemoryServer
from mqtune.schedulers.base import Scheduler

TRIALS: Final = 20
#: Reports of each trial by the first look and until the second.
FEW: Final = 10
MANY: Final = 250
#: By how much a driver may grow for each trial meanwhile: numbers become larger ones, and ASHA's rungs more by four, which
#: know what each trial had there.
GROWTH_BYTES: Final = 1_500

SCHEDULERS: Final[dict[str, Callable[[], Scheduler]]] = {
    "fifo": mqtune.FIFO,
    "asha": lambda: mqtune.ASHA(max_t=10**6),
    "hyperband": lambda: mqtune.HyperBand(max_t=10**6),
    "median": lambda: mqtune.MedianStopping(interval=10**6),
    "pbt": lambda: mqtune.PBT(10**6, {"lr": mqtune.uniform(0, 1)}),
}


def size_of(root: object) -> int:
    """Return how many bytes all have that can be reached from *root*, but for code and the journal."""
    seen: set[int] = set()
    waiting: list[Any] = [root]
    total = 0
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, type | types.ModuleType | MemoryServer | MemoryJournal):
            continue
        seen.add(id(each))
        if isinstance(each, types.FunctionType):
            # What it closes over is its own; its globals are its module's.
            waiting += [cell.cell_contents for cell in each.__closure__ or ()]
            continue
        total += sys.getsizeof(each)
        waiting += gc.get_referents(each)
    return total


@pytest.mark.parametrize("name", SCHEDULERS)
def test_what_a_driver_remembers_does_not_grow_with_the_reports(name: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path, slots=TRIALS, max_trials=TRIALS, scheduler=SCHEDULERS[name])
    bench.step()
    trials = list(bench.experiment.trials)
    for trial in trials:
        bench.start(trial)

    def report(count: int) -> int:
        for trial in trials:
            bench.report(trial, *(1.0 + number / count for number in range(count)))
        return size_of(bench.driver)

    before, after = report(FEW), report(MANY)

    # Those that come after a decision are late.
    assert sum(trial.reports + trial.late_reports for trial in bench.experiment.trials.values()) == TRIALS * (
        FEW + MANY
    )
    # An empty object has 16 bytes, and a reference to it another 8.
    assert after - before < GROWTH_BYTES * TRIALS < 24 * MANY * TRIALS
