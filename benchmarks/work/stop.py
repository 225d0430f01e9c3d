"""A trial that is stopped at its 20th report: how long until the decision, its code's end and its process's death."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.measurement import Figures
from benchmarks.trace import read_traces
from benchmarks.work.base import Figure, Workload, percentiles

__all__ = ["WORKLOAD", "figures"]


def _latency(title: str, p50_bar: float | None, p99_bar: float | None = None) -> dict[str, Figure]:
    key = title.replace(" ", "_")
    return {
        f"{key}_p50_ms": Figure(unit="ms", higher_is_better=False, title=f"report → {title}, p50", bar=p50_bar),
        f"{key}_p99_ms": Figure(unit="ms", higher_is_better=False, title=f"report → {title}, p99", bar=p99_bar),
    }


WORKLOAD: Final = Workload(
    name="stop",
    title="a trial that reports every 20 ms, stopped at its 20th report, one after the other",
    sizes={"trials": 20},
    quick_sizes={"trials": 3},
    figures={
        **_latency("decision", 0.6),
        **_latency("code stopped", 2.0),
        **_latency("process dead", 5.0, 10.0),
    },
)


def figures(folder: Path, decisions: Mapping[str, float], deaths: Mapping[str, float]) -> Figures:
    """Return the figures from the trials' traces, the driver's decision times and the watcher's deaths, by trial.

    Raises:
        RuntimeError: a trial has no decision, or its death was not seen.
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
