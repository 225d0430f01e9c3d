"""What docs/extensions.md shows works: its searcher keeps the contract, and is better than chance."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, Final

import pytest

import mqtune
from mqtune.core.trial import Config, Metrics
from mqtune.results.warm_start import WarmStart
from mqtune.testing.searchers import NewSearcher, SearcherContract

PAGE: Final = (Path(__file__).parents[3] / "docs" / "extensions.md").read_text()
(BLOCK,) = (
    block for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL) if "Kernel" in block
)
PLACES: dict[str, Any] = {"__name__": "page"}
exec(compile(BLOCK, "docs/extensions.md", "exec"), PLACES)
KernelSearcher: Final = PLACES["KernelSearcher"]


class TestKernelSearcher(SearcherContract):
    space: ClassVar[dict[str, Any]] = {
        "lr": mqtune.loguniform(1e-4, 1),
        "opt": mqtune.choice([{"name": "adam"}, {"name": "sgd", "momentum": mqtune.uniform(0, 1)}]),
    }

    @pytest.fixture
    def new_searcher(self) -> NewSearcher:
        found: NewSearcher = KernelSearcher
        return found


def branin(config: Config) -> float:
    """Branin's function, whose minimum is 0.3979."""
    x, y = config["x"], config["y"]
    curve = y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6
    return float(curve**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10)


def one_report(config: Config) -> Iterator[tuple[float, Metrics]]:
    yield 1.0, {"loss": branin(config)}


def train(config: Config) -> None:
    """Stand for a trainable: the simulated backend doesn't call it."""


def regret(searcher: Any, seed: int, trials: int) -> float:
    results = mqtune.Tuner(
        train,
        {"x": mqtune.uniform(-5, 10), "y": mqtune.uniform(0, 15)},
        metric="loss",
        mode="min",
        max_trials=trials,
        searcher=searcher,
        seed=seed,
        backend=mqtune.Simulated(one_report, slots=1),
        run=mqtune.RunOptions(progress=False),
    ).run()
    return results.best.value - 0.3979


def test_the_searcher_of_the_page_is_better_than_chance() -> None:
    ours, chance = ([regret(make(), seed, 30) for seed in range(7)] for make in (KernelSearcher, lambda: None))

    assert sum(mine < other for mine, other in zip(ours, chance, strict=True)) >= 6
    assert median(ours) < median(chance) / 3


def test_the_searcher_of_the_page_learns() -> None:
    configs = [{"x": -5.0 + x, "y": 0.0 + y} for x in range(0, 16, 3) for y in range(0, 16, 3)]
    known = [(config, branin(config)) for config in configs]

    knowing, new = (
        [regret(make(), seed, 3) for seed in range(5)]
        for make in (lambda: WarmStart(known, KernelSearcher()), KernelSearcher)
    )
    assert max(knowing) < min(new)
