"""Trials that report once and end: what it costs to run a trial at all."""

from __future__ import annotations

from typing import Final

from benchmarks.measurement import Figures
from benchmarks.work.base import Figure, Over, Workload

__all__ = ["WORKLOAD", "figures"]

WORKLOAD: Final = Workload(
    name="noop",
    title="trials that report once and end, 2 slots",
    sizes={"trials": 200},
    quick_sizes={"trials": 10},
    figures={
        "trials_per_s": Figure(
            unit="1/s",
            higher_is_better=True,
            title="no-op trials",
            bar=400.0,
            over={
                "default": [
                    Over(system="optuna", variant="processes", bar=0.6),
                    Over(system="ray", variant="reused", bar=5.0),
                ],
            },
        ),
        "span_s": Figure(unit="s", higher_is_better=False, shown=False),
        "run_s": Figure(unit="s", higher_is_better=False, shown=False),
    },
)


def figures(trials: int, *, first_start: float, last_end: float, run_s: float) -> Figures:
    """Return the figures of *trials* trials, from the first start request to the last end the driver knew of."""
    span_s = last_end - first_start
    return {"trials_per_s": trials / span_s, "span_s": span_s, "run_s": run_s}
