"""What it costs to save: a small dict with a report, and a large directory beside a plain copy of it."""

from __future__ import annotations

from typing import Final

from benchmarks.work.base import Figure, Workload

__all__ = ["DICT_BYTES", "FILES", "WORKLOAD"]

#: What the dict holds, in one value.
DICT_BYTES: Final = 1_000
#: In how many files of one size the directory's bytes are.
FILES: Final = 10


def _time(title: str, unit: str = "ms", *, shown: bool = True) -> Figure:
    return Figure(unit=unit, higher_is_better=False, title=title, shown=shown)


WORKLOAD: Final = Workload(
    name="checkpoint",
    title="reports with checkpoints",
    sizes={"reports": 400, "stream_reports": 5_000, "megabytes": 100, "rounds": 7},
    quick_sizes={"reports": 20, "stream_reports": 100, "megabytes": 2, "rounds": 2},
    figures={
        "plain_call_p50_us": _time("a report without checkpoint: time in the call, p50", "µs"),
        "dict_call_p50_us": _time("a report with a 1 kB dict: time in the call, p50", "µs"),
        "plain_call_p99_us": _time("", "µs", shown=False),
        "dict_call_p99_us": _time("", "µs", shown=False),
        "plain_decision_p50_ms": _time("a report without checkpoint → decision, p50"),
        "dict_decision_p50_ms": _time("a report with a 1 kB dict → decision, p50"),
        "plain_decision_p99_ms": _time("a report without checkpoint → decision, p99", shown=False),
        "dict_decision_p99_ms": _time("a report with a 1 kB dict → decision, p99", shown=False),
        "dict_reports_per_s": Figure(
            unit="1/s", higher_is_better=True, title="reports decided, each of 2 trials with a 1 kB dict in every one"
        ),
        "copy_s": _time("100 MB directory: plain copy", "s"),
        "synced_copy_s": _time("100 MB directory: plain copy, flushed to disk", "s"),
        "save_s": _time("100 MB directory: report with it as checkpoint", "s"),
        "save_over_copy": _time("100 MB directory: report / plain copy", "×"),
        "save_over_synced_copy": _time("100 MB directory: report / copy flushed to disk", "×"),
        "fetch_s": _time("100 MB directory: fetched and verified", "s"),
        "fetch_over_copy": _time("100 MB directory: fetched / plain copy", "×"),
    },
)
