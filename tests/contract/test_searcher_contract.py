"""The contract of searchers, on mqtune's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

import mqtune
from mqtune import GridSearcher, InitialPoints, RandomSearcher, Space
from mqtune.integrations.optuna import OptunaSearcher
from mqtune.search import Searcher
from mqtune.testing.searchers import NewSearcher, SearcherContract

#: What hangs on what was chosen, and domains in a list.
CONDITIONAL: dict[str, Any] = {
    "opt": mqtune.choice(
        [
            {"name": "adam", "lr": mqtune.loguniform(1e-5, 1e-1)},
            {"name": "sgd", "momentum": [mqtune.uniform(0, 1), {"nesterov": mqtune.choice([True, False])}]},
        ]
    ),
    "layers": [mqtune.randint(1, 4), mqtune.choice(["relu", None])],
    "depth": 3,
}


POINTS: list[dict[str, Any]] = [{"lr": 0.1}, {}]

Made = Callable[[dict[str, Any]], Searcher]
SEARCHERS: dict[str, Made] = {
    "random": lambda space: RandomSearcher(Space(space), seed=3),
    "points": lambda space: InitialPoints(POINTS, RandomSearcher(Space(space), seed=3), space=Space(space), seed=2),
    "optuna": lambda _: OptunaSearcher(),
    "points before optuna": lambda _: InitialPoints(POINTS, OptunaSearcher()),
}
CONDITIONED: dict[str, Made] = {
    "random": SEARCHERS["random"],
    "points": lambda _: InitialPoints([{"opt": {"momentum": [0.5, {}]}}, {"opt": {"name": "adam"}}, {}]),
    "optuna": SEARCHERS["optuna"],
}


class TestSearcher(SearcherContract):
    @pytest.fixture(params=SEARCHERS)
    def new_searcher(self, request: pytest.FixtureRequest) -> NewSearcher:
        return lambda: SEARCHERS[request.param](dict(self.space))


class TestSearcherWithConditions(SearcherContract):
    space: ClassVar[dict[str, Any]] = CONDITIONAL

    @pytest.fixture(params=CONDITIONED)
    def new_searcher(self, request: pytest.FixtureRequest) -> NewSearcher:
        return lambda: CONDITIONED[request.param](self.space)


class TestGridSearcher(SearcherContract):
    space: ClassVar[dict[str, Any]] = {
        "lr": mqtune.grid_search([0.1, 0.01]),
        "net": {"width": mqtune.grid_search([8, 16, 32])},
        "depth": 3,
    }

    @pytest.fixture
    def new_searcher(self) -> NewSearcher:
        return lambda: GridSearcher(Space(self.space), 1)


class TestGridSearcherWithConditions(TestGridSearcher):
    space: ClassVar[dict[str, Any]] = {
        "opt": mqtune.grid_search([{"lr": mqtune.grid_search([0.1, 0.2])}, {"momentum": mqtune.uniform(0, 1)}, None]),
        "layers": [mqtune.grid_search([1, 2]), mqtune.choice(["relu", None])],
    }


class TestRepeater(SearcherContract):
    space: ClassVar[dict[str, Any]] = {"lr": mqtune.uniform(0, 1), "run": {"seed": mqtune.randint(1, 3)}}

    @pytest.fixture
    def new_searcher(self) -> NewSearcher:
        return lambda: mqtune.Repeater("run/seed")
