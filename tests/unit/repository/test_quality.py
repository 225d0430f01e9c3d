"""The benchmark of search quality: its tasks, its clock, its comparison, and one quick look at mqtune and Optuna."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest

from benchmarks.measurement import Context, Variant
from benchmarks.quality.tasks import TASKS
from benchmarks.systems import mqtune_quality, optuna_quality
from benchmarks.table import chance, render
from benchmarks.work import quality


def test_chance_explains_equals_and_not_what_is_always_worse() -> None:
    low, high = [float(n) for n in range(30)], [float(n) for n in range(20, 50)]

    assert chance(low, low) == pytest.approx(0.5, abs=0.01)
    assert chance(high, low) < 1e-6
    assert chance(low, high) > 0.999
    assert chance([0.0] * 30, [0.0] * 30) == 1.0
    # scipy.stats.mannwhitneyu([1, 2, 2, 5], [0, 1, 2, 3], alternative="greater", method="asymptotic")
    assert chance([1, 2, 2, 5], [0, 1, 2, 3]) == pytest.approx(0.2758, abs=1e-3)


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    verbosity = optuna.logging.get_verbosity()
    yield Context(folder=tmp_path, sizes=quality.WORKLOAD.quick_sizes | {"tasks": len(TASKS)}, root_pid=0, run=1)
    optuna.logging.set_verbosity(verbosity)


@pytest.mark.parametrize(
    "variant",
    [mqtune_quality.VARIANTS[0], mqtune_quality.VARIANTS[2], optuna_quality.VARIANTS[0]],
    ids=lambda each: each.name,
)
def test_a_quick_look_gives_all_figures(variant: Variant, context: Context) -> None:
    figures = variant.measure(context)

    assert set(figures) == set(quality.WORKLOAD.figures)
    assert [len(figures[f"{task.name}_regret"]) for task in TASKS] == [1] * len(TASKS)
    assert figures["reached_s"] == [sum(figures[f"{task}_reached_s"][0] for task in quality.TARGETS)]
    assert figures["reached_s"] < figures["reached_with_thinking_s"]


def test_the_table_sets_mqtune_against_the_best_of_the_others() -> None:
    def lines(system: str, variant: str, *values: float) -> list[dict[str, Any]]:
        line = {"status": "ok", "workload": "quality", "figure": "branin_regret", "system": system, "variant": variant}
        return [{**line, "value": value} for value in values]

    peers = lines("syne", "BOHB", *range(10, 20)) + lines("optuna", "TPE + halving", *range(5, 15))

    assert "no worse than Optuna (TPE + halving): met, p=0." in render(
        lines("mqtune", "TPE + ASHA", *range(5, 15)) + peers
    )
    assert "no worse than Optuna (TPE + halving): MISSED, p=" in render(
        lines("mqtune", "TPE + ASHA", *range(14, 24)) + peers
    )
