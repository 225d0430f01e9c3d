"""Pairs of a model and a scheduler, as docs/search.md recommends them, on simulated learning curves."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Iterator
from typing import Any, Final

import mqtune
from mqtune.core.trial import Config, Metrics

MAX_T: Final = 27
SEEDS: Final = 3
TRIALS: Final = 50
#: The losses of a poor config and of a good one differ by about 2; noise moves a report by so much.
NOISE: Final = 0.03
SPACE: Final[dict[str, Any]] = {
    "lr": mqtune.loguniform(1e-5, 1),
    "momentum": mqtune.uniform(0, 1),
    "width": mqtune.lograndint(4, 1024),
    "kind": mqtune.choice(["a", "b", "c"]),
}

_numbers = itertools.count(1)


def regret(config: Config) -> float:
    """What is left of the loss of a config in the end; the best has 0."""
    return (
        (math.log10(config["lr"]) + 2) ** 2 / 4
        + 3 * (config["momentum"] - 0.7) ** 2
        + 0.15 * abs(math.log2(config["width"] / 64))
        + {"a": 0.0, "b": 0.15, "c": 0.4}[config["kind"]]
    )


def loss(config: Config, time: int) -> float:
    """The table: curves that fall at paces of their own, so that they cross, with noise of their own."""
    noise = random.Random(f"{sorted(config.items())} {time}").gauss(0, NOISE)
    return regret(config) + 2 * time ** -(0.5 + config["momentum"]) + noise


def curve(config: Config) -> Iterator[tuple[float, Metrics]]:
    for time in range(1, MAX_T + 1):
        yield 1.0, {"loss": loss(config, time)}


def tuned(
    scheduler: mqtune.schedulers.Scheduler, searcher: mqtune.search.Searcher | str, seed: int, trials: int = TRIALS
) -> mqtune.Results:
    return mqtune.Tuner(
        curve,
        SPACE,
        metric="loss",
        mode="min",
        max_trials=trials,
        scheduler=scheduler,
        searcher=searcher,
        seed=seed,
        name=f"pair-{next(_numbers)}",
        backend=mqtune.Simulated(curve, slots=4),
        run=mqtune.RunOptions(progress=False),
    ).run()


def median_regret(scheduler: type[mqtune.schedulers.Scheduler], searcher: str) -> float:
    """The median, over the seeds, of the least regret of a trial that was trained to its end."""
    return statistics.median(
        min(
            regret(each.config)
            for each in tuned(scheduler(MAX_T), searcher, seed)  # type: ignore[call-arg]
            if each.status is mqtune.TrialStatus.COMPLETED
        )
        for seed in range(SEEDS)
    )


def test_hyperband_with_a_model_finds_much_better_configs_than_with_random_search() -> None:
    assert median_regret(mqtune.HyperBand, "tpe") < 0.5 * median_regret(mqtune.HyperBand, "random")
