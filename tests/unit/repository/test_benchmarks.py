"""The figures of the benchmarks, and the table that shows their medians and ranges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.bodies import EPOCH_S
from benchmarks.table import render
from benchmarks.trace import RECORD, SUFFIX
from benchmarks.training.lines import Line
from benchmarks.work import asha
from benchmarks.work.training import figures


def line(system: str, variant: str, value: float) -> dict[str, Any]:
    found = {"workload": "noop", "figure": "trials_per_s", "system": system, "variant": variant, "value": value}
    return {**found, "status": "ok", "other_cores": 0.02, "machine": {"cores": 2}}


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


def trial(number: int, began: float, epochs: list[float], *, setup_s: float = 0.0) -> list[Line]:
    """Return the lines of a trial, given its beginning and the lengths of its epochs."""
    lines = [Line(number, "begin", began, began)]
    at = began + setup_s
    for length in epochs:
        lines.append(Line(number, "epoch", at, at + length))
        at += length
    return [*lines, Line(number, "end", at, at)]


def test_the_ideal_is_the_epochs_own_time_from_the_first_report_on_over_the_slots() -> None:
    lines = trial(0, 10.0, [1.0, 1.0]) + trial(1, 10.0, [2.0, 2.0])
    found = figures(lines, 4.0, slots=2, trials=2)
    # After 11.0 there are one second of the first trial and three of the second, until 14.0.
    assert found == {"wall_over_ideal": pytest.approx(3.0 / (4.0 / 2)), "first_report_s": 7.0}


def test_from_trial_to_trial_is_the_time_in_a_slot_until_the_first_epoch() -> None:
    lines = [
        *trial(0, 0.0, [1.0]),
        *trial(1, 0.0, [5.0]),
        *trial(2, 1.2, [1.0], setup_s=0.3),
        *trial(3, 2.7, [1.0], setup_s=0.3),
    ]
    assert figures(lines, 0.0, slots=2, trials=4)["to_epoch_ms"] == pytest.approx(500.0)
