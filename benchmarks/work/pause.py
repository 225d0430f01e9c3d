"""A trial that is paused on one worker and goes on on another: how long until it reports there."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from benchmarks.measurement import Figures
from benchmarks.work.base import Figure, Workload, percentiles

__all__ = ["CHECKPOINT_BYTES", "PARTS", "PAUSE_AT", "WARM_UP", "WORKLOAD", "figures"]

#: Of its attempt: at which report it is paused.
PAUSE_AT: Final = 5
#: What a checkpoint holds, beside a counter.
CHECKPOINT_BYTES: Final = 1_000
#: The first moves find workers that have not imported the trainable yet, and don't count.
WARM_UP: Final = 4
#: The steps from the decision to the first report of the next attempt, by figure; each is shown in the result lines.
PARTS: Final = {
    "to_ended": "decision → process gone",
    "to_staged": "process gone → staged again",
    "to_claimed": "staged → claimed elsewhere",
    "to_report": "claimed → first report",
}


def _time(title: str, *, shown: bool = True) -> Figure:
    return Figure(unit="ms", higher_is_better=False, title=title, shown=shown)


WORKLOAD: Final = Workload(
    name="pause",
    title="a trial that is paused at its 5th report and resumed on another worker, over and over, with a 1 kB dict",
    sizes={"moves": 100},
    quick_sizes={"moves": 5},
    figures={
        "resumed_p50_ms": _time("pause decided → resumed elsewhere and reporting, p50"),
        "resumed_p99_ms": _time("pause decided → resumed elsewhere and reporting, p99"),
        **{f"{part}_p50_ms": _time(title, shown=False) for part, title in PARTS.items()},
        "moves": Figure(unit="", higher_is_better=None, shown=False),
        "stays": Figure(unit="", higher_is_better=None, shown=False),
    },
)


def figures(moves: Sequence[dict[str, float]], *, stays: int) -> Figures:
    """Return the figures of the moves, each of which has the seconds of all parts.

    ``stays`` are the resumes that the same worker got, which don't count.
    """
    found: Figures = percentiles("resumed", "ms", [sum(move.values()) * 1e3 for move in moves])
    for part in PARTS:
        found[f"{part}_p50_ms"] = statistics.median(move[part] for move in moves) * 1e3
    return {**found, "moves": len(moves), "stays": stays}
