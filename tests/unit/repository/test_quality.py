"""The benchmark of search quality: its tasks, and one quick run of mqtune and Optuna."""

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
from benchmarks.work import quality


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
    yield Context(folder=tmp_path, sizes=quality.WORKLOAD.quick_sizes, run=1)
    optuna.logging.set_verbosity(verbosity)


@pytest.mark.parametrize(
    "variant",
    [*mqtune_quality.VARIANTS, *optuna_quality.VARIANTS],
    ids=lambda each: each.name,
)
def test_a_quick_run_gives_all_figures(variant: Variant, context: Context) -> None:
    figures = variant.measure(context)

    assert set(figures) == set(quality.WORKLOAD.figures)
    assert all(len(values) == 1 for values in figures.values())


def test_the_chosen_config_has_the_least_loss_of_those_with_the_most_epochs_in_time() -> None:
    record = quality.Record()
    for at_s, name, epoch, loss in [(1, "a", 1, 0.1), (4, "late", 3, 0.0), (3, "b", 2, 0.3), (2, "c", 2, 0.5)]:
        record.add(at_s, {"name": name}, epoch, loss)

    assert [record.chosen(until_s)["name"] for until_s in (1, 2, 3, 4)] == ["a", "c", "b", "late"]
