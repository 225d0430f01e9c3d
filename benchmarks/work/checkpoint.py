"""What it costs to save: a small dict with a report, and a large directory beside a plain copy of it."""

from __future__ import annotations

from typing import Final

from benchmarks.work.base import Figure, Workload

__all__ = ["DICT_BYTES", "FILES", "LARGE_BAR", "WORKLOAD"]

#: What the dict holds, in one value.
DICT_BYTES: Final = 1_000
#: In how many files of one size the directory's bytes are.
FILES: Final = 10
#: How fast a large checkpoint must be saved and fetched, over the plain work on as many bytes.
LARGE_BAR: Final = 0.8


def _time(title: str, unit: str = "ms", *, shown: bool = True) -> Figure:
    return Figure(unit=unit, higher_is_better=False, title=title, shown=shown)


def _speed(title: str) -> Figure:
    return Figure(unit="×", higher_is_better=True, title=f"1 GB: speed of {title}", bar=LARGE_BAR)


WORKLOAD: Final = Workload(
    name="checkpoint",
    title="reports with checkpoints",
    sizes={"reports": 400, "stream_reports": 5_000, "megabytes": 100, "rounds": 7, "large_megabytes": 1_000},
    quick_sizes={"reports": 20, "stream_reports": 100, "megabytes": 2, "rounds": 2, "large_megabytes": 40},
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
        "large_path_speed": _speed("report(checkpoint=path) / copy flushed to disk"),
        "large_dir_speed": _speed("checkpoint_dir() and report / plain writing flushed to disk"),
        "large_fetch_speed": _speed("a fetch, verified / plain read"),
        "large_fetch_over_copy": Figure(
            unit="×", higher_is_better=True, title="1 GB: speed of a fetch, verified / plain copy, not flushed"
        ),
        "s3_save_speed": _speed("a save in S3 / s3fs alone"),
        "s3_fetch_speed": _speed("a fetch from S3, verified / s3fs alone"),
        **{
            f"large_{name}_s": _time("", "s", shown=False)
            for name in ("copy", "path", "write", "dir", "read", "copy_back", "fetch", "put", "save", "get", "got")
        },
    },
)
