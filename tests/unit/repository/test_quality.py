"""The benchmark of search quality: its tasks, its clock, its comparison, and one quick look at mqtune and Optuna."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import pytest

import mqtune
from benchmarks.measurement import Context, Variant
from benchmarks.quality.tasks import EPOCH_S, EPOCHS, TASKS, Parameter, Task
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


def _by_chance(rng: random.Random, task: Task) -> dict[str, Any]:
    def choose(_: str, each: Parameter) -> Any:
        if each.choices:
            return rng.choice(each.choices)
        return rng.randint(int(each.low), int(each.high)) if each.is_whole else rng.uniform(each.low, each.high)

    return task.config(choose)


each_task = pytest.mark.parametrize("task", TASKS, ids=lambda each: each.name)


@each_task
def test_no_config_of_a_sample_ends_below_the_least_loss(task: Task) -> None:
    rng = random.Random(1)

    least = min(task.loss(_by_chance(rng, task), EPOCHS) for _ in range(500))

    assert least >= task.best - 1e-5


@each_task
def test_a_curve_is_the_same_for_the_same_config_and_seed(task: Task) -> None:
    config = _by_chance(random.Random(2), task)

    curve = [*task.curve(config, 3)]

    assert curve == [*task.curve(dict(config), 3)] != [*task.curve(config, 4)]
    assert len(curve) == EPOCHS


@each_task
def test_an_epoch_takes_about_a_virtual_second_in_the_mean(task: Task) -> None:
    rng = random.Random(3)

    mean_s = sum(next(task.curve(_by_chance(rng, task), 0))[0] for _ in range(500)) / 500

    assert mean_s == pytest.approx(EPOCH_S, rel=0.15)


@each_task
def test_mqtune_and_optuna_get_the_space_of_the_task(task: Task) -> None:
    space = mqtune.Space(mqtune_quality.space(task))
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    rng, seen = random.Random(5), set()

    for _ in range(100):
        ours, asked = mqtune_quality.flat(space.sample(rng)), study.ask()
        theirs = task.config(partial(optuna_quality.suggested, asked))
        for config in (ours, theirs):
            assert config == task.config(lambda name, _, config=config: config[name]), "all that counts, and no more"
            assert all(
                value in each.choices if each.choices else each.low <= value <= each.high
                for value, each in ((value, task.parameters[name]) for name, value in config.items())
            )
        seen |= set(ours)
        assert asked.params == theirs
    assert seen == set(task.parameters)


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
