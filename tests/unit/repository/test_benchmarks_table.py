"""The table of the benchmarks shows medians and ranges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.bodies import EPOCH_S
from benchmarks.table import render
from benchmarks.trace import RECORD, SUFFIX
from benchmarks.work import asha


def line(system: str, variant: str, value: float) -> dict[str, Any]:
    return {
        "workload": "noop",
        "figure": "trials_per_s",
        "system": system,
        "variant": variant,
        "value": value,
        "status": "ok",
        "other_cores": 0.02,
        "machine": {"cores": 2},
    }


def test_the_table_shows_the_median_and_the_range_of_the_runs_and_notes_on_what_failed() -> None:
    failed = {"workload": "noop", "system": "ray", "variant": "fresh", "status": "failed", "reason": "exit code 1\n…"}
    lines = [
        *(line("optuna", "processes", value) for value in (10.0, 300.0, 10_000.0)),
        line("mqtune", "default", 26.66),
        failed,
    ]

    assert render(lines).splitlines()[2:] == [
        "| no-op trials | Optuna (processes) | 300 1/s (10–10,000) | 3 |",
        "| no-op trials | mqtune (default) | 26.7 1/s | 1 |",
        "",
        "- other processes kept 0.02 of 2 cores busy (median over the figures; at most 0.02)",
        "- noop, ray (fresh): failed: exit code 1",
    ]


def test_the_ideal_of_asha_is_all_trained_epochs_over_the_slots(tmp_path: Path) -> None:
    for name, epochs in (("whole", 27), ("stopped", 3)):
        (tmp_path / f"{name}{SUFFIX}").write_bytes(RECORD.pack(0.0, 0.0, 1.0, epochs))

    assert asha.figures(tmp_path, first_start=1.0, last_end=4.0) == {
        "wall_over_ideal": pytest.approx(3.0 / (30 * EPOCH_S / 2))
    }
