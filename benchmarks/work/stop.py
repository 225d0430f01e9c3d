"""A trial stopped at its 20th report: time to the decision, its code's end and its death."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.measurement import Figures
from benchmarks.trace import read_traces
from benchmarks.work.base import Figure, Workload, percentiles

__all__ = ["WORKLOAD", "figures"]

WORKLOAD: Final = Workload(
    name="stop",
    sizes={"trials": 20},
    quick_sizes={"trials": 3},
    figures={
        f"{event.replace(' ', '_')}_{share}_ms": Figure(f"report → {event}, {share}", "ms")
        for event in ("decision", "code stopped", "process dead")
        for share in ("p50", "p99")
    },
)


def figures(folder: Path, decisions: Mapping[str, float], deaths: Mapping[str, float]) -> Figures:
    """Return the latencies of all trials.

    Args:
        folder: where the trials' traces are.
        decisions: times of the driver's decisions, by trial.
        deaths: times of the processes' deaths, by trial.

    Raises:
        RuntimeError: a trial has no decision or no death.
    """
    traces = {name: trace for name, trace in read_traces(folder).items() if trace.marked}
    missing = sorted(name for name in traces if name not in decisions or name not in deaths)
    if missing or not traces:
        raise RuntimeError(f"no decision or no death was seen for {', '.join(missing) or 'any trial'}")
    samples = {
        "decision": [decisions[name] - trace.marked for name, trace in traces.items()],
        "code_stopped": [trace.beat - trace.marked for trace in traces.values()],
        "process_dead": [deaths[name] - trace.marked for name, trace in traces.items()],
    }
    found: Figures = {}
    for key, values in samples.items():
        found |= percentiles(key, "ms", [1e3 * value for value in values])
    return found
