"""The benchmark of search quality: its tasks, its clock, its comparison, and one quick look at mqtune and Optuna."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest

from benchmarks.measurement import Context, Variant
from benchmarks.quality.slots import Record, run_on_slots
from benchmarks.quality.tasks import EPOCHS, TASKS, Task
from benchmarks.systems import mqtune_quality, optuna_quality
from benchmarks.table import chance, render
from benchmarks.work import quality


def config_of(task: Task, rng: random.Random) -> dict[str, Any]:
    return task.config(
        lambda _, each: (
            rng.choice(each.choices)
            if each.choices
            else rng.randint(int(each.low), int(each.high))
            if each.is_whole
            else rng.uniform(each.low, each.high)
        )
    )


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_config_has_one_curve_for_each_seed_and_a_regret(task: Task) -> None:
    rng = random.Random(1)
    for config in [config_of(task, rng) for _ in range(20)]:
        curve = list(task.curve(config, 1))

        assert curve == list(task.curve(config, 1)) != list(task.curve(config, 2))
        assert len(curve) == EPOCHS
        assert all(seconds > 0 for seconds, _ in curve)
        assert task.regret(config) > 0


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("branin", {"x1": 9.42478, "x2": 2.475}),
        (
            "hartmann6",
            dict(
                zip((f"x{n}" for n in range(1, 7)), (0.20169, 0.15001, 0.47687, 0.27533, 0.31165, 0.6573), strict=True)
            ),
        ),
    ],
)
def test_the_functions_have_their_known_minima(name: str, config: dict[str, float]) -> None:
    (task,) = (each for each in TASKS if each.name == name)

    assert task.regret(config) == pytest.approx(0, abs=1e-4)
    assert task.loss(config, EPOCHS) == pytest.approx(task.best, abs=1e-4)


class Counting:
    """Stops each trial at the epoch that is its turn, and the last one never."""

    def __init__(self, ends: list[int]) -> None:
        self._ends: Iterator[int] = itertools.chain(ends, itertools.repeat(EPOCHS))

    def start(self) -> tuple[int, dict[str, Any]]:
        return next(self._ends), {"x1": 0.0, "x2": 0.0}

    def report(self, trial: int, epoch: int, loss: float) -> bool:
        return epoch < trial


def test_a_slot_takes_the_next_trial_when_one_has_ended_until_the_time_is_over() -> None:
    (task,) = (each for each in TASKS if each.name == "branin")
    ((epoch_s, _), *_) = task.curve({"x1": 0.0, "x2": 0.0}, 1)
    record = run_on_slots(Counting([1, 2]), task, 1, budget_s=3.5 * epoch_s)

    # Eight slots, of which two have begun a second trial: 8 reports at each of three times.
    assert len(record) == 24


def test_what_came_furthest_is_chosen_before_what_looks_better() -> None:
    (task,) = (each for each in TASKS if each.name == "branin")
    far, near = {"x1": 0.0, "x2": 0.0}, {"x1": 9.42478, "x2": 2.475}
    record = Record()
    record.add(1.0, near, 1, 0.4)
    record.add(2.0, far, 3, 50.0)

    assert record.regret(task, 1.5) == pytest.approx(0, abs=1e-4)
    assert record.regret(task, 2.0) == task.regret(far)


def test_a_config_is_good_enough_from_the_report_that_chose_it_for_good() -> None:
    (task,) = (each for each in TASKS if each.name == "branin")
    far, best = {"x1": 0.0, "x2": 0.0}, {"x1": 9.42478, "x2": 2.475}
    record = Record()
    record.add(1.0, best, 1, 0.4)
    assert record.good_from_s(task, 0.1) == 1.0

    record.add(2.0, far, 3, 50.0)
    assert record.good_from_s(task, 0.1) == math.inf

    record.add(3.0, best, 3, 0.4)
    assert (record.good_from_s(task, 0.1), record.good_from_s(task, 100.0)) == (3.0, 1.0)
    assert record.trials == 2


def test_thinking_is_added_up_until_a_time() -> None:
    record = Record()
    for epoch in (1, 2):
        until = time.process_time() + 0.01
        while time.process_time() < until:
            pass
        record.add(float(epoch), {"x1": 0.0}, epoch, 1.0)

    assert record.thought_s(0.5) == 0
    assert 0.01 <= record.thought_s(1.0) <= record.thought_s(2.0) - 0.01


def test_chance_explains_equals_and_not_what_is_always_worse() -> None:
    low, high = [float(n) for n in range(30)], [float(n) for n in range(20, 50)]

    assert chance(low, low) == pytest.approx(0.5, abs=0.01)
    assert chance(high, low) < 1e-6
    assert chance(low, high) > 0.999
    assert chance([0.0] * 30, [0.0] * 30) == 1.0
    # scipy.stats.mannwhitneyu([1, 2, 2, 5], [0, 1, 2, 3], alternative="greater", method="asymptotic")
    assert chance([1, 2, 2, 5], [0, 1, 2, 3]) == pytest.approx(0.2758, abs=1e-3)


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    monkeypatch.setenv("MQTUNE_HOME", str(tmp_path))
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
