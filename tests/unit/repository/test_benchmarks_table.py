"""The table of the benchmarks says of each bar whether it is met, by medians of the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.bodies import EPOCH_S
from benchmarks.curve import MAX_EPOCHS
from benchmarks.table import render
from benchmarks.trace import RECORD, SUFFIX
from benchmarks.work import asha


def line(
    system: str, variant: str, value: float, workload: str = "noop", figure: str = "trials_per_s"
) -> dict[str, Any]:
    return {
        "workload": workload,
        "figure": figure,
        "system": system,
        "variant": variant,
        "value": value,
        "status": "ok",
        "machine": {"cores": 2},
    }


def bars(lines: list[dict[str, Any]], variant: str) -> str:
    """The last column of a variant of mqtune."""
    row = next(row for row in render(lines).splitlines() if f"| mqtune ({variant}) |" in row)
    return row.split(" | ")[-1].removesuffix(" |")


def test_a_bar_over_others_is_held_against_their_median() -> None:
    lines = [
        line("mqtune", "default", 360.0),
        *(line("optuna", "processes", value) for value in (10.0, 300.0, 10_000.0)),
        line("ray", "reused", 80.0),
    ]

    assert bars(lines, "default") == (
        "≥ 400: MISSED; ≥ 0.6 × Optuna (processes): met, 1.2; ≥ 5 × Ray Tune (reused): MISSED, 4.5"
    )


def test_a_bar_over_what_was_not_measured_is_left_out() -> None:
    assert bars([line("mqtune", "default", 500.0)], "default") == "≥ 400: met"


def test_a_bar_may_be_over_another_variant_and_lower_may_be_better() -> None:
    def cost(variant: str, value: float) -> dict[str, Any]:
        return line("mqtune", variant, value, "fleet", "driver_us")

    lines = [cost("10 workers, 1 driver", 50.0), cost("1,000 workers, 1 driver", 60.0)]

    assert bars(lines, "1,000 workers, 1 driver") == "≤ 1.3 × mqtune (10 workers, 1 driver): met, 1.2"
    assert bars(lines, "10 workers, 1 driver") == ""


def test_variants_have_bars_of_their_own() -> None:
    lines = [line("mqtune", variant, 6_000.0, "stream", "reports_per_s") for variant in ("stream", "lockstep")]

    assert (bars(lines, "stream"), bars(lines, "lockstep")) == ("≥ 150,000: MISSED", "≥ 5,000: met")


def trial(folder: Path, name: str, begin: float, end: float, epochs: int) -> None:
    (folder / f"{name}{SUFFIX}").write_bytes(RECORD.pack(begin, 0.0, end, epochs))


def test_what_a_stop_costs_is_the_time_to_the_next_trial_beyond_that_after_an_end(tmp_path: Path) -> None:
    # Two slots: what begins third goes on behind what ends first.
    trial(tmp_path, "whole", 0.0, 1.0, MAX_EPOCHS)
    trial(tmp_path, "stopped", 0.0, 0.5, 3)
    trial(tmp_path, "behind the stopped", 0.504, 2.0, 3)
    trial(tmp_path, "behind the whole", 1.001, 3.0, MAX_EPOCHS)

    found = asha.figures(tmp_path, first_start=0.0, last_end=3.0, epochs_decided=60)

    assert found["stop_cost_ms"] == pytest.approx(3.0)
    assert found["wall_over_ideal"] == pytest.approx(3.0 / (60 * EPOCH_S / 2))


def test_what_a_stop_costs_is_left_out_where_all_were_stopped(tmp_path: Path) -> None:
    for number in range(3):
        trial(tmp_path, str(number), number, number + 0.5, 1)

    assert "stop_cost_ms" not in asha.figures(tmp_path, first_start=0.0, last_end=3.0, epochs_decided=3)
