"""The contract of searchers, on mqtune's own."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

import mqtune
from mqtune import GridSearcher, PointsFirst, RandomSearcher, Space
from mqtune.integrations.optuna import OptunaSearcher
from mqtune.testing.searchers import NewSearcher, SearcherContract

#: What hangs on what was chosen, and domains in a list.
CONDITIONAL: dict[str, Any] = {
    "opt": mqtune.choice(
        [
            {"name": "adam", "lr": mqtune.loguniform(1e-5, 1e-1)},
            {
                "name": "sgd",
                "lr": mqtune.uniform(0, 1),
                "momentum": [mqtune.uniform(0, 1), {"nesterov": mqtune.choice([True, False])}],
            },
        ]
    ),
    "layers": [mqtune.randint(1, 4), mqtune.choice(["relu", None])],
    "depth": 3,
}


class TestRandomSearcher(SearcherContract):
    @pytest.fixture
    def new_searcher(self) -> NewSearcher:
        return lambda: RandomSearcher(Space(self.space), seed=3)


class TestGridSearcher(SearcherContract):
    space: ClassVar[dict[str, Any]] = {
        "lr": mqtune.grid_search([0.1, 0.01]),
        "net": {"width": mqtune.grid_search([8, 16, 32])},
        "depth": 3,
    }

    @pytest.fixture
    def new_searcher(self) -> NewSearcher:
        return lambda: GridSearcher(Space(self.space), 1)


class TestPointsFirst(SearcherContract):
    @pytest.fixture
    def new_searcher(self) -> NewSearcher:
        space = Space(self.space)
        return lambda: PointsFirst([{"lr": 0.1}, {}], RandomSearcher(space, seed=3), space=space, seed=2)


class TestRepeater(SearcherContract):
    space: ClassVar[dict[str, Any]] = {"lr": mqtune.uniform(0, 1), "run": {"seed": mqtune.randint(1, 3)}}

    @pytest.fixture
    def new_searcher(self) -> NewSearcher:
        return lambda: mqtune.Repeater("run/seed")


class TestOptunaSearcher(SearcherContract):
    @pytest.fixture
    def new_searcher(self) -> NewSearcher:
        return OptunaSearcher


class TestPointsBeforeOptuna(SearcherContract):
    @pytest.fixture
    def new_searcher(self) -> NewSearcher:
        return lambda: PointsFirst([{"lr": 0.1}, {}], OptunaSearcher())


class TestRandomSearcherWithConditions(TestRandomSearcher):
    space: ClassVar[dict[str, Any]] = CONDITIONAL


class TestGridSearcherWithConditions(TestGridSearcher):
    space: ClassVar[dict[str, Any]] = {
        "opt": mqtune.grid_search([{"lr": mqtune.grid_search([0.1, 0.2])}, {"momentum": mqtune.uniform(0, 1)}, None]),
        "layers": [mqtune.grid_search([1, 2]), mqtune.choice(["relu", None])],
    }


class TestPointsFirstWithConditions(SearcherContract):
    space: ClassVar[dict[str, Any]] = CONDITIONAL

    @pytest.fixture
    def new_searcher(self) -> NewSearcher:
        return lambda: PointsFirst([{"opt": {"momentum": [0.5, {}]}}, {"opt": {"name": "adam"}}, {}])


class TestOptunaSearcherWithConditions(TestOptunaSearcher):
    space: ClassVar[dict[str, Any]] = CONDITIONAL
