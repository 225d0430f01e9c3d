"""64 short trials under ASHA: how much of the wall time is not training."""

from __future__ import annotations

import statistics
from collections.abc import Collection
from pathlib import Path
from typing import Final

from benchmarks.bodies import EPOCH_S
from benchmarks.curve import CONFIGS, MAX_EPOCHS
from benchmarks.measurement import Figures
from benchmarks.trace import TraceRecord, read_traces
from benchmarks.work.base import Figure, Workload

__all__ = ["GRACE_PERIOD", "REDUCTION_FACTOR", "SLOTS", "WORKLOAD", "figures"]

SLOTS: Final = 2
GRACE_PERIOD: Final = 1
REDUCTION_FACTOR: Final = 3

WORKLOAD: Final = Workload(
    name="asha",
    title="ASHA, 64 trials of at most 27 epochs of 10 ms, 2 slots",
    sizes={"trials": len(CONFIGS)},
    quick_sizes={"trials": 6},
    figures={
        "wall_over_ideal": Figure(unit="×", higher_is_better=False, title="ASHA: wall / ideal", bar=1.15),
        "wall_over_decided": Figure(unit="×", higher_is_better=False, title="ASHA: wall / ideal of the epochs decided"),
        "stop_cost_ms": Figure(
            unit="ms",
            higher_is_better=False,
            title="ASHA: by what the next trial begins later after a stop than after an end",
        ),
        "wall_s": Figure(unit="s", higher_is_better=False, shown=False),
        "epochs_run": Figure(unit="", higher_is_better=None, shown=False),
        "epochs_decided": Figure(unit="", higher_is_better=None, shown=False),
    },
)


def figures(folder: Path, *, first_start: float, last_end: float, epochs_decided: int) -> Figures:
    """Return the figures; ideal is the epochs that were run, at 10 ms each, over two slots.

    ``wall_over_decided`` counts only epochs that the scheduler was shown, so an epoch run after the decision to
    stop counts as time lost there.
    """
    wall_s = last_end - first_start
    traces = read_traces(folder).values()
    epochs_run = sum(trace.epochs for trace in traces)
    return {
        "wall_over_ideal": wall_s / (epochs_run * EPOCH_S / SLOTS),
        "wall_over_decided": wall_s / (epochs_decided * EPOCH_S / SLOTS),
        "wall_s": wall_s,
        "epochs_run": epochs_run,
        "epochs_decided": epochs_decided,
        **_stop_cost(traces),
    }


def _stop_cost(traces: Collection[TraceRecord]) -> Figures:
    """Return how much longer it takes from a trial's last moment to the next one's first if it was stopped, in the median.

    No more than two trials run at once: the third begins behind the first end, the fourth behind the second, and so on.
    """
    starts = sorted(trace.started for trace in traces)[SLOTS:]
    ends = sorted(traces, key=lambda trace: trace.beat)
    gaps: dict[bool, list[float]] = {False: [], True: []}
    for end, start in zip(ends, starts, strict=False):
        gaps[end.epochs < MAX_EPOCHS].append(start - end.beat)
    if not all(gaps.values()):
        return {}
    return {"stop_cost_ms": (statistics.median(gaps[True]) - statistics.median(gaps[False])) * 1000}
